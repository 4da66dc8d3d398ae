"""Forms with files: the media type ``multipart/form-data`` (RFC 7578)."""

from __future__ import annotations

from dataclasses import dataclass
from email.message import EmailMessage

from .errors import ApiError

_PARTS = 256  # parts of a form; more are refused, so that small bodies cause little work


@dataclass(frozen=True)
class Part:
    """A field of a form; `file` is the file's name, None for a field that is no file."""

    name: str
    content: bytes
    file: str | None


def parts(content_type: str, body: bytes) -> list[Part]:
    """Return the fields of a form in their order.

    Raises:
        ApiError: 415: the content is no such form; 400: it is damaged.
    """
    kind = _header("content-type", content_type)
    boundary = kind.get_param("boundary")
    if kind.get_content_type() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
        named = content_type.partition(";")[0].strip() or "none"
        raise ApiError(
            415, f"the body must be a form: send 'Content-Type: multipart/form-data', not {named!r}"
        )
    damaged = ApiError(400, "the body is not a complete multipart form", code="invalid_form")
    mark = b"\r\n--" + boundary.encode("ascii", "replace")
    sections = (b"\r\n" + body).split(mark, _PARTS + 1)
    if len(sections) < 2 or not sections[-1].startswith(b"--"):
        raise damaged
    found = []
    for section in sections[1:-1]:
        head, blank, content = section.partition(b"\r\n\r\n")
        if not blank or not head.startswith(b"\r\n"):
            raise damaged
        lines = [line.partition(":") for line in head.decode("utf-8", "replace").split("\r\n")[1:]]
        about = next((value for name, _, value in lines if name.strip().lower() == "content-disposition"), "")
        disposition = _header("content-disposition", about.strip())
        name = disposition.get_param("name", header="content-disposition")
        if not isinstance(name, str):
            raise damaged
        file = disposition.get_param("filename", header="content-disposition")
        found.append(Part(name, content, file if isinstance(file, str) else None))
    return found


def _header(name: str, value: str) -> EmailMessage:
    message = EmailMessage()
    try:
        message[name] = value
    except ValueError:  # ends of lines within it
        message[name] = "invalid"
    return message


__all__ = ["Part", "parts"]
