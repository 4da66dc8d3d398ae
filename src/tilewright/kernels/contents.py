"""Texts that change with functions of the user's, for the digests of kernels."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from ..driver import user_code


def contents(function: Callable[..., Any] | None) -> str:
    """A text that changes with a function of the user's; one that never repeats where its contents cannot be
    read.
    """
    if function is None:
        return ""
    try:
        known = user_code.fingerprint_of(function)
    except user_code.UnknownContents:
        return secrets.token_hex(16)
    return known or f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"


__all__ = ["contents"]
