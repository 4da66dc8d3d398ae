"""Strict parsing of a request's head and body framing (RFC 9112, sections 2.2, 5.2 and 6.1).

Requests that two servers could parse differently are refused. h11 is lenient where the standard allows it. If
a proxy in front parses the same bytes differently, the rest of one request becomes the beginning of another
one that the proxy has never seen (request smuggling).
"""

from __future__ import annotations

import re

import h11
from h11._receivebuffer import ReceiveBuffer  # the only place where h11 reads lines; there is no public one

_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)")
_REQUEST = re.compile(rb"[^ :]+ [^ ]+ HTTP/(\d)\.(\d)")


class StrictLines(ReceiveBuffer):
    """h11's receive buffer, which additionally checks the lines of heads and trailers."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        before = bytes(self)  # at least the head; the buffer is bounded by h11's maximum head size
        lines: list[bytearray] | None = super().maybe_extract_lines()
        if lines is not None and (fault := _fault(before[: len(before) - len(self)], lines)):
            raise h11.LocalProtocolError(fault)
        return lines


def strict(connection: h11.Connection) -> h11.Connection:
    """Make `connection`, which must be new, parse strictly."""
    assert type(connection._receive_buffer) is ReceiveBuffer
    connection._receive_buffer = StrictLines()
    return connection


def _fault(text: bytes, lines: list[bytearray]) -> str | None:
    """Describe the ambiguity in the lines of a head or of trailers with the bytes `text`; None if there is
    none.
    """
    if _BARE.search(text):
        return "lines must end in CR LF"
    if any(line[:1] in (b" ", b"\t") for line in lines):
        return "a header must be one line"
    request = _REQUEST.fullmatch(lines[0]) if lines else None  # trailers have no request line
    if request and request[1] != b"1":
        return "another version"
    names = {bytes(line.partition(b":")[0]).lower() for line in lines[1:]}
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            return "a request has either Content-Length or Transfer-Encoding"
        if request and request[2] == b"0":
            return "HTTP/1.0 has no Transfer-Encoding"
    return None
