"""ELF files written and changed directly: data as an object file, and data appended to a linked library
without the copies that a linker makes.

Sources: System V ABI, "Object Files" and "Program Loading"; e_machine and e_flags from the processors'
supplements.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

from tilewright.artifact.systems import system_of
from tilewright.errors import ArtifactError

_MACHINES = {
    "x86_64": (62, 0),
    "amd64": (62, 0),
    "aarch64": (183, 0),
    "riscv64": (243, 0x5),
}  # RVC, double floats
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SECTION_32 = struct.Struct("<IIIIIIIIII")
_SYMBOL = struct.Struct("<IBBHQQ")
_SEGMENT = struct.Struct(
    "<IIQQQQQQ"
)  # type, flags, offset, address, physical address, bytes in file, in memory, alignment
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_LOAD, _NOTE, _READABLE = 1, 4, 4
_ALLOCATED = 0x2
_ALIGNMENT = 64
_PAGE = 1 << 16
"""The largest page size, in bytes, of systems of these processors."""


def serves(triple: str) -> bool:
    """Whether objects and libraries for a triple are ELF files of a known kind (64 bits, little-endian)."""
    return triple.split("-")[0] in _MACHINES and system_of(triple).format == "ELF"


def object_file(data: bytes, symbol: str, triple: str) -> bytes:
    """A relocatable object that defines `symbol` as read-only data, aligned to 64 bytes."""
    machine, flags = _MACHINES[triple.split("-")[0]]
    names = ["", ".rodata", ".symtab", ".strtab", ".shstrtab", ".note.GNU-stack"]
    strings = b"\0" + symbol.encode() + b"\0"
    section_names = b"\0".join(n.encode() for n in names) + b"\0"
    starts = [sum(len(n) + 1 for n in names[:k]) for k in range(len(names))]
    symbols = _SYMBOL.pack(0, 0, 0, 0, 0, 0) + _SYMBOL.pack(
        1, 1 << 4 | 1, 0, 1, 0, len(data)
    )  # global data object
    parts, at, offsets = [bytes(_HEADER.size)], _HEADER.size, []
    for content, align in ((data, _ALIGNMENT), (symbols, 8), (strings, 1), (section_names, 1), (b"", 1)):
        pad = -at % align
        parts += [bytes(pad), content]
        offsets.append(at + pad)
        at += pad + len(content)
    pad = -at % 8
    parts.append(bytes(pad))
    table = at + pad
    # name, type, flags, address, offset, size, link, info, alignment, entry size
    rows = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (starts[1], _PROGBITS, _ALLOCATED, 0, offsets[0], len(data), 0, 0, _ALIGNMENT, 0),
        (starts[2], _SYMTAB, 0, 0, offsets[1], len(symbols), 3, 1, 8, _SYMBOL.size),
        (starts[3], _STRTAB, 0, 0, offsets[2], len(strings), 0, 0, 1, 0),
        (starts[4], _STRTAB, 0, 0, offsets[3], len(section_names), 0, 0, 1, 0),
        (starts[5], _PROGBITS, 0, 0, offsets[4], 0, 0, 0, 1, 0),
    ]
    parts += [_SECTION.pack(*row) for row in rows]
    ident = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)  # 64 bit, little-endian, version 1, System V
    parts[0] = _HEADER.pack(ident, 1, machine, 1, 0, 0, table, flags, 64, 0, 0, _SECTION.size, len(rows), 4)
    return b"".join(parts)


def loaded_bytes(data: bytes) -> int:
    """The bytes of code and constants in an object file of 32 or 64 bits."""
    wide = data[4] == 2
    (table,) = struct.unpack_from("<Q", data, 40) if wide else struct.unpack_from("<I", data, 32)
    size, count = struct.unpack_from("<HH", data, 58 if wide else 46)
    section = _SECTION if wide else _SECTION_32
    rows = [section.unpack_from(data, table + k * size) for k in range(count)]
    return sum(row[5] for row in rows if row[1] == _PROGBITS and row[2] & _ALLOCATED)


def is_whole(path: Path) -> bool:
    """Whether a file has all the bytes that its program headers name. The system's loader maps these without
    a check, and reading a page that is not there kills the process.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return False
        table, entry, count = (*struct.unpack_from("<Q", head, 32), *struct.unpack_from("<HH", head, 54))
        if entry != _SEGMENT.size or count == 0:
            return False
        file.seek(table)
        rows = file.read(entry * count)
        if len(rows) < entry * count:
            return False
    return all(offset + length <= size for _, _, offset, _, _, length, _, _ in _SEGMENT.iter_unpack(rows))


def append_segment(path: Path, data: np.ndarray, marker: bytes, at: int) -> None:
    """Append `data` (uint8) to a shared library as a read-only segment.

    The file's only `marker`, `at` bytes into a structure, is replaced by the distance from that structure to
    the data in memory (int64, then zeros). So weights are written once, without a linker, and begin on a page
    of their own. The program header of the library's note is reused for the segment.

    Raises:
        ArtifactError: The library has no note, or not exactly one marker.
    """
    whole = bytearray(path.read_bytes())
    table, size, count = (*struct.unpack_from("<Q", whole, 32), *struct.unpack_from("<HH", whole, 54))
    segments = [_SEGMENT.unpack_from(whole, table + k * size) for k in range(count)]
    loads = [s for s in segments if s[0] == _LOAD]
    last = max(k for k, s in enumerate(segments) if s[0] == _LOAD)
    notes = [
        k for k, s in enumerate(segments) if s[0] == _NOTE and k > last
    ]  # loaded segments are in order of address
    position = whole.find(marker)
    holder = next((s for s in loads if s[2] <= position < s[2] + s[5]), None)
    if not notes or holder is None or whole.count(marker) != 1:
        raise ArtifactError(
            f"{path.name}: the linked library has no unique segment with the marker of its weights"
        )
    address = -(-max(s[3] + s[6] for s in loads) // _PAGE) * _PAGE
    offset = -(-len(whole) // _PAGE) * _PAGE
    segment = (_LOAD, _READABLE, offset, address, address, data.nbytes, data.nbytes, _PAGE)
    _SEGMENT.pack_into(whole, table + notes[0] * size, *segment)
    structure = position - at - holder[2] + holder[3]
    whole[position : position + len(marker)] = (
        (address - structure).to_bytes(8, "little").ljust(len(marker), b"\0")
    )
    with path.open("wb") as file:
        file.write(whole)
        file.write(bytes(offset - len(whole)))
        file.write(data.data)
