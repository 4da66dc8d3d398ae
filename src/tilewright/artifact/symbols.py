"""The symbols of object files, which are changed in the files' tables of symbols.

In static libraries, symbols beside the exported functions get a prefix, so that one program can be linked
with several models: in ELF (32 and 64 bits), Mach-O (64 bits) and COFF, new names are appended to the table
of strings. In shared libraries for Apple's systems, symbols beside the exported functions are hidden.

Sources: System V ABI, "Symbol Table"; Apple's ``mach-o/nlist.h`` and ``ar.h``; Microsoft's "PE Format",
"COFF Symbol Table".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tilewright.errors import ArtifactError

_Rename = Callable[[str], str]


@dataclass(frozen=True)
class _Symbol:
    """A global symbol: its name without the system's underscore, whether the object defines it, and the
    position of its entry.
    """

    name: str
    defined: bool
    entry: int


def with_prefix(name: str, prefix: str) -> str:
    """The name of a symbol of a model with this prefix."""
    return f"{prefix}__{name}"


def global_names(data: bytes) -> tuple[list[str], list[str]]:
    """The names of the global symbols that an object file defines, and of those that it needs.

    Raises:
        ArtifactError: the object has an unknown format.
    """
    found = _symbols(data)
    return [s.name for s in found if s.defined], [s.name for s in found if not s.defined]


def prefixed(
    objects: Sequence[bytes], prefix: str, kept: Collection[str], also: Collection[str] = ()
) -> list[bytes]:
    """The objects with ``PREFIX__NAME`` for each global symbol NAME that one of them defines, except `kept`,
    and for those of `also`, which the model's other files define.

    Symbols that no object defines, such as those of the C library, keep their names.

    Raises:
        ArtifactError: an object has an unknown format.
    """
    found = [_symbols(data) for data in objects]
    defined = {s.name for symbols in found for s in symbols if s.defined}
    names = {name: with_prefix(name, prefix) for name in (*defined.difference(kept), *also)}
    return [_renamed(data, symbols, names) for data, symbols in zip(objects, found, strict=True)]


def hidden(data: bytes, kept: Collection[str]) -> bytes:
    """A Mach-O object, or a static library of such objects, whose global symbols except `kept` (names, where
    ``*`` stands for any text) are visible only inside the library that it is linked into.

    Linkers for Apple's systems export all other global symbols. A list of exports is no remedy: zig's linker
    does not apply it.
    """
    result = bytearray(data)
    for start, end in _members(data):
        if data[start : start + 4] != b"\xcf\xfa\xed\xfe":
            continue
        for symbol in _macho_symbols(data[start:end]):
            if symbol.defined and not any(fnmatchcase(symbol.name, name) for name in kept):
                result[start + symbol.entry + 4] |= 0x10  # N_PEXT
    return bytes(result)


def _members(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the members of a static library begin and end; the whole file if it is none."""
    if data[:8] != b"!<arch>\n":
        yield 0, len(data)
        return
    at = 8
    while at + 60 <= len(data):
        name, size = data[at : at + 16], int(data[at + 48 : at + 58])
        start, at = at + 60, at + 60 + size
        if name.startswith(b"#1/"):  # a long name stands before the contents
            start += int(name[3:])
        yield start, at
        at += at % 2


def _symbols(data: bytes) -> list[_Symbol]:
    if data[:4] == b"\x7fELF":
        return list(_Elf(data).symbols())
    if data[:4] == b"\xcf\xfa\xed\xfe":
        return list(_macho_symbols(data))
    if struct.unpack_from("<H", data)[0] in (0x8664, 0xAA64):
        return list(_coff_symbols(data))
    raise ArtifactError("an object file has an unknown format, so its symbols cannot be read")


def _renamed(data: bytes, symbols: Sequence[_Symbol], names: dict[str, str]) -> bytes:
    changed = [(s.entry, names[s.name]) for s in symbols if s.name in names]
    if not changed:
        return data
    if data[:4] == b"\x7fELF":
        return _Elf(data).renamed(changed)
    return _macho_renamed(data, changed) if data[:4] == b"\xcf\xfa\xed\xfe" else _coff_renamed(data, changed)


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode(errors="replace")


def _appended(strings: bytes, changed: Sequence[tuple[int, str]]) -> tuple[bytes, list[int]]:
    """The table of strings with the new names, and the position of each."""
    table, places = bytearray(strings), []
    for _, name in changed:
        places.append(len(table))
        table += name.encode() + b"\0"
    return bytes(table), places


class _Elf:
    """An ELF object, little-endian."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        wide = data[4] == 2
        self.section = struct.Struct("<IIQQQQIIQQ" if wide else "<IIIIIIIIII")
        self.symbol = struct.Struct("<IBBHQQ" if wide else "<IIIBBH")
        self.info, self.place = (1, 3) if wide else (3, 5)
        (self.table,) = struct.unpack_from("<Q" if wide else "<I", data, 40 if wide else 32)
        (self.count,) = struct.unpack_from("<H", data, 60 if wide else 48)
        self.rows = [
            list(self.section.unpack_from(data, self.table + k * self.section.size))
            for k in range(self.count)
        ]

    def symbols(self) -> Iterator[_Symbol]:
        for row in self.rows:
            if row[1] != 2:  # SHT_SYMTAB
                continue
            for at in range(row[4], row[4] + row[5], self.symbol.size):
                fields = self.symbol.unpack_from(self.data, at)
                if fields[self.info] >> 4:  # not local
                    name = _text(self.data, self.rows[row[6]][4] + fields[0])
                    yield _Symbol(name, fields[self.place] != 0, at)

    def renamed(self, changed: Sequence[tuple[int, str]]) -> bytes:
        data = bytearray(self.data)
        link_ = next(row[6] for row in self.rows if row[1] == 2)
        row = self.rows[link_]
        table, places = _appended(self.data[row[4] : row[4] + row[5]], changed)
        for (at, _), place in zip(changed, places, strict=True):
            struct.pack_into("<I", data, at, place)
        row[4], row[5] = len(data), len(table)
        self.section.pack_into(data, self.table + link_ * self.section.size, *row)
        return bytes(data + table)


def _macho_table(data: bytes) -> tuple[int, int, int, int, int]:
    """The position of the command LC_SYMTAB, and its four numbers: symbols' position and number, strings'
    position and size. All are 0 in an object without symbols, such as that of a file for another system.
    """
    (count,) = struct.unpack_from("<I", data, 16)
    at = 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", data, at)
        if command == 2:
            return at, *struct.unpack_from("<IIII", data, at + 8)
        at += size
    return 0, 0, 0, 0, 0


def _macho_symbols(data: bytes) -> Iterator[_Symbol]:
    _, start, count, strings, _ = _macho_table(data)
    for at in range(start, start + 16 * count, 16):
        name, kind = struct.unpack_from("<IB", data, at)
        if kind & 0x01 and not kind & 0xE0:  # external, not for a debugger
            yield _Symbol(_text(data, strings + name).removeprefix("_"), bool(kind & 0x0E), at)


def _macho_renamed(data: bytes, changed: Sequence[tuple[int, str]]) -> bytes:
    command, _, _, strings, size = _macho_table(data)
    table, places = _appended(data[strings : strings + size], [(at, f"_{name}") for at, name in changed])
    result = bytearray(data)
    for (at, _), place in zip(changed, places, strict=True):
        struct.pack_into("<I", result, at, place)
    result += bytes(-len(result) % 8)
    struct.pack_into("<II", result, command + 16, len(result), len(table))
    return bytes(result + table)


def _coff_symbols(data: bytes) -> Iterator[_Symbol]:
    start, count = struct.unpack_from("<II", data, 8)
    strings, k = start + 18 * count, 0
    while k < count:
        at = start + 18 * k
        short, _, section, _, storage, more = struct.unpack_from("<8sIhHBB", data, at)
        if storage in (2, 105):  # external, weak external
            place = struct.unpack_from("<I", short, 4)[0] if short[:4] == bytes(4) else None
            name = short.rstrip(b"\0").decode() if place is None else _text(data, strings + place)
            yield _Symbol(name, section > 0, at)
        k += 1 + more


def _coff_renamed(data: bytes, changed: Sequence[tuple[int, str]]) -> bytes:
    start, count = struct.unpack_from("<II", data, 8)
    strings = start + 18 * count
    (size,) = struct.unpack_from("<I", data, strings)
    table, places = _appended(data[strings : strings + size], changed)
    result = bytearray(data)
    for (at, _), place in zip(changed, places, strict=True):
        struct.pack_into("<II", result, at, 0, place)
    table = struct.pack("<I", len(table)) + table[4:]
    return bytes(result[:strings] + table + result[strings + size :])


__all__ = ["global_names", "hidden", "prefixed", "with_prefix"]
