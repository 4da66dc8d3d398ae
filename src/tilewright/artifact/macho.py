"""Mach-O files: signatures of libraries that get bytes at their end, and files of several processors.

Apple's systems run code for their own processors only with a signature. One without a certificate ("ad hoc")
has the hash of each page before it; zig's linker writes it for macOS and the simulator, `sign_ad_hoc` for the
others. The system requires that the last segment, ``__LINKEDIT``, and in it the signature, reach to the end
of the file, so both are extended over what is appended, and the hashes of the pages with the changed sizes
are computed again.

Sources: Apple's ``mach-o/loader.h`` and ``mach-o/fat.h``; ``kern/cs_blobs.h`` of XNU (numbers in signatures
and in headers of several processors are big-endian).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence

from tilewright.errors import ArtifactError

MAGIC = b"\xcf\xfa\xed\xfe"
SEGMENT, CODE_SIGNATURE, BUILD_VERSION, LOAD_DYLIB, ID_DYLIB = 0x19, 0x1D, 0x32, 0xC, 0xD
"""Numbers of load commands."""
_HEADER_SIZE = 32
_SUPER_BLOB, _CODE_DIRECTORY = 0xFADE0CC0, 0xFADE0C02
_SHA256 = 2
_PAGE_BITS = 12
"""Signatures hash pages of 4096 bytes."""
_AD_HOC = 0x2
_VERSION = 0x20400
"""The version of a code directory that states the executable segment."""
_DIRECTORY = struct.Struct(">IIIIIIIIIBBBBIIIIQQQQ")
_UNIVERSAL = 0xCAFEBABE
_SLICE_ALIGNMENT = 14
"""The binary logarithm of the alignment of a processor's part in a file of several."""
PROCESSORS = {"x86_64": (0x01000007, 3), "aarch64": (0x0100000C, 0)}
"""The numbers of processors and of their variants in Apple's headers."""


def commands(data: bytes | bytearray) -> Iterator[tuple[int, int, int]]:
    """The number, position and size in bytes of each load command of a 64-bit Mach-O file."""
    (count,) = struct.unpack_from("<I", data, 16)
    at = _HEADER_SIZE
    for _ in range(count):
        number, size = struct.unpack_from("<II", data, at)
        yield number, at, size
        at += size


def is_signed(data: bytes | bytearray) -> bool:
    """Whether a library has a code signature."""
    return any(number == CODE_SIGNATURE for number, _, _ in commands(data))


def sign_ad_hoc(data: bytearray, identifier: str) -> None:
    """Append an ad-hoc signature to a library without one, whose identifier is of any text.

    Raises:
        ArtifactError: The header has no room for the load command.
    """
    found = list(commands(data))
    end = found[-1][1] + found[-1][2]
    segments = {
        bytes(data[at + 8 : at + 24]).rstrip(b"\0"): at for number, at, _ in found if number == SEGMENT
    }
    if any(data[end : end + 16]):
        raise ArtifactError("the header of the linked library has no room for a signature")
    data += bytes(-len(data) % 16)
    start, name = len(data), identifier.encode() + b"\0"
    pages = -(-start >> _PAGE_BITS)
    hashes = _DIRECTORY.size + len(name)
    directory_size = hashes + pages * 32
    size = 20 + directory_size
    count, length = struct.unpack_from("<II", data, 16)
    struct.pack_into("<II", data, 16, count + 1, length + 16)
    struct.pack_into("<IIII", data, end, CODE_SIGNATURE, 16, start, size)
    edit = segments[b"__LINKEDIT"]
    _, offset, _ = struct.unpack_from("<QQQ", data, edit + 32)
    _resize(data, edit, start + size - offset)
    text, text_size = struct.unpack_from("<QQ", data, segments[b"__TEXT"] + 40)
    data += struct.pack(">IIIII", _SUPER_BLOB, size, 1, 0, 20)
    data += _DIRECTORY.pack(
        _CODE_DIRECTORY, directory_size, _VERSION, _AD_HOC, hashes, _DIRECTORY.size, 0, pages, start,
        32, _SHA256, 0, _PAGE_BITS, 0, 0, 0, 0, 0, text, text_size, 0,
    )  # fmt: skip
    data += name + bytes(32 * pages)
    _hash_again(data)


def _resize(data: bytearray, segment: int, length: int) -> None:
    """Give the segment with the load command at `segment` a size in bytes, in the file and in memory."""
    memory, start, _ = struct.unpack_from("<QQQ", data, segment + 32)
    struct.pack_into("<QQQ", data, segment + 32, max(memory, -(-length // 0x4000) * 0x4000), start, length)


def _hash_again(data: bytearray) -> None:
    for place, digest in page_hashes(data):
        data[place : place + len(digest)] = digest


def extend(data: bytearray, size: int) -> None:
    """Make a library ready for `size` bytes that the caller appends: they become part of its signature, whose
    hashes are computed again.

    Raises:
        ArtifactError: the signature is of an unknown kind.
    """
    for number, at, _ in commands(data):
        if number == SEGMENT and data[at + 8 : at + 24].rstrip(b"\0") == b"__LINKEDIT":
            _resize(data, at, struct.unpack_from("<Q", data, at + 48)[0] + size)
        elif number == CODE_SIGNATURE:
            place, length = struct.unpack_from("<II", data, at + 8)
            struct.pack_into("<II", data, at + 8, place, length + size)
    _hash_again(data)


def page_hashes(data: bytes | bytearray) -> list[tuple[int, bytes]]:
    """The position of each page's hash in the signature, and what the hash has to be; none without a
    signature.
    """
    found = next((at for number, at, _ in commands(data) if number == CODE_SIGNATURE), None)
    if found is None:
        return []
    (start,) = struct.unpack_from("<I", data, found + 8)
    magic, _, count = struct.unpack_from(">III", data, start)
    offsets = [struct.unpack_from(">II", data, start + 12 + 8 * k)[1] for k in range(count)]
    directory = next(
        (start + o for o in offsets if struct.unpack_from(">I", data, start + o)[0] == _CODE_DIRECTORY), None
    )
    if magic != _SUPER_BLOB or directory is None:
        raise ArtifactError("the code signature of the linked library has an unknown form")
    hashes, _, _, slots, limit, width, kind, _, page = struct.unpack_from(">IIIIIBBBB", data, directory + 16)
    if kind != _SHA256:
        raise ArtifactError(
            f"the code signature of the linked library has hashes of an unknown kind ({kind})"
        )
    result = []
    for k in range(slots):
        content = data[k << page : min((k + 1) << page, limit)]
        result.append((directory + hashes + k * width, hashlib.sha256(content).digest()[:width]))
    return result


def universal(parts: Sequence[tuple[str, bytes]]) -> bytes:
    """A file that holds a library, shared or static, for each of several processors.

    Args:
        parts: The processors (of `PROCESSORS`) with the files for them.
    """
    header = struct.pack(">II", _UNIVERSAL, len(parts))
    body, align = bytearray(), 1 << _SLICE_ALIGNMENT
    start = align
    for processor, data in parts:
        place = -(-(start + len(body)) // align) * align
        header += struct.pack(">IIIII", *PROCESSORS[processor], place, len(data), _SLICE_ALIGNMENT)
        body += bytes(place - start - len(body)) + data
    return header.ljust(start, b"\0") + bytes(body)


__all__ = [
    "BUILD_VERSION",
    "CODE_SIGNATURE",
    "ID_DYLIB",
    "LOAD_DYLIB",
    "MAGIC",
    "PROCESSORS",
    "commands",
    "extend",
    "is_signed",
    "page_hashes",
    "sign_ad_hoc",
    "universal",
]
