"""Errors in the form of OpenAI's API: a status and ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """An error response to a request. `param` names the field at fault; `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, body: Mapping[str, Any] | None = None) -> Response:
        """Return the response, with OpenAI's body or the given one."""
        return json_response(body or self.body, self.status, self.headers)


def json_response(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dump(content), status, headers=dict(headers or {}), media_type="application/json")


def dump(content: object) -> bytes:
    """Serialize to JSON on one line, in UTF-8.

    Characters that Unicode counts as ends of lines are escaped, since clients that split a stream by them,
    as `str.splitlines` does, would take an event apart.
    """
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).translate(_ENDS_OF_LINES).encode()


_ENDS_OF_LINES = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""The ends of lines beyond those that JSON escapes itself."""
