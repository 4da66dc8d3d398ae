"""The layout of the package: imports go in one direction, files stay short, and `import tilewright` stays
cheap.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright as tw

PACKAGE = Path(__file__).parents[1] / "src" / "tilewright"
MAX_LINES = 850

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "ir": {"errors"},
    "dialects": {"errors", "ir"},
    "analysis": {"errors", "ir", "dialects"},
    "autodiff": {"errors", "ir", "dialects"},
    "frontends": {"errors", "ir", "dialects", "autodiff"},
    "optim": {"errors", "ir", "frontends"},
    "passes": {"errors", "ir", "dialects", "analysis"},
    "schedule": {"errors", "ir", "dialects", "analysis", "artifact"},
    "lowering": {"errors", "ir", "dialects", "analysis", "passes", "schedule", "artifact"},
    "artifact": {"errors"},
    "runtime": {"errors", "artifact"},
    "targets": {
        "errors",
        "ir",
        "dialects",
        "analysis",
        "passes",
        "lowering",
        "schedule",
        "artifact",
        "runtime",
    },
}
"""The folders that each folder may import, besides itself."""
ALLOWED["driver"] = {*ALLOWED}
ALLOWED["kernels"] = {*ALLOWED}
ALLOWED["distributed"] = {*ALLOWED}
ALLOWED["tools"] = {*ALLOWED, ""}
ALLOWED["tuning"] = {*ALLOWED, ""}
ALLOWED["integrations"] = {*ALLOWED, ""}
ALLOWED["explorer"] = {*ALLOWED}
ALLOWED["llm"] = {*ALLOWED, ""}
ALLOWED["training"] = {*ALLOWED, ""}
ALLOWED["exporters"] = {"errors", "ir", "dialects", "passes"}
ALLOWED["quantization"] = {*ALLOWED}
ALLOWED["packages"] = {"errors", "artifact", "runtime", "targets", "driver"}
ALLOWED["cli"] = {*ALLOWED, ""}
TOP = ("nn", "numpy", "random", "")
"""Modules at the package's root, which only give names to objects of the folders."""

FILES = sorted(PACKAGE.rglob("*.py"))


def level(module: str) -> str:
    """Return the part of the package to which a dotted name such as "tilewright.ir.core" belongs; "" stands
    for the package itself.
    """
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> set[str]:
    """Return the absolute names of all tilewright modules that a file imports anywhere."""
    here = ("tilewright", *path.relative_to(PACKAGE).with_suffix("").parts)
    package = here if path.name != "__init__.py" else here[:-1]
    package = package[:-1] if path.name != "__init__.py" else package
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            found |= {".".join([*base, a.name]) for a in node.names} if len(base) == 1 else {".".join(base)}
    return {name for name in found if name.split(".")[0] == "tilewright"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    own = parts[0] if parts[0] not in ("__init__", "__main__") else ""
    if own in TOP:
        return
    upward = {
        name
        for name in imports(path)
        if level(name) != own and level(name) not in ALLOWED.get(own, set(ALLOWED))
    }
    assert not upward, f"{own} must not import {sorted(upward)}"


def module_of(path: Path) -> str:
    """Return the absolute dotted name of a file's module or package."""
    parts = ("tilewright", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def dependencies() -> dict[str, set[str]]:
    """Return the modules that each module imports anywhere, also under type checking. An import of a name
    from a package counts as its submodule of that name, or else as the package.
    """
    modules = {module_of(path): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
        imported: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                name = ".".join([*base, *(node.module.split(".") if node.module else [])])
                whole = {f"{name}.{alias.name}" for alias in node.names}
                imported |= {full if full in modules else name for full in whole}
        graph[module] = {name for name in imported if name in modules and name != module}
    return graph


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of modules that import each other, directly or through others."""

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        stack = list(graph[start])
        while stack:
            module = stack.pop()
            if module not in seen:
                seen.add(module)
                stack += graph[module]
        return seen

    below = {module: reachable(module) for module in graph}
    return {
        frozenset(other for other in below[module] if module in below[other])
        for module in graph
        if module in below[module]
    }


def test_circles_are_noticed() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert circles(graph) == {frozenset("abc")}


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """No modules import each other in a circle. Imports for type checking and inside functions count, too."""
    assert sorted(map(sorted, circles(dependencies()))) == []


def test_targets_do_not_know_each_other() -> None:
    """A target's folder is imported by that target only; `llvm`, the code generator of several targets, is
    shared.
    """
    for path in (PACKAGE / "targets").rglob("*.py"):
        own = path.relative_to(PACKAGE / "targets").parts[0]
        for name in imports(path):
            parts = name.split(".")
            if parts[1:2] == ["targets"] and len(parts) > 2 and own in ("cpu", "wasm", "webgpu", "llvm"):
                others = {"cpu", "wasm", "webgpu"} - {own}
                assert parts[2] not in others, f"{path.relative_to(PACKAGE)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_stay_short_and_say_what_they_are(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MAX_LINES
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "the module has no docstring"


def test_import_is_cheap() -> None:
    program = (
        "import sys; before = set(sys.modules); import tilewright as tw; "
        "tw.TilewrightError; print(*sorted({*sys.modules} - before))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    assert [m for m in loaded if m.startswith("tilewright")] == ["tilewright", "tilewright.errors"]
    assert len(loaded) < 60, "`import tilewright` must load few modules to stay fast"


def test_names_of_the_package_are_not_names_of_its_files() -> None:
    """No name of the package is that of a submodule, because importing the submodule would replace it."""
    assert not {path.stem for path in PACKAGE.iterdir()} & set(tw._HOME)
