"""The API reference lists everything that is public, and everything that it lists exists and has
docstrings.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tilewright as tw

from .pages import DOCS

REFERENCE = DOCS / "reference"


@cache
def listed() -> tuple[str, ...]:
    """The paths of the objects that the reference lists."""
    pages = sorted(REFERENCE.glob("*.md"))
    return tuple(name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE))


def find(path: str) -> Any:
    """The object at a path such as ``tilewright.nn.Linear``."""
    parts = path.split(".")
    for at in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:at]))
        except ModuleNotFoundError:
            continue
        for name in parts[at:]:
            value = getattr(value, name)
        return value
    raise AssertionError(f"there is no {path}")


def members(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Path and docstring of an object and of its public functions, classes and methods, which its page shows.

    A method without a docstring has that of the method that it overrides.
    """
    if isinstance(value, ModuleType):
        names = getattr(value, "__all__", None) or [
            name for name, item in vars(value).items() if getattr(item, "__module__", None) == value.__name__
        ]
        for name in names:
            item = getattr(value, name)
            if not name.startswith("_") and (inspect.isfunction(item) or inspect.isclass(item)):
                yield from members(f"{path}.{name}", item)
        return
    yield path, (value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__) or ""
    if inspect.isclass(value):
        fields = getattr(value, "__dataclass_fields__", {})
        for name in vars(value):
            if not name.startswith("_") and name not in fields and (texts := list(_docstrings(value, name))):
                yield f"{path}.{name}", "".join(texts)


def _docstrings(owner: type, name: str) -> Iterator[str]:
    """The docstrings of a method or property in a class and its bases; none if the name is neither."""
    for base in owner.__mro__:
        item = base.__dict__.get(name)
        item = (
            item.fget
            if isinstance(item, property)
            else getattr(item, "func", getattr(item, "__func__", item))
        )
        if inspect.isfunction(item):
            yield item.__doc__ or ""


@pytest.mark.parametrize("path", listed())
def test_what_is_listed_exists_and_is_described(path: str) -> None:
    if path == "tilewright.__version__":
        return
    for extra in ("torch", "jax", "llguidance"):
        if f".{extra}" in path:
            pytest.importorskip(extra)
    assert [name for name, text in members(path, find(path)) if not text.strip()] == []


def test_the_site_shows_what_python_finds() -> None:
    """The site shows the same kind of object for every listed path as Python finds. mkdocstrings reads source
    files, so it would show the wrong page for a path that is both a module and a function.
    """
    griffe = pytest.importorskip("griffe")
    package = griffe.load("tilewright", search_paths=[Path(tw.__file__).parents[1]])
    wrong = []
    for path in listed():
        shown = package[path.removeprefix("tilewright.")]
        shown = shown.final_target if shown.is_alias else shown
        value = find(path)
        kind = "module" if inspect.ismodule(value) else "class" if inspect.isclass(value) else "function"
        if callable(value) or inspect.ismodule(value):
            wrong += [path] if shown.kind.value != kind else []
    assert wrong == []


def test_every_public_name_is_listed() -> None:
    pages = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    missing = [name for name in tw.__all__ if f"tilewright.{name}" not in pages]
    missing = [
        name for name in missing if getattr(getattr(tw, name), "__module__", "") != "tilewright.errors"
    ]
    assert missing == []


def test_every_way_to_register_is_listed() -> None:
    """Every function ``register_...``, which is an extension point, is listed by itself or with its
    module.
    """
    package = Path(tw.__file__).parent
    missing = []
    for path in package.rglob("*.py"):
        module = ".".join(("tilewright", *path.relative_to(package).with_suffix("").parts))
        for name in re.findall(r"^def (register_\w+)", path.read_text(), re.MULTILINE):
            if not {module, f"{module}.{name}"} & set(listed()):
                missing.append(f"{module}.{name}")
    assert missing == []


def test_the_page_of_numpy_is_up_to_date() -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("numpy_names", DOCS / "tools" / "numpy_names.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (REFERENCE / "numpy.md").read_text() == "\n".join(module.lines()) + "\n", f"run {module.__doc__}"


# -- The contents of docstrings ----------------------------------------------------------------------------

INTERNAL = {"AssertionError", "AttributeError", "InternalError", "NotImplementedError", "StopIteration"}
"""Errors that a caller's mistake does not raise, and that of an attribute which the object lacks."""
ARRAYS = re.compile(r"\b(Tensor|TensorLike|Array|NDArray|ndarray|Floats)\b")
SHAPE = re.compile(r"[(\[](\.\.\.|\w+[',)\]])|\bshapes?\b")
QUANTITY = re.compile(r"(^|_)(timeout|seconds?|duration|interval|delay|bytes|size|rate|memory|capacity)$")
UNITS = re.compile(
    r"\b(nano|micro|milli)?seconds?\b|\b([KMG]i?)?[Bb]ytes?\b|\bbits?\b|\belements?\b|\bfeatures\b|\btokens?\b"
    r"|\bupdates\b"
)


def functions() -> dict[str, tuple[Any, str]]:
    """The public functions, classes and methods of this package on the pages, by path, with the docstrings
    that the site shows for them.
    """
    found = {}
    for path in listed():
        for name, text in members(path, find(path)) if ".torch" not in path else ():
            value = find(name)
            value = value.fget if isinstance(value, property) else getattr(value, "func", value)
            value = inspect.unwrap(getattr(value, "__func__", value))
            if not (inspect.isfunction(value) or inspect.isclass(value)):
                continue
            if str(value.__module__).startswith("tilewright"):
                text += texts_inside(value) if inspect.isclass(value) else ""
                found[name] = value, text
    return found


def texts_inside(value: type) -> str:
    """The docstrings of a class's constructor and fields."""
    body = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    assert isinstance(body, ast.ClassDef)
    fields = [
        n.value.value for n in body.body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
    ]
    return "\n".join([value.__init__.__doc__ or "", *map(str, fields)])


@cache
def definitions(module: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions and methods that a module defines, by qualified name."""
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[prefix + node.name] = node
            elif isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")

    collect(ast.parse(inspect.getsource(importlib.import_module(module))).body, "")
    return found


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's body without those of functions inside it."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield from own_nodes(node)


def raised(function: ast.AST) -> set[str]:
    """The names of the errors in the ``raise`` statements of a function."""
    names = set()
    for node in own_nodes(function):
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = error.attr if isinstance(error, ast.Attribute) else getattr(error, "id", "")
            names |= {name} if name[:1].isupper() else set()  # others are variables and functions
    return names - INTERNAL


def errors_of(value: Any) -> set[str]:
    """The errors that a function, or the constructor of a class, raises: itself, or in a function or method
    of the same module that it calls.
    """
    known, owner = definitions(value.__module__), value.__qualname__.rpartition(".")[0]
    starts = [value.__qualname__]
    if inspect.isclass(value):
        owner, starts = (
            value.__qualname__,
            [f"{value.__qualname__}.{n}" for n in ("__init__", "__post_init__")],
        )
    errors: set[str] = set()
    for function in (known[name] for name in starts if name in known):
        called = {function}
        for node in own_nodes(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called |= {known[node.func.id]} if node.func.id in known else set()
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                method = f"{owner}.{node.func.attr}"
                own = isinstance(node.func.value, ast.Name) and node.func.value.id in ("self", "cls")
                called |= {known[method]} if own and method in known else set()
        errors |= {error for f in called for error in raised(f)}
    return errors


def annotations_of(value: Any) -> dict[str, str]:
    """The annotations of parameters, fields and the result, as text."""
    return {name: str(kind) for name, kind in inspect.get_annotations(value).items()}


def test_docstrings_name_the_errors_that_a_caller_can_cause() -> None:
    missing = {
        name: errors
        for name, (value, text) in functions().items()
        if (errors := errors_of(value)) and "Raises:" not in text
    }
    assert missing == {}, "add a section 'Raises:' to these docstrings"


def has_constructor(value: type) -> bool:
    """Whether a class defines a constructor. That of a dataclass is generated from its fields."""
    return "__init__" in vars(value) and not is_dataclass(value) and not getattr(value, "_is_protocol", False)


def test_docstrings_name_every_parameter() -> None:
    """A docstring that refers to another function's arguments names those that differ."""
    missing = []
    for name, (value, text) in functions().items():
        if inspect.isclass(value) and not has_constructor(value):
            continue
        if re.search(r"\b[Aa]rguments\b|as of `", text):
            continue
        parameters = [
            p for p in inspect.signature(value).parameters if p not in ("self", "cls") and p[0] != "_"
        ]
        missing += [f"{name}({p})" for p in parameters if not re.search(rf"\b{p}\b", text)]
    assert missing == []


def test_entries_of_sections_begin_with_a_capital() -> None:
    wrong = []
    for name, (_, text) in functions().items():
        sections = re.findall(
            r"^(?:Args|Raises):\n((?: {4}.*(?:\n|$))+)", inspect.cleandoc(text), re.MULTILINE
        )
        wrong += [f"{name}: {e}" for s in sections for e in re.findall(r"^ {4}\S+: [a-z].*", s, re.MULTILINE)]
    assert wrong == []


def test_docstrings_state_the_shapes_of_arrays() -> None:
    missing = [
        name
        for name, (value, text) in functions().items()
        if not inspect.isclass(value)
        and any(map(ARRAYS.search, annotations_of(value).values()))
        and not SHAPE.search(text)
    ]
    assert missing == [], "state shapes, as in (..., n), or 'any shape'"


def test_docstrings_state_the_element_types_of_results() -> None:
    """The methods of `Tensor` that name none keep the tensor's, as the text of the class says."""
    types = re.compile(
        r"types?\b|dtype|\b(u?int|float)\d*\b|\bbools?\b|\b[if]\d\d\b|\bintegers?\b|rguments|as of `"
    )
    missing = [
        name
        for name, (value, text) in functions().items()
        if not inspect.isclass(value)
        and not name.startswith("tilewright.Tensor.")
        and ARRAYS.search(annotations_of(value).get("return", ""))
        and not types.search(text)
    ]
    assert missing == []


def test_functions_of_numpy_state_shapes() -> None:
    """The page says what the words "elementwise" and `axis` mean for shapes."""
    functions = {**vars(tw.numpy), **{f"linalg.{n}": f for n, f in vars(tw.numpy.linalg).items()}}
    names = [*tw.numpy.__all__, *(name for name in functions if name.startswith("linalg."))]
    missing = [
        name
        for name in names
        if inspect.isfunction(functions[name])
        and not SHAPE.search(functions[name].__doc__ or "")
        and not re.search(r"\b[Ee]lementwise\b|`axis`", functions[name].__doc__ or "")
    ]
    assert missing == []


def test_docstrings_state_the_units_of_quantities() -> None:
    missing = []
    for name, (value, text) in functions().items():
        for parameter, kind in annotations_of(value).items():
            if QUANTITY.search(parameter) and re.search(r"\b(int|float)\b", kind) and not UNITS.search(text):
                missing.append(f"{name}({parameter})")
    assert missing == [], "name the unit: seconds, bytes, elements"
