"""Code of the user's that shapes what is compiled: operators, importers, passes, targets. The cache's keys
hold its fingerprint.

Extensions are registered in tables of this package's modules, and replacements of its functions stand in its
modules and classes. So the search does not follow registrations: it looks at every function and class in this
package's modules that comes from elsewhere. The fingerprint of code is made of its bytecode, its closure, and
the globals that it reads and modules that it imports, recursively, so an edited helper counts as well as an
edited operator. Python's library and packages that have nothing to do with the user's code count by their
version.
"""

from __future__ import annotations

import dis
import enum
import functools
import importlib
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..artifact import disk_cache
from .foreign_code import PACKAGE, foreign_code, functions_in, is_known, is_users, packages, top_of

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    range,
    slice,
)
_OWN_BUSINESS = (
    "__dict__",
    "__weakref__",
    "__slotnames__",  # kept by copying and pickling
    "__module__",
    "__doc__",
    "_abc_impl",
    "__firstlineno__",
    "__static_attributes__",
)


class UnknownContents(Exception):
    """The user's code refers to an object without a readable contents, so no key could change with it."""


def fingerprint(*objects: object) -> str:
    """A digest of all code from outside of this package that takes part in compiling, and of `objects`, such
    as a target; "" where there is none.

    Raises:
        UnknownContents: The message names the object and what refers to it.
    """
    # A table that several modules import counts once, since the loaded modules differ from process to
    # process.
    values = sorted(
        {(place, id(value)): (place, value) for place, value in foreign_code()}.values(),
        key=lambda item: item[0],
    )
    values += [(f"argument {k}", x) for k, x in enumerate(objects) if top_of(type(x)) != PACKAGE]
    if not values:
        return ""
    tops = {top for _, value in values for top in (*packages(value), top_of(type(value)))}
    walk = _Walk({top for top in tops if not is_known(top)})
    return disk_cache.digest(*(f"{place}: {walk.text(value, place)}" for place, value in values))


def fingerprint_of(function: Callable[..., Any]) -> str:
    """A digest of a function of the user's, and of all that it calls and reads; "" for a function of this
    package.

    Raises:
        UnknownContents: As `fingerprint`.
    """
    if not is_users(function):
        return ""
    return _Walk({top_of(function)}).text(function, function.__qualname__)


@functools.cache
def _version(top: str) -> str:
    """The version of an installed package."""
    from importlib.metadata import PackageNotFoundError, version

    module = sys.modules.get(top)
    version_of_module = getattr(module, "__version__", None)
    if isinstance(version_of_module, str):
        return version_of_module
    try:
        return version(top)
    except PackageNotFoundError:
        return ""


@functools.cache
def _installed(file: str) -> bool:
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(Path(file).is_relative_to(place) for place in places if place)


def _file_of(top: str) -> str | None:
    """The file of a top-level package or module that is not loaded; None: there is none."""
    spec = importlib.util.find_spec(top)
    return None if spec is None else spec.origin


class _Walk:
    """Writes objects as texts that change with their behaviour. `tops`: packages whose code is always read,
    wherever they are installed.
    """

    def __init__(self, tops: set[str]) -> None:
        self.tops = tops
        self.numbers: dict[int, int] = {}
        self.held: list[Any] = []  # so that no number is given twice

    def text(self, value: object, place: str) -> str:
        """A digest of an object's text.

        Raises:
            UnknownContents: A part of it has no readable contents.
        """
        return disk_cache.digest(*self._parts(value, place))

    def _parts(self, value: object, place: str, names: frozenset[str] = frozenset()) -> Iterator[str]:
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}"
            return
        if not isinstance(
            value, (tuple, frozenset, types.CodeType)
        ):  # equal ones may be one object or several
            if id(value) in self.numbers:
                yield f"again {self.numbers[id(value)]}"
                # The parts of a module that count depend on the code that reads it.
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
        elif isinstance(value, (dict, types.MappingProxyType)) and type(value) in (
            dict,
            types.MappingProxyType,
        ):
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
        elif not isinstance(value, functools.partial) and (functions := functions_in(value)):
            yield type(value).__name__
            for function in functions:
                yield from self._parts(function, place)
        else:
            yield from self._instance(value, place)

    def _mapping(self, value: Mapping[Any, Any], place: str, names: frozenset[str]) -> Iterator[str]:
        yield f"dict {len(value)}"
        for key, item in value.items():
            yield from self._parts(key, place, names)
            yield from self._parts(item, f"{place}[{key!r:.40}]", names)

    def _code(self, code: types.CodeType, place: str) -> Iterator[str]:
        yield repr(
            (
                code.co_name,
                code.co_code.hex(),
                code.co_names,
                code.co_varnames,
                code.co_freevars,
                code.co_cellvars,
            )
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
        read, imported, all_names = _names(function.__code__)
        for name in sorted(read):
            if name in function.__globals__:
                yield f"global {name}"
                contents_of_global = function.__globals__[name]
                yield from self._parts(contents_of_global, f"'{name}' in {function.__module__}", all_names)
        for name in sorted(imported):
            yield from self._import(name, function, all_names)

    def _import(self, name: str, function: types.FunctionType, names: frozenset[str]) -> Iterator[str]:
        """Describe a module that a function imports, "." before the names of neighbours."""
        try:
            name = importlib.util.resolve_name(name, function.__globals__.get("__package__"))
            top = name.partition(".")[0]
            if self._is_top_apart(top):  # It is not loaded.
                yield f"module {name} {_version(top)}"
                return
            importlib.import_module(name)
        except Exception:  # The function may have another way without it.
            yield f"no module {name}"
            return
        for found in dict.fromkeys((top, name)):
            yield from self._parts(sys.modules[found], f"'{found}' in {function.__module__}", names)

    def _module(self, module: types.ModuleType, place: str, names: frozenset[str]) -> Iterator[str]:
        top = module.__name__.partition(".")[0]
        if self._is_top_apart(top):
            yield f"module {module.__name__} {_version(top)}"
            return
        yield f"module {module.__name__}"
        for name in sorted(names & vars(module).keys()):
            yield name
            member = vars(module)[name]
            if member is not module:
                yield from self._parts(member, f"'{name}' in {module.__name__}", names)

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

    def _instance(self, value: object, place: str) -> Iterator[str]:
        """Describe an object by the parts that pickling would write."""
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as error:
            raise UnknownContents(
                f"{place} is a {type(value).__qualname__}, whose contents cannot be determined: {error}"
            ) from None
        yield f"instance {type(value).__module__}.{type(value).__qualname__}"
        if isinstance(reduced, str):
            yield reduced
            return
        for part in reduced[:3]:  # constructor, arguments, state
            yield from self._parts(part, place)
        for more in reduced[3:5]:  # iterators: elements, items
            yield from self._parts([tuple(x) if isinstance(x, tuple) else x for x in more or ()], place)

    def _is_apart(self, value: object) -> bool:
        return self._is_top_apart(top_of(value))

    def _is_top_apart(self, top: str) -> bool:
        """Whether code counts by its package's name and version."""
        if top in self.tops or top == "__main__":
            return False
        if is_known(top):
            return True
        module = sys.modules.get(top)
        file = getattr(module, "__file__", None) if module is not None else _file_of(top)
        return file is not None and _installed(file)

    def _name(self, value: Callable[..., Any] | type) -> str:
        return f"{value.__module__}.{value.__qualname__} {_version(top_of(value))}"


def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The globals that a function and its inner functions read; the modules that they import, with a "." for
    each level of a relative import; and all names in their code, attributes included.
    """
    read: set[str] = set()
    imported: set[str] = set()
    names: set[str] = set(code.co_names)
    constants: list[Any] = []
    for instruction in dis.get_instructions(code):
        value = instruction.argval
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and isinstance(value, str):
            read.add(value)
        elif instruction.opname.startswith(("LOAD_CONST", "LOAD_SMALL_INT")):
            constants.append(value)
        elif instruction.opname == "IMPORT_NAME":
            level, _ = constants[-2:]  # the names that are imported from the module
            imported.add("." * level + value)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for found, more in zip((read, imported, names), _names(constant), strict=True):
                found |= more
    return frozenset(read), frozenset(imported), frozenset(names)


__all__ = ["UnknownContents", "fingerprint", "fingerprint_of"]
