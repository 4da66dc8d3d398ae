"""Front ends: which one imports which kind of model.

A `Frontend` says what it reads and how. The front ends of this package are listed in `builtin_frontends`;
others are added by `register_frontend`, or announced by an installed package as an entry point of the group
``tilewright.frontends`` that names a `Frontend`. The frameworks themselves are imported when a model of their
kind is imported.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CompileError
from ..ir.plugins import plugins

if TYPE_CHECKING:
    from ..frontends.dims import DimsArgument
    from ..ir.core import Module

Examples = Sequence[Any] | None
"""Example inputs by position; None where the caller gave none."""
Importer = Callable[[Any, Examples, dict[str, Any], "DimsArgument | None"], "Module"]
"""Model (an object, or a `Path`), examples by position, examples by name, dynamic dimensions -> graph-level
module.

A front end raises `CompileError` for a model that it cannot import, and `UnsupportedOperatorError` with a
list of all operators that have no translation.
"""

ENTRY_POINTS = "tilewright.frontends"
"""Group of entry points. The value of each is a `Frontend`."""


@dataclass(frozen=True)
class Frontend:
    """How one kind of model is imported.

    Args:
        name: The front end's name, for messages; one registered later replaces an earlier one of the same
            name.
        import_model: The importer, called as ``import_model(model, args, kwargs, dims)``. Import the
            framework inside of it.
        reads: The kind of model, as an error message lists it, e.g. ``"an onnx.ModelProto"``.
        suffixes: Suffixes of the files that it reads, e.g. ``(".onnx",)``.
        matches: Whether it reads an object, or the `Path` of a folder. Decide without importing the
            framework: see `has_base`.
        uses_examples: Whether the importer takes example inputs. If not, the names of examples are compared
            with the module's inputs after the import.
        other_files: The files beside a model file, in an order of their own, that its import may read. With
            it, a file that has been compiled before is found in the cache without being imported. None: the
            files are not known, and the model is imported each time before the cache is looked up.
    """

    name: str
    import_model: Importer
    reads: str
    suffixes: tuple[str, ...] = ()
    matches: Callable[[Any], bool] | None = None
    uses_examples: bool = True
    other_files: Callable[[Path], Sequence[Path]] | None = None

    def accepts(self, model: object) -> bool:
        """Whether this front end reads `model`: a file by its suffix, anything else by `matches`."""
        if isinstance(model, Path) and not model.is_dir():
            return model.suffix.lower() in self.suffixes
        return self.matches is not None and self.matches(model)


_REGISTERED: dict[str, Frontend] = {}
"""Front ends from outside, in the order of their registration."""


def register_frontend(frontend: Frontend) -> Frontend:
    """Add a front end for this process and return it. It is asked before those registered earlier.

    Args:
        frontend: The front end; it replaces an earlier one of the same name.

    Raises:
        CompileError: It matches no object and has no suffix, or a suffix lacks its dot or has capital
            letters.
    """
    if frontend.matches is None and not frontend.suffixes:
        raise CompileError(
            f"front end {frontend.name!r} accepts no model: give it suffixes, matches, or both"
        )
    for suffix in frontend.suffixes:
        if not suffix.startswith(".") or suffix != suffix.lower():
            raise CompileError(
                f"front end {frontend.name!r}: the suffix {suffix!r} must be lower-case and begin with a "
                "dot, as '.onnx'"
            )
    _REGISTERED.pop(frontend.name, None)
    _REGISTERED[frontend.name] = frontend
    return frontend


def unregister_frontend(name: str) -> None:
    """Remove the front end called `name` that `register_frontend` added; those of this package cannot be
    removed. A name that is not registered is ignored.
    """
    _REGISTERED.pop(name, None)


def _from_packages(skip_broken: bool) -> Iterator[Frontend]:
    """The front ends of installed packages, each imported when it is reached."""
    for plugin in plugins(ENTRY_POINTS).values():
        try:
            frontend = plugin.load()
        except CompileError as error:
            if not skip_broken:
                raise
            warnings.warn(str(error), stacklevel=2)
            continue
        if not isinstance(frontend, Frontend):
            raise CompileError(f"{plugin.describe()}: names a {type(frontend).__name__}, not a Frontend")
        yield frontend


def frontends(skip_broken: bool = False) -> Iterator[Frontend]:
    """All front ends, in the order in which they are asked.

    With `skip_broken` a package that cannot be loaded is skipped with a warning.

    Registered ones come first, the latest before earlier ones; then those of this package, then those of
    installed packages. The front end for Python functions comes last, since models of several frameworks are
    callable.

    Raises:
        CompileError: Without `skip_broken`, an installed package cannot be loaded; or one names something
            that is not a `Frontend`.
    """
    builtin = import_module(".builtin_frontends", __package__)  # which imports this module
    yield from reversed(_REGISTERED.values())
    yield from builtin.BUILTIN
    yield from _from_packages(skip_broken)
    yield builtin.PYTHON_FUNCTION


def find_frontend(model: object) -> Frontend:
    """The front end that reads a model: an object, or the path of a file or folder.

    Raises:
        CompileError: No such file, or no front end reads this kind of model; the message lists what is read.
    """
    if isinstance(model, (str, Path)):
        model = Path(model)
        if not model.exists():
            raise CompileError(f"{model}: no such file")
    # A plain function has its own front end, so it compiles though some package's front end is broken.
    for frontend in frontends(skip_broken=inspect.isroutine(model)):
        if frontend.accepts(model):
            return frontend
    suffixes = ", ".join(dict.fromkeys(suffix for frontend in frontends() for suffix in frontend.suffixes))
    if not isinstance(model, Path):
        kinds = ", ".join(frontend.reads for frontend in frontends())
        raise CompileError(f"cannot compile a {type(model).__name__}: expected a path ({suffixes}), {kinds}")
    if model.is_dir():
        raise CompileError(
            f"{model}: is a folder that no front end reads; give the model file in it ({suffixes})"
        )
    raise CompileError(f"{model}: unknown kind of model {model.suffix!r}; known: {suffixes}")


def import_model(
    model: object,
    args: Sequence[Any] | Mapping[str, Any] | None,
    kwargs: Mapping[str, Any] | None,
    dims: DimsArgument | None,
    frontend: Frontend | None = None,
) -> Module:
    """Import a model of any kind.

    Args:
        model: An object, a path, or a dictionary of functions: name to a model or ``(model, args, dims)``.
        args: Example inputs by position, or all by name.
        kwargs: Example inputs by name.
        dims: Names and bounds of dynamic dimensions, by input and axis.
        frontend: The front end, where `find_frontend` has been called already.

    Returns:
        A new module at the graph level.

    Raises:
        CompileError: No front end reads this kind of model, or an example is given for no input or twice.
    """
    kwargs = dict(kwargs or {})
    if isinstance(args, Mapping):
        if twice := sorted(set(args) & set(kwargs)):
            raise CompileError(f"the example of '{twice[0]}' is given twice, in args and in kwargs")
        kwargs = {**args, **kwargs}
        args = None
    if isinstance(model, Mapping):
        if args is not None or kwargs or dims:
            raise CompileError(
                "a library of several functions takes arguments for each of them: {'name': (model, args, "
                "dims), ...}"
            )
        return _import_functions(model)
    frontend = frontend or find_frontend(model)
    module = frontend.import_model(Path(model) if isinstance(model, str) else model, args, kwargs, dims)
    if not frontend.uses_examples:
        _check_example_names(module, kwargs)
    return module


def _import_functions(models: Mapping[str, Any]) -> Module:
    """A module with one function for each of several models of one function; a function has its model's key
    as name."""
    from ..dialects.func import entries, shared_states
    from ..ir.core import Module

    module = Module()
    for name, entry in models.items():
        model, args, dims = (*entry, None, None)[:3] if isinstance(entry, tuple) else (entry, None, None)
        functions = entries(import_model(model, args, {}, dims))
        if len(functions) != 1 or not name.isidentifier():
            what = "an identifier as name" if len(functions) == 1 else "a model of one function"
            raise CompileError(
                f"function {name!r} of the library: give {what} (the model has {len(functions)})"
            )
        (function,) = functions
        function.detach()
        function.sym_name = name
        module.body.append(function)
    if not models:
        raise CompileError("a library needs at least one function")
    shared_states(entries(module))
    return module


def _check_example_names(module: Module, kwargs: Mapping[str, Any]) -> None:
    """Raises CompileError: an example is given for a name that is no input of the module."""
    from ..dialects.func import entries

    names = {name for function in entries(module) for name in function.arg_names}
    if unknown := sorted(set(kwargs) - names):
        raise CompileError(
            f"the model has no input '{unknown[0]}'; its inputs are {', '.join(sorted(names)) or 'none'}"
        )


def has_base(model: object, package: str, name: str) -> bool:
    """Whether an object's class, or a base of it, is the class `name` of a module in `package`.

    Only the top-level package is compared, so `package` may be the name of any module in it. The package is
    not imported: ``has_base(model, "torch", "Module")`` is true for a `torch.nn.Module`.
    """
    top_level = package.partition(".")[0]
    return any(
        base.__name__ == name and base.__module__.partition(".")[0] == top_level
        for base in type(model).__mro__
    )


__all__ = [
    "ENTRY_POINTS",
    "Examples",
    "Frontend",
    "Importer",
    "find_frontend",
    "frontends",
    "has_base",
    "import_model",
    "register_frontend",
    "unregister_frontend",
]
