"""Reading a linked unit: its variables, and the source lines of its code.

Sources: System V ABI, "Symbol Table"; DWARF 4, section 6.2 (line number information).
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_left
from dataclasses import dataclass

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB = 2
_OBJECT, _TLS = 1, 6


@dataclass(frozen=True)
class Symbol:
    """A variable of an object file or library."""

    name: str
    address: int
    size: int
    is_shared: bool
    """Whether it is thread-local: `__shared__` in the source."""


class Image:
    """An ELF file of 64 bits, little-endian."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        header = _HEADER.unpack_from(data)
        table, size, count, names = header[6], header[11], header[12], header[13]
        rows = [_SECTION.unpack_from(data, table + k * size) for k in range(count)]
        self._rows = rows
        self._sections = {self._text(rows[names], row[0]): row for row in rows}

    def _text(self, strings: tuple[int, ...], at: int) -> str:
        start = strings[4] + at
        return self.data[start : self.data.index(b"\0", start)].decode(errors="replace")

    def section(self, name: str) -> bytes:
        """The bytes of a section; empty where there is none."""
        row = self._sections.get(name)
        return b"" if row is None else self.data[row[4] : row[4] + row[5]]

    def variables(self) -> dict[str, Symbol]:
        """The variables that the file defines, by their mangled name."""
        found: dict[str, Symbol] = {}
        for row in self._rows:
            if row[1] != _SYMTAB:
                continue
            strings = self._rows[row[6]]
            for at in range(row[4], row[4] + row[5], _SYMBOL.size):
                name, info, _, place, value, size = _SYMBOL.unpack_from(self.data, at)
                if info & 15 in (_OBJECT, _TLS) and place and size:
                    text = self._text(strings, name)
                    found[text] = Symbol(text, value, size, info & 15 == _TLS)
        return found

    def offset(self, address: int) -> int:
        """The position in the file of an address that has bytes there."""
        for row in self._rows:
            if row[3] and row[3] <= address < row[3] + row[5] and row[1] != 8:  # not .bss
                return row[4] + address - row[3]
        raise ValueError(f"no section of the file has the address {address:#x}")


def plain_name(mangled: str) -> str:
    """The name of a variable in the source: ``tile`` for ``_ZZ6matmulPKfE4tile``."""
    for match in re.finditer(r"(?=(?<!\d)(\d+)([A-Za-z_]\w*))", mangled):
        length, rest = int(match.group(1)), match.group(2)
        if len(rest) >= length and re.fullmatch(r"(E?(_\d+_?)?)?", rest[length:]):
            return rest[:length]
    return mangled


def symbol_table(variables: list[Symbol], base: Image | None) -> bytes:
    """tw_symbol_table of checker.h for `variables`; addresses are those of the linked file `base`, or 0
    before it is linked.
    """
    linked = base.variables() if base else {}
    rows, names = b"", b""
    for variable in variables:
        found = linked.get(variable.name)
        kind = "shared variable" if variable.is_shared else "variable"
        address = found.address if found else 0
        rows += struct.pack("<qQII", address, variable.size, variable.is_shared, len(names))
        names += f"{kind} {plain_name(variable.name)}".encode() + b"\0"
    own = [
        linked[name].address if name in linked else 0 for name in ("tw_sim_symbols", "tw_sim_dynamic_shared")
    ]
    return struct.pack("<qqQ", *own, len(variables)) + rows + names


def with_symbols(library: bytes, variables: list[Symbol]) -> bytes:
    """A linked library with the addresses of its variables in its table."""
    image = Image(library)
    place = image.offset(image.variables()["tw_sim_symbols"].address)
    table = symbol_table(variables, image)
    return library[:place] + table + library[place + len(table) :]


class Lines:
    """The source lines of a library's code, from its section .debug_line (version 4)."""

    def __init__(self, library: bytes, name: str) -> None:
        """Read the lines that belong to the source file `name`; code of others has the line before it."""
        self._rows: list[tuple[int, int]] = []
        data = Image(library).section(".debug_line")
        at = 0
        while at + 4 <= len(data):
            at = self._unit(data, at, name)
        self._rows.sort()

    def line(self, address: int) -> int:
        """The line of the instruction that ends at `address`; 0 where it is unknown."""
        place = bisect_left(self._rows, (address, 0)) - 1
        while place >= 0 and self._rows[place][1] == 0:
            place -= 1
        return self._rows[place][1] if place >= 0 else 0

    def _unit(self, data: bytes, start: int, name: str) -> int:
        (length,) = struct.unpack_from("<I", data, start)
        end = start + 4 + length
        version, header = struct.unpack_from("<HI", data, start + 4)
        if version > 4:
            return end
        program = start + 10 + header
        at = start + 10
        shortest, _, _, base, step, first = struct.unpack_from("<BBBbBB", data, at)
        operands = data[at + 6 : at + 5 + first]
        at += 5 + first
        while data[at]:  # folders
            at = data.index(b"\0", at) + 1
        at += 1
        files = [""]
        while data[at]:
            stop = data.index(b"\0", at)
            files.append(data[at:stop].decode(errors="replace"))
            at = stop + 1
            for _ in range(3):
                _, at = _unsigned(data, at)
        own = {k for k, file in enumerate(files) if file and f"/{name}".endswith(f"/{file}")}
        address, file, line = 0, 1, 1
        at = program
        while at < end:
            code = data[at]
            at += 1
            if code >= first:
                address += (code - first) // step * shortest
                line += base + (code - first) % step
                self._rows.append((address, line if file in own else 0))
            elif code == 0:
                size, at = _unsigned(data, at)
                kind = data[at]
                if kind == 1:  # the end of a sequence
                    address, file, line = 0, 1, 1
                elif kind == 2:
                    address = int.from_bytes(data[at + 1 : at + size], "little")
                at += size
            elif code == 1:
                self._rows.append((address, line if file in own else 0))
            elif code == 2:
                value, at = _unsigned(data, at)
                address += value * shortest
            elif code == 3:
                value, at = _signed(data, at)
                line += value
            elif code == 4:
                file, at = _unsigned(data, at)
            elif code == 8:
                address += (255 - first) // step * shortest
            elif code == 9:
                address += int.from_bytes(data[at : at + 2], "little")
                at += 2
            else:
                for _ in range(operands[code - 1]):
                    _, at = _unsigned(data, at)
        return end


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """A number in LEB128, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    start = at
    value, at = _unsigned(data, at)
    bits = 7 * (at - start)
    return value - (1 << bits) if value >> (bits - 1) else value, at
