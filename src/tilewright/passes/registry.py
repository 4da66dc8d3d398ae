"""The passes of both pipelines: the compiler's own (`pipelines.PASSES`) and those that users register.

    from tilewright.passes import register_pass

    def double_negation(module):
        \"""Replace neg(neg(x)) by x.\"""
        ...

    register_pass(double_negation, level="graph", after="simplify")

A package registers its passes before the first compilation if it has an entry point of the group
``tilewright.passes``. The entry point names a function without parameters, which calls `register_pass`.
"""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_args

from ..errors import CompileError, TilewrightError
from ..ir.core import Module
from ..ir.passes import Pass, pass_name
from ..ir.plugins import call_plugins
from .info import Condition, Level, PassContext, PassInfo
from .pipelines import PASSES

ENTRY_POINTS = "tilewright.passes"
"""The group of entry points of packages with passes."""

_MAX_OPT = 3
_Function = TypeVar("_Function", bound=Callable[..., object])


@dataclass(frozen=True)
class _Registration:
    """A user's pass and the pass that it follows or precedes."""

    info: PassInfo
    after: str | None
    before: str | None


_registered: list[_Registration] = []
"""In the order of registration. Keys of the compilation cache contain this list (`driver.user_code`)."""
_lock = threading.RLock()
"""Held while `_registered` changes."""


def register_pass(
    function: _Function,
    *,
    level: Level,
    after: str | None = None,
    before: str | None = None,
    min_opt: int = 0,
    name: str | None = None,
    condition: Condition = Condition.ALWAYS,
    arguments: tuple[str, ...] = (),
) -> _Function:
    """Add a pass to the pipeline of a level; return its function.

    Registering a function again, or a new definition of it in the same module, replaces the pass.

    Args:
        function: Changes a module in place; its result is ignored.
        level: "graph" (operators) or "tensor" (computations, which become groups and then kernels).
        after: Name of a pass of the same level. The new pass runs after its last occurrence; several passes
            after the same one run in the order of registration.
        before: Name of a pass of the same level. The new pass runs before its first occurrence. Give one of
            `after` and `before`.
        min_opt: The lowest level of optimization that runs the pass, 0 (``opt="O0"``) to 3.
        name: The name in reports and in ``disable``; default: the function's, with ``-`` for ``_``.
        condition: The targets, or the precision, that the pass runs for.
        arguments: Names of the fields of `PassContext` that the function takes as keyword arguments.

    Raises:
        CompileError: The name is taken or malformed, there is no pass to run after or before, or another
            argument is wrong. The message names it and lists the known values.
    """
    name = pass_name(function) if name is None else name
    info = PassInfo(name, level, function, min_opt, condition, arguments)
    with _lock:
        earlier = _of_name(name)
        _check_name(info, None if earlier is None else earlier.info)
        _check_arguments(name, level, min_opt, arguments)
        if (after is None) == (before is None):
            raise CompileError(
                f"pass {name!r}: give one of after= and before=, the name of a pass of the same level"
            )
        _check_anchor(name, level, "after" if before is None else "before", after or before or "")
        if earlier is None:
            _registered.append(_Registration(info, after, before))
        else:
            _registered[_registered.index(earlier)] = _Registration(info, after, before)
    return function


def _of_name(name: str) -> _Registration | None:
    return next((r for r in _registered if r.info.name == name), None)


def unregister_pass(name: str) -> None:
    """Remove a registered pass from its pipeline.

    Raises:
        CompileError: No pass of that name is registered, or another one runs after or before it.
    """
    with _lock:
        registration = _of_name(name)
        if registration is None:
            known = ", ".join(r.info.name for r in _registered) or "none"
            raise CompileError(f"no pass {name!r} is registered; registered: {known}")
        if anchored := [r.info.name for r in _registered if name in (r.after, r.before)]:
            raise CompileError(
                f"pass {name!r} cannot be removed: the passes {', '.join(anchored)} are placed before or "
                "after it; remove these first"
            )
        _registered.remove(registration)


def _check_name(info: PassInfo, earlier: PassInfo | None) -> None:
    if re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", info.name) is None:
        raise CompileError(
            f"a pass cannot be called {info.name!r}: "
            "give name=, of lower-case letters, digits and single hyphens"
        )
    taken = earlier or next((other for other in PASSES if other.name == info.name), None)
    if taken is not None and (earlier is None or _place(earlier) != _place(info)):
        raise CompileError(
            f"pass {info.name!r} of {_place(info)}: {_place(taken)} has this name already; "
            f"give another name=; the names of passes are {', '.join(dict.fromkeys(i.name for i in _all()))}"
        )


def _check_arguments(name: str, level: str, min_opt: int, arguments: tuple[str, ...]) -> None:
    levels, known = get_args(Level), [field.name for field in fields(PassContext)]
    if level not in levels:
        raise CompileError(f"pass {name!r}: there is no level {level!r}; the levels are {', '.join(levels)}")
    if min_opt not in range(_MAX_OPT + 1):
        raise CompileError(
            f"pass {name!r}: min_opt={min_opt!r}; give a level of optimization, 0 to {_MAX_OPT}"
        )
    if unknown := [argument for argument in arguments if argument not in known]:
        raise CompileError(
            f"pass {name!r}: PassContext has no field {unknown[0]!r}; its fields are {', '.join(known)}"
        )


def _check_anchor(name: str, level: Level, side: str, anchor: str) -> None:
    passes = _all()
    names = list(dict.fromkeys(info.name for info in passes if info.level == level))
    if anchor in names:
        return
    if other := [info.level for info in passes if info.name == anchor]:
        reason = f"{anchor!r} is a pass of the {other[0]} level, not of the {level} level"
    else:
        like = difflib.get_close_matches(str(anchor), names, n=1, cutoff=0.6)
        reason = f"there is no pass {anchor!r}" + (f" (did you mean {like[0]!r}?)" if like else "")
    raise CompileError(f"pass {name!r}: {side}={anchor!r}: {reason}; its passes are {', '.join(names)}")


def _place(info: PassInfo) -> str:
    """The module and function of a pass, for messages."""
    function: Any = info.function
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"


def _all() -> list[PassInfo]:
    """The passes of both levels in order; registered ones at their places."""
    entries: list[tuple[PassInfo, str | None]] = [(info, None) for info in PASSES]
    for registration in _registered:
        places = [
            k for k, (info, _) in enumerate(entries) if info.name in (registration.after, registration.before)
        ]
        place = places[0]
        if registration.after is not None:
            place = places[-1] + 1
            while place < len(entries) and entries[place][1] == registration.after:
                place += 1
        entries.insert(place, (registration.info, registration.after))
    return [info for info, _ in entries]


def all_passes(level: Level | None = None) -> list[PassInfo]:
    """The passes of a level, or of both, in the order in which they run. A pass may occur several times.

    Raises:
        CompileError: An installed package cannot register its passes; the message names it.
    """
    call_plugins(ENTRY_POINTS, "passes", "tilewright.passes.register_pass")
    return [info for info in _all() if level in (None, info.level)]


def passes_in(context: PassContext, level: Level | None = None, *, opt: int = _MAX_OPT) -> list[PassInfo]:
    """The passes of a level, or of both, that run in a `context` at the level of optimization `opt` (0 to 3),
    in order.

    Raises:
        CompileError: An installed package cannot register its passes; the message names it.
    """
    return [info for info in all_passes(level) if info.min_opt <= opt and info.condition.holds(context)]


def bound_passes(level: Level, context: PassContext | None = None) -> list[Pass]:
    """The functions of a level's passes that run in a context, at any level of optimization, in order."""
    context = context or PassContext()
    registered = {registration.info.name for registration in _registered}
    return [
        _with_origin(info, context) if info.name in registered else info.bound(context)
        for info in passes_in(context, level)
    ]


def _with_origin(info: PassInfo, context: PassContext) -> Pass:
    """A user's pass, bound to a context, whose exceptions become errors that name the pass."""
    step = info.bound(context)

    def run(module: Module) -> object:
        try:
            return step(module)
        except TilewrightError:
            raise
        except Exception as error:  # code of a user may raise anything
            raise CompileError(
                f"the registered pass {info.name!r} ({_place(info)}) raises {type(error).__name__}: {error}"
            ) from error

    run.__name__ = info.name.replace("-", "_")
    run.__dict__["__wrapped__"] = info.function  # Errors name the place of the user's function.
    return run


__all__ = [
    "ENTRY_POINTS",
    "all_passes",
    "bound_passes",
    "passes_in",
    "register_pass",
    "unregister_pass",
]
