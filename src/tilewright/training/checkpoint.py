"""Checkpoints: all states of a training library in a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import WeightsError
from ..llm.weights.safetensors import read_safetensors, write_safetensors
from .states import States

FORMAT = "tilewright training 1"
Array = np.ndarray[Any, Any]


def write_checkpoint(states: Mapping[str, Array], path: Path) -> None:
    """Write all states of a training step; the file appears at `path` only when it is complete and on disk.

    Raises:
        WeightsError: The file cannot be written.
    """
    try:
        write_safetensors(path, states, {"format": FORMAT})
    except OSError as error:
        raise WeightsError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_checkpoint(path: Path) -> dict[str, Array]:
    """Return the states in a file of `write_checkpoint`, which is mapped, not read into memory as a whole.

    Raises:
        WeightsError: There is no such file, it is damaged, or it is no checkpoint of training.
    """
    tensors, metadata = read_safetensors(path)
    if metadata.get("format") != FORMAT:
        raise WeightsError(
            f"{path}: is no checkpoint of a training step but {metadata.get('format', 'weights alone')!r}; "
            "load weights alone by step.load_state_dict(tensors, strict=False)"
        )
    return {n: t.load() for n, t in tensors.items()}


def set_states(present: States, values: Mapping[str, Any], source: str, strict: bool) -> None:
    """Replace states of a training step, all of them or, if anything does not fit, none.

    Args:
        present: The states.
        values: Arrays or torch tensors by name.
        source: Where they come from, for messages.
        strict: Whether all states must be there, and no others.

    Raises:
        WeightsError: Names, shapes or element types do not fit; the message lists them.
    """
    from ..runtime.tensors import to_numpy

    missing, unknown = sorted(set(present) - set(values)), sorted(set(values) - set(present))
    if strict and (missing or unknown):
        parts = [f"lacks {_some(missing)}"] if missing else []
        parts += [f"has {_some(unknown)}, which this step does not have"] if unknown else []
        raise WeightsError(f"{source} belongs to another model or optimizer: it {' and '.join(parts)}")
    new = {}
    for name in (n for n in present if n in values):
        old = present[name]
        array = to_numpy(values[name], name, old.dtype)
        if array.shape != old.shape or array.dtype != old.dtype:
            raise WeightsError(
                f"{source} belongs to another model: '{name}' is {array.dtype}{list(array.shape)} there and "
                f"{old.dtype}{list(old.shape)} here"
            )
        new[name] = array
    if not new and values:
        raise WeightsError(f"{source} belongs to another model: it has no state of this step")
    for name, array in new.items():
        present[name] = array


def _some(names: list[str]) -> str:
    """The first few of many names."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"'{n}'" for n in names[:5]) + more


__all__ = ["read_checkpoint", "set_states", "write_checkpoint"]
