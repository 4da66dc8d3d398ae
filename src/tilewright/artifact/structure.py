"""The structure of a compiled model in its artifact's metadata: how it is packed and
read. `driver.structure` writes it; `tilewright explore` and profiles by layer read it; a run does not.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

KEY = "structure"
"""The entry of the metadata."""


def pack_structure(functions: Mapping[str, Any]) -> str:
    """The structure of a model as metadata hold it: JSON, compressed by zlib, in base 64."""
    return base64.b64encode(zlib.compress(json.dumps(functions).encode(), 6)).decode()


def read_structure(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The structure of a compiled model by the names of its functions; empty if its artifact has none.

    Args:
        metadata: The artifact's metadata.

    Returns:
        For each function three lists. ``operators``: dictionaries with ``name``, ``place`` (the path in the
        model), ``source`` (``FILE:LINE`` or ""), ``operands`` (numbers of operators; -1 - k is input k),
        ``types``, ``attributes``, and ``parent``, the number of the operator around it or None. ``steps``:
        ``kind`` (``launch``, ``copy``, ...), ``reads`` and ``writes`` (numbers of storages), ``loop`` (the
        number of the loop around it, where there is one); launches also
        ``kernel``, ``operators``, and ``main``, the operator that most of the work is expected of, or None.
        ``storages``: ``offset`` and ``bytes`` (numbers or formulas), the steps ``first`` and ``last``, and
        ``buffers``, pairs of a name and a type.
    """
    text = metadata.get(KEY)
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text))) if text else {}
    return found


__all__ = ["KEY", "pack_structure", "read_structure"]
