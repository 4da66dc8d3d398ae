"""Code of the user's that shapes what is compiled: operators, importers, passes, targets. The cache's keys hold its fingerprint.

Everything registers itself in tables of this package's modules, and whatever replaces a part of the compiler stands in its modules and classes. So
what is looked at is not what was registered, but what is there: each function and class of the compiler's modules that comes from elsewhere. It is told by its bytecode,
its closure and the globals that it reads, and these by theirs, so an edited helper counts as well as an edited operator. Python's library and packages that have
nothing to do with the user's code count with their version.
"""

from __future__ import annotations

import dis
import enum
import functools
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import disk_cache

_PACKAGE = __name__.partition(".")[0]
_APART = ("llm", "cli", "reduction", "verify")  # parts of this package that do not shape code
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range, slice)
_OWN_BUSINESS = (
    "__dict__",
    "__weakref__",
    "__module__",
    "__doc__",
    "_abc_impl",
    "__firstlineno__",
    "__static_attributes__",
)


class UnknownContents(Exception):
    """User's code refers to something whose contents cannot be told, so that no key could say when it changes."""


def fingerprint(*objects: Any) -> str:
    """Changes with all code from outside of this package that takes part in compiling, that of `objects` (a target) included; "" where there is none.

    Raises:
        UnknownContents: the message names what it is and who refers to it.
    """
    # A table that several modules import counts once: which modules are loaded differs from process to process.
    found = sorted(
        {(place, id(value)): (place, value) for place, value in _foreign()}.values(), key=lambda item: item[0]
    )
    found += [(f"argument {k}", x) for k, x in enumerate(objects) if _top(type(x)) != _PACKAGE]
    if not found:
        return ""
    walk = _Walk({_top(value) for _, value in found})
    return disk_cache.digest(*(f"{place}: {walk.text(value, place)}" for place, value in found))


def _foreign() -> Iterator[tuple[str, Any]]:
    """Functions and classes of other packages than known ones in this package's modules, their tables and classes, with their places in these."""
    for name, module in list(sys.modules.items()):
        parts = name.split(".") if name.startswith(_PACKAGE) else [""]
        if parts[0] != _PACKAGE or parts[1:2] and parts[1] in _APART or not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if key.startswith("__"):
                continue
            if isinstance(value, dict):
                yield from ((f"{key}[{k!r}]", v) for k, v in list(value.items()) if _is_users(v))
            elif isinstance(value, (list, tuple, set)):
                yield from ((f"{key}[{k}]", v) for k, v in enumerate(value) if _is_users(v))
            elif isinstance(value, type) and value.__module__ == name:
                yield from ((f"{key}.{k}", v) for k, v in list(vars(value).items()) if _is_users(v))
            elif _is_users(value):
                yield key, value


def _is_users(value: Any) -> bool:
    """Whether it is code from a file of the user's, an installed package that is none of the compiler's own dependencies, or typed in."""
    if isinstance(value, functools.partial):
        return _is_users(value.func)
    return isinstance(value, (types.FunctionType, types.MethodType, type)) and not _is_known(_top(value))


_DEPENDENCIES = {"numpy", "ml_dtypes", "llvmlite", "xxhash", "onnx", "torch", "jax", "jaxlib", "transformers", "platformdirs", "click", "rich", "typing_extensions"}  # fmt: skip


@functools.cache
def _is_known(top: str) -> bool:
    return top in sys.stdlib_module_names or top in _DEPENDENCIES or top in (_PACKAGE, "builtins", "")


def _top(value: Any) -> str:
    """The package, or module outside of packages, that a function or class was defined in."""
    module = getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


@functools.cache
def _version(top: str) -> str:
    """Of an installed package."""
    from importlib.metadata import PackageNotFoundError, version

    module = sys.modules.get(top)
    found = getattr(module, "__version__", None)
    if isinstance(found, str):
        return found
    try:
        return version(top)
    except PackageNotFoundError:
        return ""


@functools.cache
def _installed(file: str) -> bool:
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(Path(file).is_relative_to(place) for place in places if place)


class _Walk:
    """Writes objects as texts that change with what they do. `tops`: packages whose code is looked into wherever they lie."""

    def __init__(self, tops: set[str]) -> None:
        self.tops = tops
        self.numbers: dict[int, int] = {}
        self.held: list[Any] = []  # so that no number is given twice

    def text(self, value: Any, place: str) -> str:
        """A digest of an object's text.

        Raises:
            UnknownContents: something in it cannot be told.
        """
        return disk_cache.digest(*self._parts(value, place))

    def _parts(self, value: Any, place: str, names: frozenset[str] = frozenset()) -> Iterator[str]:
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}"
            return
        if not isinstance(
            value, (tuple, frozenset, types.CodeType)
        ):  # these may be one object or several, as it happens
            if id(value) in self.numbers:
                yield f"again {self.numbers[id(value)]}"
                # What is read of a module depends on who reads it.
                if not isinstance(value, types.ModuleType):
                    return
            self.numbers.setdefault(id(value), len(self.numbers))
            self.held.append(value)
        if isinstance(value, enum.Enum):
            yield f"member {type(value).__module__}.{type(value).__qualname__}.{value.name}"
        elif isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            yield f"{type(value).__name__} {len(value)}"
            for k, item in enumerate(value):
                yield from self._parts(item, f"{place}[{k}]", names)
        elif type(value) in (dict, types.MappingProxyType):
            yield from self._mapping(value, place, names)
        elif isinstance(value, (set, frozenset)):
            yield f"set {sorted(disk_cache.digest(*self._parts(item, place, names)) for item in value)}"
        elif isinstance(value, types.CodeType):
            yield from self._code(value, place)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value, place)
        elif isinstance(value, types.MethodType):
            yield "method"
            yield from self._parts(value.__func__, place)
            yield from self._parts(value.__self__, place)
        elif isinstance(value, types.ModuleType):
            yield from self._module(value, place, names)
        elif isinstance(value, type):
            yield from self._class(value, place)
        elif isinstance(value, (property, functools.cached_property, staticmethod, classmethod)):
            yield type(value).__name__
            for name in ("fget", "fset", "fdel", "func", "__func__"):
                if (part := getattr(value, name, None)) is not None:
                    yield from self._parts(part, place)
        else:
            yield from self._instance(value, place)

    def _mapping(self, value: Mapping[Any, Any], place: str, names: frozenset[str]) -> Iterator[str]:
        yield f"dict {len(value)}"
        for key, item in value.items():
            yield from self._parts(key, place, names)
            yield from self._parts(item, f"{place}[{key!r:.40}]", names)

    def _code(self, code: types.CodeType, place: str) -> Iterator[str]:
        yield repr(
            (code.co_name, code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        )
        yield repr((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags))
        yield getattr(code, "co_exceptiontable", b"").hex()
        for constant in code.co_consts:
            yield from self._parts(constant, place)

    def _function(self, function: types.FunctionType, place: str) -> Iterator[str]:
        if self._is_apart(function):
            yield self._name(function)
            return
        yield f"function {function.__qualname__}"
        yield from self._code(function.__code__, place)
        for part in (function.__defaults__, function.__kwdefaults__, function.__dict__):
            yield from self._parts(part, place)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                contents = cell.cell_contents
            except ValueError:  # not yet assigned
                continue
            yield from self._parts(contents, f"'{name}' in {place}")
        read, all_names = _names(function.__code__)
        for name in sorted(read):
            if name in function.__globals__:
                yield f"global {name}"
                found = function.__globals__[name]
                yield from self._parts(found, f"'{name}' in {function.__module__}", all_names)

    def _module(self, module: types.ModuleType, place: str, names: frozenset[str]) -> Iterator[str]:
        top = module.__name__.partition(".")[0]
        if self._is_top_apart(top):
            yield f"module {module.__name__} {_version(top)}"
            return
        yield f"module {module.__name__}"
        for name in sorted(names & vars(module).keys()):
            yield name
            found = vars(module)[name]
            if found is not module:
                yield from self._parts(found, f"'{name}' in {module.__name__}", names)

    def _class(self, cls: type, place: str) -> Iterator[str]:
        if self._is_apart(cls):
            yield self._name(cls)
            return
        yield f"class {cls.__module__}.{cls.__qualname__}"
        for base in (*cls.__bases__, type(cls)):
            yield from self._parts(base, place)
        for name, item in vars(cls).items():
            if name in _OWN_BUSINESS:
                continue
            yield name
            if name == "__annotations__":
                yield repr(item)
            elif not isinstance(item, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                yield from self._parts(item, f"{cls.__qualname__}.{name}")

    def _instance(self, value: Any, place: str) -> Iterator[str]:
        """By what pickling would write."""
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as error:
            raise UnknownContents(
                f"{place} is a {type(value).__qualname__}, whose contents cannot be told: {error}"
            ) from None
        yield f"instance {type(value).__module__}.{type(value).__qualname__}"
        if isinstance(reduced, str):
            yield reduced
            return
        for part in reduced[:3]:  # what makes it, of what, and its state
            yield from self._parts(part, place)
        for more in reduced[3:5]:  # iterators: elements, items
            yield from self._parts([tuple(x) if isinstance(x, tuple) else x for x in more or ()], place)

    def _is_apart(self, value: Any) -> bool:
        return self._is_top_apart(_top(value))

    def _is_top_apart(self, top: str) -> bool:
        """Whether code counts with its package's name and version."""
        if top in self.tops or top == "__main__":
            return False
        if _is_known(top):
            return True
        file = getattr(sys.modules.get(top), "__file__", None)
        return file is not None and _installed(file)

    def _name(self, value: Callable[..., Any] | type) -> str:
        return f"{value.__module__}.{value.__qualname__} {_version(_top(value))}"


def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals that a function and those inside of it read, and all names that occur, attributes included."""
    read: set[str] = set()
    names: set[str] = set(code.co_names)
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and isinstance(instruction.argval, str):
            read.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner_read, inner_names = _names(constant)
            read |= inner_read
            names |= inner_names
    return frozenset(read), frozenset(names)


__all__ = ["UnknownContents", "fingerprint"]
