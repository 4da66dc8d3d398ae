"""Which names and web pages a server without keys answers.

A server on one's own machine is reached by every web page that the browser shows. A page's script may send requests to another site, which then tells by
``Origin`` where the page is from. A page may also let its own name point to this machine's address (DNS rebinding): for the browser the server is then the
page's own site, and only ``Host`` tells.
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
    """The names that a server goes by, and the origins whose pages may use it."""

    def __init__(self, names: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        """`names` beside this machine's own ones and all addresses, which no page can take for its name; `origins`: "*" is every page's."""
        own = socket.gethostname().lower()
        self._names = {"localhost", own, f"{own}.local", *(_name(name) for name in names)}
        self._origins = {origin.lower().rstrip("/") for origin in origins}

    def check(self, headers: Mapping[str, str]) -> None:
        """ApiError 421 where the request's Host is none of this server's names, 403 where its Origin is another site."""
        if "*" in self._origins:
            return
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and not self._is_own(host):  # HTTP/1.0 may have none; no browser speaks it
            raise ApiError(
                421,
                f"this server has no API keys and answers under names of its own machine only, not {host!r}: "
                "tilewright llm serve --allowed-host NAME adds a name, --api-key-file answers all who have a key",
                code="unknown_host",
            )
        if origin is not None and origin.lower() not in self._origins and not _same_site(origin, host):
            raise ApiError(
                403,
                f"this server has no API keys and is not for web pages of {origin!r}: "
                "tilewright llm serve --cors-origin ORIGIN lets those of an origin use it",
                code="foreign_origin",
            )

    def _is_own(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = _name(found[1])
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
    """Whether an origin is this server under the name by which it was called. A proxy in front may speak HTTPS."""
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return False
    default = ":" + _DEFAULT_PORTS.get(parts.scheme, "")
    return host is not None and parts.netloc.removesuffix(default) == host.lower().removesuffix(default)
