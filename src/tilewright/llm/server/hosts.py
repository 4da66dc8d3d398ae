"""Checks of Host and Origin for a server without API keys.

Every web page that the browser shows can reach a server on the same machine. A page's script may send
requests to another site; ``Origin`` then names the page's site. A page may also resolve its own name to this
machine's address (DNS rebinding). The browser then treats the server as the page's own site, and only
``Host`` reveals it.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from .errors import ApiError

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:\[\]@/?#]+)(?::(\d*))?", re.IGNORECASE)
_DEFAULT_PORTS = {"http": "80", "https": "443"}


class Hosts:
    """The names of a server, and the origins whose pages may use it."""

    def __init__(self, names: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        """Collect the accepted names and origins.

        Args:
            names: accepted besides this machine's own names and all IP addresses, which no page can have as
                its name.
            origins: origins of accepted pages; "*" accepts all pages.
        """
        hostname = socket.gethostname().lower()
        self._names = {"localhost", hostname, f"{hostname}.local", *(_name(name) for name in names)}
        self._origins = {origin.lower().rstrip("/") for origin in origins}

    def check(self, headers: Mapping[str, str]) -> None:
        """Check a request's headers.

        Raises:
            ApiError: 421: Host is not a name of this server; 403: Origin is another site.
        """
        if "*" in self._origins:
            return
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and not self._is_own(host):  # HTTP/1.0 may omit Host, but no browser uses it
            raise ApiError(
                421,
                f"the host name {host!r} is not allowed: without API keys the server accepts only the names "
                "of its machine; start it with --allowed-host NAME or --api-key-file",
                code="unknown_host",
            )
        if origin is not None and origin.lower() not in self._origins and not _same_site(origin, host):
            raise ApiError(
                403,
                f"the origin {origin!r} is not allowed: without API keys the server accepts only its own "
                "web pages; start it with --cors-origin ORIGIN",
                code="foreign_origin",
            )

    def _is_own(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = _name(match[1])
        return name in self._names or name.endswith(".localhost") or _is_address(name)


def _name(text: str) -> str:
    return text.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _same_site(origin: str, host: str | None) -> bool:
    """Whether an origin is this server under the called name. The scheme may differ: a proxy in front may use
    HTTPS.
    """
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return False
    default = ":" + _DEFAULT_PORTS.get(parts.scheme, "")
    return host is not None and parts.netloc.removesuffix(default) == host.lower().removesuffix(default)
