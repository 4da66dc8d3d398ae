"""Forms with files: the media type ``multipart/form-data`` (RFC 7578)."""

from __future__ import annotations

from dataclasses import dataclass
from email.message import EmailMessage

from .errors import ApiError

_PARTS = 64  # parts of a form; more are refused, so that small bodies cause little work
_HEAD = 4096
"""Bytes of a part's head, and characters of a content type; a longer one is damaged. `email` takes time that
grows with their square.
"""


@dataclass(frozen=True)
class Part:
    """A field of a form; `file` is the file's name, None for a field that is no file."""

    name: str
    content: bytes
    file: str | None


def parts(content_type: str, body: bytes) -> list[Part]:
    """Return the fields of a form in their order.

    It may take seconds: call it in a thread.

    Raises:
        ApiError: 415: the content is no such form; 400: it is damaged.
    """
    kind, boundary = _read("content-type", content_type, "boundary")
    if kind != "multipart/form-data" or not boundary:
        named = content_type.partition(";")[0].strip() or "none"
        raise ApiError(
            415, f"the body must be a form: send 'Content-Type: multipart/form-data', not {named!r}"
        )
    mark = b"\r\n--" + boundary.encode("ascii", "replace")
    sections = (b"\r\n" + body).split(mark, _PARTS + 1)
    if len(sections) < 2 or not sections[-1].startswith(b"--"):
        raise _damaged()
    found = []
    for section in sections[1:-1]:
        head, blank, content = section.partition(b"\r\n\r\n")
        if not blank or not head.startswith(b"\r\n") or len(head) > _HEAD:
            raise _damaged()
        lines = [line.partition(":") for line in head.decode("utf-8", "replace").split("\r\n")[1:]]
        about = next((value for name, _, value in lines if name.strip().lower() == "content-disposition"), "")
        _, name, file = _read("content-disposition", about.strip(), "name", "filename")
        if name is None:
            raise _damaged()
        found.append(Part(name, content, file))
    return found


def _read(header: str, value: str, *names: str) -> tuple[str | None, ...]:
    """Return the media type of a part with the header `header`, and the header's parameters `names`; None for
    those that it lacks.

    Raises:
        ApiError: 400: the header is damaged.
    """
    if len(value) > _HEAD:
        raise _damaged()
    message = EmailMessage()
    try:
        message[header] = value
        kind = message.get_content_type()
        found = [message.get_param(name, header=header) for name in names]
    # The parser raises errors of many kinds on damaged headers, RecursionError and IndexError among them.
    except Exception:
        raise _damaged() from None
    return kind, *(text if isinstance(text, str) else None for text in found)


def _damaged() -> ApiError:
    return ApiError(400, "the body is not a complete multipart form", code="invalid_form")


__all__ = ["Part", "parts"]
