"""The API reference lists everything that is public, and everything that it lists exists and has
docstrings.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
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
