"""Trees of arguments and results: nested lists, tuples (named ones too) and dictionaries of leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Structure: TypeAlias = "str | tuple[type, tuple[Any, ...] | None, tuple[Structure, ...]]"
"""A tree without its leaves, hashable: `LEAF`, or (type, keys or None, children)."""

LEAF = "*"


def flatten(tree: object, path: str = "", separator: str = "_") -> tuple[list[Any], list[str], Structure]:
    """Return the leaves in order, a name for each after its path (``x``, ``x_0``, ``x_mask``), and the
    structure. Dictionaries keep their order.
    """
    if isinstance(tree, Mapping):
        keys: tuple[Any, ...] | None = tuple(tree)
        children = list(tree.values())
    elif isinstance(tree, (list, tuple)):
        keys, children = None, list(tree)
    else:
        return [tree], [path], LEAF
    leaves: list[Any] = []
    names: list[str] = []
    structures = []
    labels = keys if keys is not None else getattr(tree, "_fields", range(len(children)))
    for label, child in zip(labels, children, strict=True):
        more, more_names, structure = flatten(
            child, f"{path}{separator}{label}" if path else str(label), separator
        )
        leaves += more
        names += more_names
        structures.append(structure)
    return leaves, names, (type(tree), keys, tuple(structures))


def unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    """Return the tree of a structure with these leaves in order."""
    if isinstance(structure, str):
        return next(leaves)
    kind, keys, structures = structure
    children = [unflatten(s, leaves) for s in structures]
    if keys is not None:
        return dict(zip(keys, children, strict=True))
    return kind(*children) if hasattr(kind, "_fields") else kind(children)


__all__ = ["LEAF", "Structure", "flatten", "unflatten"]
