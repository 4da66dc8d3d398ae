"""Where a request's head ends and what its body is, read strictly: what two servers could read differently is refused (RFC 9112, sections 2.2, 5.2 and 6.1).

h11 is lenient where the standard lets a server be. Behind a proxy that reads the same bytes in another way, the rest of one request is then the beginning of
another one, which the proxy has never seen (request smuggling).
"""

from __future__ import annotations

import re

import h11
from h11._receivebuffer import ReceiveBuffer  # h11's only place that reads lines; there is no public one

_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)")
_REQUEST = re.compile(rb"[^ :]+ [^ ]+ HTTP/(\d)\.(\d)")


class StrictLines(ReceiveBuffer):
    """h11's buffer of received bytes. Heads and trailers are taken from it as lines."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        before = bytes(self)  # as much as a head may be, or as was received with its end
        lines: list[bytearray] | None = super().maybe_extract_lines()
        if lines is not None and (fault := _fault(before[: len(before) - len(self)], lines)):
            raise h11.LocalProtocolError(fault)
        return lines


def strict(connection: h11.Connection) -> h11.Connection:
    """`connection`, new, reading strictly."""
    assert type(connection._receive_buffer) is ReceiveBuffer
    connection._receive_buffer = StrictLines()
    return connection


def _fault(text: bytes, lines: list[bytearray]) -> str | None:
    """The ambiguity in the lines of a head or of trailers, whose bytes are `text`."""
    if _BARE.search(text):
        return "lines must end in CR LF"
    if any(line[:1] in (b" ", b"\t") for line in lines):
        return "a header must be one line"
    request = _REQUEST.fullmatch(lines[0]) if lines else None  # which trailers have not
    if request and request[1] != b"1":
        return "another version"
    names = {bytes(line.partition(b":")[0]).lower() for line in lines[1:]}
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            return "a request has either Content-Length or Transfer-Encoding"
        if request and request[2] == b"0":
            return "HTTP/1.0 has no Transfer-Encoding"
    return None
