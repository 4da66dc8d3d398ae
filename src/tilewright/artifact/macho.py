"""Code signatures of Mach-O libraries that get bytes at their end.

Apple's systems run code for their own processors only with a signature; the linker writes one without a
certificate ("ad hoc"). It has the hash of each page before it. The system requires that the last segment,
``__LINKEDIT``, and in it the signature, reach to the end of the file, so both are extended over what is
appended, and the hashes of the pages with the changed sizes are computed again.

Sources: Apple's ``mach-o/loader.h``; ``kern/cs_blobs.h`` of XNU (numbers in signatures are big-endian).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

from tilewright.errors import ArtifactError

MAGIC = b"\xcf\xfa\xed\xfe"
SEGMENT, CODE_SIGNATURE, BUILD_VERSION, LOAD_DYLIB, ID_DYLIB = 0x19, 0x1D, 0x32, 0xC, 0xD
"""Numbers of load commands."""
_HEADER_SIZE = 32
_SUPER_BLOB, _CODE_DIRECTORY = 0xFADE0CC0, 0xFADE0C02
_SHA256 = 2


def commands(data: bytes | bytearray) -> Iterator[tuple[int, int, int]]:
    """The number, position and size in bytes of each load command of a 64-bit Mach-O file."""
    (count,) = struct.unpack_from("<I", data, 16)
    at = _HEADER_SIZE
    for _ in range(count):
        number, size = struct.unpack_from("<II", data, at)
        yield number, at, size
        at += size


def extend(data: bytearray, size: int) -> None:
    """Make a library ready for `size` bytes that the caller appends: they become part of its signature, whose
    hashes are computed again.

    Raises:
        ArtifactError: the signature is of an unknown kind.
    """
    for number, at, _ in commands(data):
        if number == SEGMENT and data[at + 8 : at + 24].rstrip(b"\0") == b"__LINKEDIT":
            memory, start, length = struct.unpack_from("<QQQ", data, at + 32)
            length += size
            struct.pack_into("<QQQ", data, at + 32, max(memory, -(-length // 0x4000) * 0x4000), start, length)
        elif number == CODE_SIGNATURE:
            place, length = struct.unpack_from("<II", data, at + 8)
            struct.pack_into("<II", data, at + 8, place, length + size)
    for place, digest in page_hashes(data):
        data[place : place + len(digest)] = digest


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


__all__ = ["BUILD_VERSION", "CODE_SIGNATURE", "ID_DYLIB", "LOAD_DYLIB", "MAGIC", "commands", "extend",
           "page_hashes"]  # fmt: skip
