"""Requests that two servers could read differently are refused, and the bytes after them are not read as a
request.
"""

from __future__ import annotations

import pytest

from .conftest import Running
from .test_http import answers, chat, connect, error_of, request, rest

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = chat("hi")
CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"

AMBIGUOUS = {
    "both lengths": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths in reverse order": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 99\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "two lengths in one": POST + b"Content-Length: 2, 3\r\n\r\n{}",
    "a length with a sign": POST + b"Content-Length: +2\r\n\r\n{}",
    "a length in hexadecimal": POST + b"Content-Length: 0x2\r\n\r\n{}",
    "a space before the colon": POST + b"Content-Length : 2\r\n\r\n{}",
    "a tab before the colon": POST + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "a folded header": POST + b"X: a\r\n Content-Length: 2\r\n\r\n",
    "a folded encoding": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a line feed alone": POST + b"X: a\nContent-Length: 0\r\n\r\n",
    "line feeds at the end": POST[:-2] + b"\n\n",
    "a carriage return alone": POST + b"X: a\rContent-Length: 0\r\n\r\n",
    "a zero byte": POST + b"X: a\0b\r\n\r\n",
    "an unknown encoding": POST + b"Transfer-Encoding: xchunked\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked, then something else": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n",
    "two hosts": POST + b"Host: other\r\n\r\n",
    "no host": POST.replace(b"Host: localhost\r\n", b"") + b"\r\n",
    "an unknown version": POST.replace(b"HTTP/1.1", b"HTTP/2.0") + b"\r\n",
    "a chunk's size with 0x": CHUNKED + b"0x" + CHUNK,
    "a chunk's size with a sign": CHUNKED + b"+" + CHUNK,
    "a chunk's size after a blank": CHUNKED + b" " + CHUNK,
    "a chunk's size that ends in a line feed": CHUNKED + CHUNK.replace(b"\r\n", b"\n", 1),
    "a chunk that ends in a line feed": CHUNKED + CHUNK[:-2] + b"\n0\r\n\r\n",
    "a chunk that is longer than it says": CHUNKED + CHUNK[:-2] + b"xx\r\n0\r\n\r\n",
    "an extension with a line feed": CHUNKED + b"1;a\n\r\n{\r\n0\r\n\r\n",
    "chunks that end in a line feed": CHUNKED + CHUNK + b"0\r\n\n",
    "a trailer that ends in a line feed": CHUNKED + CHUNK + b"0\r\nX: y\n\n",
    "a folded trailer": CHUNKED + CHUNK + b"0\r\nX: y\r\n z\r\n\r\n",
}


@pytest.mark.parametrize("text", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_ambiguous_requests(server: Running, text: bytes) -> None:
    connection = connect(server)
    connection.sendall(text + SMUGGLED)
    response = rest(connection)
    assert response.count(b"HTTP/1.1 ") == 1, "the bytes after the refused request get no answer"
    status, message = error_of(response)
    assert status == 400 and message.startswith("this is not HTTP/1.1: "), message
    assert answers(server)


def test_byte_by_byte_and_pipelined(server: Running) -> None:
    """Well-formed requests are understood in pieces of any size."""
    whole = CHUNKED + CHUNK + b"0\r\nX: y\r\n\r\n" + request(BODY, "Connection: close")
    for pieces in ([whole], [whole[i : i + 1] for i in range(len(whole))]):
        connection = connect(server)
        for piece in pieces:
            connection.sendall(piece)
        assert rest(connection).count(b"HTTP/1.1 200 ") == 2


def test_the_message_names_the_fault(server: Running) -> None:
    connection = connect(server)
    connection.sendall(AMBIGUOUS["both lengths"])
    assert "either Content-Length or Transfer-Encoding" in error_of(rest(connection))[1]
