"""The search for code of the user's in this package's modules, tables and classes.

Each compilation searches, also one that the cache answers, and there are some ten thousand places to look at,
nearly all of them unchanged since the last search. Reading every object there took 30 ms; so a search
compares what each namespace refers to with what it referred to last, object by object and without reading
them, and looks only at those that are not the same.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from operator import is_
from typing import Any

PACKAGE = __name__.partition(".")[0]
_APART = (("llm",), ("cli",), ("tools",), ("integrations",), ("driver", "frontend_registry"))
"""Modules of this package that do not shape code. Front ends are left out, since keys hold the module that
they import.
"""
_DEPENDENCIES = {
    "numpy",
    "ml_dtypes",
    "llvmlite",
    "xxhash",
    "onnx",
    "torch",
    "jax",
    "jaxlib",
    "transformers",
    "platformdirs",
    "click",
    "rich",
    "typing_extensions",
}


_CODE = (types.FunctionType, types.MethodType, type)
_WRAPPERS: dict[type, tuple[str, ...]] = {
    functools.partial: ("func",),
    functools.partialmethod: ("func",),
    functools.cached_property: ("func",),
    type(functools.cache(len)): ("__wrapped__",),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
}
"""Classes of objects around functions, with the attributes that hold these."""
_SEQUENCES = (list, tuple, set)
_TABLES = (dict, *_SEQUENCES)


def foreign_code() -> Iterator[tuple[str, Any]]:
    """Functions and classes of the user's, and descriptions of them (instances of dataclasses), in this
    package's modules, tables and classes, with their places.
    """
    for name in _own_modules():
        module = sys.modules.get(name)
        if not isinstance(module, types.ModuleType):
            continue
        known = _modules.get(name)
        if known is None or not known.is_still_of(module):
            known = _modules[name] = _Module(module)
        yield from known.users()


def is_users(value: object) -> bool:
    """Whether a value is, or describes, code that is not the compiler's, its dependencies' or Python's
    own.
    """
    kind: Any = type(value)  # mypy does not take classes of objects as keys
    return _may_describe_code(kind) and bool(packages(value))


def packages(value: object) -> set[str]:
    """The users' packages that a function or class is from, that the functions and classes of a registered
    description (a dataclass) are from, or the class of an object that can be called.
    """
    if isinstance(value, _CODE):
        top = top_of(value)
    elif (inner := functions_in(value)) or dataclasses.is_dataclass(value):
        return set().union(*map(packages, inner or _parts(value)))
    else:
        top = top_of(type(value)) if callable(value) else ""
    return set() if is_known(top) else {top}


def functions_in(value: object) -> list[Any]:
    """The functions in a property, a method without an object, or another object around functions."""
    names = next((names for kind, names in _WRAPPERS.items() if isinstance(value, kind)), ())
    return [part for name in names if (part := getattr(value, name)) is not None]


@functools.cache
def is_known(top: str) -> bool:
    """Whether a top-level package is this one, a dependency of it, or Python's."""
    # `namedtuple` names a module that does not exist in the functions that it generates.
    generated = top.startswith("namedtuple_") and top not in sys.modules
    return (
        generated
        or top in sys.stdlib_module_names
        or top in _DEPENDENCIES
        or top in (PACKAGE, "builtins", "")
    )


def top_of(value: object) -> str:
    """The top-level package or module that defines a function or class."""
    module = getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


def _own_modules() -> list[str]:
    """The names of the loaded modules of this package that shape code, which are few of all."""
    global _loaded
    names = list(sys.modules)
    if names != _loaded[0]:
        _loaded = names, list(filter(_shapes_code, names))
    return _loaded[1]


def _shapes_code(name: str) -> bool:
    top, *parts = name.split(".")
    return top == PACKAGE and not any(parts[: len(apart)] == [*apart] for apart in _APART)


@functools.cache
def _may_describe_code(kind: Any) -> bool:
    """Whether `packages` of instances of a class may be any. Most values of modules are plain ones."""
    if issubclass(kind, (*_WRAPPERS, *_CODE)) or dataclasses.is_dataclass(kind):
        return True
    callables: Any = Callable  # mypy does not take it as a class
    return issubclass(kind, callables) and not is_known(top_of(kind))


def _parts(description: Any) -> list[Any]:
    return [getattr(description, field.name) for field in dataclasses.fields(description)]


def _is_fixed(value: Any) -> bool:
    """Whether `packages` of a value stays what it is: no field of a description is assigned later."""
    if inner := functions_in(value):
        return all(map(_is_fixed, inner))
    if isinstance(value, type) or not dataclasses.is_dataclass(value):
        return True
    kind: Any = type(value)
    return kind.__dataclass_params__.frozen and all(map(_is_fixed, _parts(value)))


class _Contents:
    """The objects that a module, class or table referred to when it was last read, and which are the user's.

    The values are held: a freed object could otherwise be taken for a new one at its address.
    """

    __slots__ = ("_changing", "_found", "_keys", "_values", "is_plain")

    def __init__(self, owner: Any, place: str = "{}", inner: Container[str] = ()) -> None:
        """Read what `owner` refers to. `place` is the form of the places, with "{}" for the key; the values
        of the keys `inner` are not read.
        """
        pairs = list(enumerate(owner) if isinstance(owner, _SEQUENCES) else _names(owner).items())
        self._keys, self._values = [key for key, _ in pairs], [value for _, value in pairs]
        kinds: list[Any] = [type(value) for value in self._values]
        code = [
            (place.format(key), value)
            for (key, value), kind in zip(pairs, kinds, strict=True)
            if _may_describe_code(kind) and key not in inner
        ]
        self._found = [(where, value) for where, value in code if _is_fixed(value) and is_users(value)]
        self._changing = [(where, value) for where, value in code if not _is_fixed(value)]
        self.is_plain = not code

    def is_still_of(self, owner: Any) -> bool:
        """Whether `owner` refers to the very objects that were read."""
        if isinstance(owner, _SEQUENCES):
            return _are_same(owner, self._values)
        names = _names(owner)
        # The names of other values than the user's do not matter.
        is_named_same = not (self._found or self._changing) or _are_same(names, self._keys)
        return is_named_same and _are_same(names.values(), self._values)

    def users(self) -> Iterator[tuple[str, Any]]:
        """The user's objects, with their places."""
        yield from self._found
        yield from (item for item in self._changing if is_users(item[1]))


class _Module:
    """A module as it was last read. The tables in it and the classes that it defines change while the module
    refers to the same ones, so each is compared by itself.
    """

    __slots__ = ("_contents", "_inner", "_tables")

    def __init__(self, module: types.ModuleType) -> None:
        names = list(vars(module).items())
        apart = {key for key, _ in names if key.startswith("__")}
        self._tables = {
            key: value
            for key, value in names
            if key not in apart and (isinstance(value, _TABLES) or _defines(module, value))
        }
        self._contents = _Contents(module, inner=apart | self._tables.keys())
        self._inner: dict[str, _Contents] = {}

    def is_still_of(self, module: types.ModuleType) -> bool:
        """Whether `module` refers to the very objects that were read."""
        return self._contents.is_still_of(module)

    def users(self) -> Iterator[tuple[str, Any]]:
        """The user's objects, with their places."""
        yield from self._contents.users()
        for name, table in self._tables.items():
            known = self._inner.get(name)
            if known is None or not known.is_still_of(table):
                known = _Contents(table, f"{name}.{{}}" if isinstance(table, type) else f"{name}[{{!r}}]")
                # A table without code may be a cache of large objects, which are not held.
                if known.is_plain:
                    self._inner.pop(name, None)
                else:
                    self._inner[name] = known
            yield from known.users()


def _names(owner: Any) -> Mapping[Any, Any]:
    return owner if isinstance(owner, dict) else vars(owner)


def _defines(module: types.ModuleType, value: object) -> bool:
    return isinstance(value, type) and value.__module__ == module.__name__


def _are_same(some: Collection[Any], others: Collection[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


_modules: dict[str, _Module] = {}
_loaded: tuple[list[str], list[str]] = [], []
"""The names of all modules at the last search, and those of the modules that were searched."""
