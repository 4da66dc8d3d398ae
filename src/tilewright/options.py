"""Options of `tilewright.compile` and `tilewright.load`, looked at before any work is done."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import CompileError

NEEDED = frozenset({"lower-to-tensor", "form-groups"})
"""Passes without which nothing can be compiled: they lead from one level to the next."""


def thread_count(threads: Any) -> int | None:
    """A number of threads; None means all cores.

    Raises CompileError: it is no whole number above 0.
    """
    if threads is None:
        return None
    try:
        count = operator.index(threads)
        if isinstance(threads, bool) or count < 1:
            raise TypeError
    except TypeError:
        raise CompileError(f"threads={threads!r}: give a whole number above 0, or None for all cores") from None
    return count


def pass_names(disable: Any) -> frozenset[str]:
    """The names of passes to be left out.

    Raises CompileError: one is no pass's name, told with those that are like it, or its pass cannot be done without.
    """
    from .ir.passes import pass_name
    from .lowering import pipeline as lowering
    from .transforms.pipeline import GRAPH_PASSES

    if isinstance(disable, str):
        disable = (disable,)
    known = list(dict.fromkeys([*map(pass_name, GRAPH_PASSES), *lowering.pass_names()]))
    for name in disable:
        if name in NEEDED:
            raise CompileError(f"disable: nothing can be compiled without the pass {name!r}")
        if name not in known:
            like = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, like))}?" if like else f"the passes are {', '.join(known)}"
            raise CompileError(f"disable: there is no pass {name!r}; {hint}")
    return frozenset(disable)


def dump_folder(dump: str | Path | None) -> Path | None:
    """The folder that modules are written to. Raises CompileError: a file is there, or it cannot be made."""
    if dump is None:
        return None
    folder = Path(dump)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise CompileError(f"dump: {folder} is a file; give a folder") from None
    except OSError as error:
        raise CompileError(f"dump: {folder} cannot be made: {error.strerror or error}") from error
    return folder


def check_arguments(args: Any, kwargs: Any, dims: Any) -> None:
    """Raises CompileError: example inputs or dynamic dimensions are not of the form that `tilewright.compile` takes."""
    if args is not None and (isinstance(args, (str, bytes)) or not isinstance(args, (Sequence, Mapping))):
        raise CompileError(
            f"args is {_kind(args)}: give a tuple of example inputs, or a dictionary by name: args=(x, y)"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise CompileError(f"kwargs is {_kind(kwargs)}: give a dictionary of example inputs by name")
    if dims is None:
        return
    example = 'write dims={"input_ids": {0: "batch<=8"}}'
    if not isinstance(dims, Mapping):
        raise CompileError(f"dims is {_kind(dims)}, no dictionary: {example}")
    for name, entries in dims.items():
        if not isinstance(entries, Mapping):
            raise CompileError(f"dims[{name!r}] is {_kind(entries)}, no dictionary by dimension: {example}")


def _kind(value: Any) -> str:
    return f"of type {type(value).__name__}"


__all__ = ["NEEDED", "check_arguments", "dump_folder", "pass_names", "thread_count"]
