"""Random inputs for a compiled model, from its metadata: sizes within the bounds, and values that its
operators accept.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import ShapeError
from tilewright.runtime.expressions import evaluate
from tilewright.runtime.tensors import dtype_named

LARGEST_SIZE = 128
"""The largest size that is sampled for an unbounded or very wide dimension. A larger value makes samples
slower to run.
"""
DEFAULT_LIMIT = 100
"""The exclusive upper limit of integers of unknown meaning: small enough to be an index of most tables."""


def symbol_bounds(metadata: Mapping[str, Any]) -> dict[str, tuple[int, int | None]]:
    """Lower and upper bound (inclusive; None: unbounded) of every symbolic dimension."""
    result: dict[str, tuple[int, int | None]] = {}
    for name, bounds in metadata.get("symbols", {}).items():
        low, high = (bounds.get("lower"), bounds.get("upper")) if isinstance(bounds, Mapping) else bounds[:2]
        result[name] = (1 if low is None else int(low), None if high is None else int(high))
    return result


def sample_sizes(metadata: Mapping[str, Any], count: int = 3, seed: int = 0) -> list[dict[str, int]]:
    """Up to `count` different assignments of sizes to symbols: the smallest, the largest, then random ones.

    No size is above `LARGEST_SIZE`, unless its lower bound is. A model without dynamic dimensions has one
    empty assignment.
    """
    bounds = symbol_bounds(metadata)
    if not bounds:
        return [{}]
    capped = {
        n: (lo, max(lo, min(LARGEST_SIZE if hi is None else hi, LARGEST_SIZE)))
        for n, (lo, hi) in bounds.items()
    }
    generator = np.random.default_rng(seed)
    assignments = [{n: lo for n, (lo, _) in capped.items()}, {n: hi for n, (_, hi) in capped.items()}]
    assignments += [
        {n: int(generator.integers(lo, hi + 1)) for n, (lo, hi) in capped.items()} for _ in range(count)
    ]
    unique = [sizes for k, sizes in enumerate(assignments) if sizes not in assignments[:k]]
    return unique[:count]


def concrete_shape(shape: Sequence[int | str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape with its formulas, such as "2 * seq", evaluated.

    Raises:
        ArtifactError: `sizes` lacks a symbol of the shape.
    """
    return tuple(evaluate(dim, sizes) for dim in shape)


def random_inputs(
    metadata: Mapping[str, Any], sizes: Mapping[str, int], seed: int = 0
) -> dict[str, np.ndarray]:
    """One random array per input of the model, by name.

    Floats are standard normal. Integers lie in [0, limit), with the limit that the model's tables allow
    (`limit` in the input's metadata). Attention masks, recognized by their names, are 0 and 1, with a 1 at
    the first position of each row.
    """
    generator = np.random.default_rng(seed)
    return {
        entry["name"]: _random_array(
            entry["name"],
            dtype_named(entry["dtype"]),
            concrete_shape(entry["shape"], sizes),
            entry.get("limit"),
            generator,
        )
        for entry in metadata["inputs"]
    }


def _random_array(
    name: str, dtype: np.dtype, shape: tuple[int, ...], limit: int | None, generator: np.random.Generator
) -> np.ndarray:
    if dtype.kind == "b" or (dtype.kind in "iu" and "mask" in name.lower()):
        mask = generator.random(shape) < 0.8
        if mask.ndim:
            mask[..., 0] = True
        return mask.astype(dtype)
    if dtype.kind in "iu":
        top = limit if limit is not None else 2 if "type" in name.lower() else DEFAULT_LIMIT
        return generator.integers(0, min(top, int(np.iinfo(dtype).max)), shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


def write_npz(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as a ``.npz`` file. Unlike `numpy.savez` it takes any names."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def default_sizes(metadata: Mapping[str, Any], given: Mapping[str, int]) -> dict[str, int]:
    """`given` sizes, and the lower bound of every other symbol.

    Raises:
        ShapeError: A name is not a symbol of the model, or a size lies outside its bounds.
    """
    bounds = symbol_bounds(metadata)
    for name, size in given.items():
        if name not in bounds:
            known = ", ".join(bounds) or "none"
            raise ShapeError(f"the model has no dynamic dimension '{name}'; it has: {known}")
        low, high = bounds[name]
        if size < low or (high is not None and size > high):
            raise ShapeError(
                f"dimension '{name}' = {size} is outside its bounds {low}..{'' if high is None else high}"
            )
    return {name: given.get(name, low) for name, (low, _) in bounds.items()}
