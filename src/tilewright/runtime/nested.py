"""Models whose inputs or outputs are lists of tensors, optional, or complex: the artifact has a flat list of
real tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import numpy as np

from tilewright.errors import ShapeError
from tilewright.runtime.tensors import refuse_masks

Places = int | None | Sequence["int | None"] | tuple[Literal["complex"], int, int]
"""The place of a value in the artifact's list of tensors: one number; several for a list; None for an absent
value; the numbers of the real and the imaginary part of complex numbers.
"""

Entries = Sequence[tuple[str, Places]]
"""Names of the model's own inputs or outputs, with their places."""


@dataclass(frozen=True)
class Nested:
    """The mapping between the values of a call and the artifact's tensors."""

    inputs: Entries
    outputs: Entries

    @classmethod
    def of(cls, metadata: dict[str, Any]) -> Nested | None:
        """The mapping in the metadata (``nested``); None where every value is one tensor."""
        entries = metadata.get("nested")
        return None if entries is None else cls(entries["inputs"], entries["outputs"])

    def flatten(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The tensors of a call in the artifact's order.

        Raises:
            ShapeError: An argument is missing or unknown, or a list has another length than the model was
                compiled for.
        """
        names = [name for name, _ in self.inputs]
        listing = ", ".join(f"'{name}'" for name in names)
        if len(args) > len(names):
            raise ShapeError(f"the model has {len(names)} inputs ({listing}), got {len(args)} arguments")
        if unknown := set(kwargs) - set(names[len(args) :]):
            raise ShapeError(f"'{min(unknown)}' is not an input, or is given twice; the inputs are {listing}")
        given = dict(zip(names, args, strict=False)) | kwargs
        flat: list[Any] = []
        for name, places in self.inputs:
            if isinstance(places, int):
                if name not in given:
                    raise ShapeError(f"missing input '{name}'; the inputs are {listing}")
                flat.append(given[name])
            elif places is None:
                if given.get(name) is not None:
                    raise ShapeError(
                        f"input '{name}' was absent when the model was compiled: compile it again with one"
                    )
            elif _is_complex(places):
                if name not in given:
                    raise ShapeError(f"missing input '{name}'; the inputs are {listing}")
                flat.extend(_parts(given[name], name))
            else:
                values = given.get(name)
                count = len(values) if isinstance(values, (list, tuple)) else -1
                if values is None or count != len(places):
                    got = f"one of {count}" if count >= 0 else type(values).__name__
                    raise ShapeError(
                        f"input '{name}' is a list of {len(places)} tensors in this compiled model, got "
                        f"{got}: "
                        "compile it again for another length"
                    )
                flat.extend(values)
        return tuple(flat)

    def unflatten(self, tensors: Sequence[Any]) -> Any:
        """The model's results: each a tensor, a list of tensors, or None."""

        def value(places: Places) -> Any:
            if places is None or isinstance(places, int):
                return None if places is None else tensors[places]
            if _is_complex(places):
                _, real, imaginary = places
                return _joined(tensors[real], tensors[imaginary])
            return [None if k is None else tensors[int(k)] for k in places]

        results = tuple(value(places) for _, places in self.outputs)
        return results[0] if len(results) == 1 else results

    def is_flat(self, args: Sequence[Any], count: int) -> bool:
        """Whether a call passes the artifact's `count` tensors themselves, as arrays."""
        return len(args) == count and all(isinstance(x, np.ndarray) for x in args)


def _is_complex(places: object) -> TypeGuard[tuple[Literal["complex"], int, int]]:
    return isinstance(places, (list, tuple)) and bool(places) and places[0] == "complex"


def _parts(value: Any, name: str) -> tuple[Any, Any]:
    """Real and imaginary part of a NumPy array, a torch tensor, or anything that NumPy converts."""
    refuse_masks(value, name)
    if not hasattr(value, "dtype"):
        value = np.asarray(value)
    if not str(value.dtype).rpartition(".")[2].startswith("complex"):
        raise ShapeError(f"input '{name}': expected complex numbers, got {value.dtype}")
    if type(value).__module__.partition(".")[0] == "torch":
        return value.resolve_conj().real.contiguous(), value.resolve_conj().imag.contiguous()
    return np.array(value.real), np.array(value.imag)


def _joined(real: Any, imaginary: Any) -> Any:
    if type(real).__module__.partition(".")[0] == "torch":
        import torch

        return torch.complex(real, imaginary)
    value = np.empty(real.shape, f"c{2 * real.dtype.itemsize}")
    value.real, value.imag = real, imaginary
    return value


__all__ = ["Entries", "Nested", "Places"]
