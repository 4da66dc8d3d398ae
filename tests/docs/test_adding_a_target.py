"""The toy target is an installable package, and docs/extending/adding-a-target.md shows and runs it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import loop, scalar
from tilewright.errors import CompileError, UnsupportedOperatorError
from tilewright.ir.builder import Builder
from tilewright.ir.plugins import forget_plugins
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import BufferType, f32
from tilewright.targets import registry

from .pages import DOCS, ROOT, code_blocks, run_page

PACKAGE = ROOT / "examples" / "toy_target"
PAGE = "extending/adding-a-target.md"
tnp = tw.numpy


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package as pip would: its module on the path, and its entry points in a dist-info
    folder.
    """
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "toy_target-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"]
    (folder / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items())
            for group, entries in groups.items()
        )
    )
    for path in (PACKAGE, tmp_path):
        monkeypatch.syspath_prepend(str(path))
    monkeypatch.setattr(registry, "TARGETS", dict(registry.TARGETS))
    monkeypatch.setattr(registry, "KNOWN_NAMES", dict(registry.KNOWN_NAMES))
    forget_plugins()
    yield
    forget_plugins()
    sys.modules.pop("toy_target", None)


def test_the_page_runs(installed: None) -> None:
    names = run_page(PAGE)
    assert "kernel_matmul" in names["toy"].ir("c")


def test_the_page_shows_the_package() -> None:
    code, project = ((PACKAGE / name).read_text() for name in ("toy_target.py", "pyproject.toml"))
    shown = [(kind, text) for kind, text, _ in code_blocks((DOCS / PAGE).read_text()) if kind != "python"]
    assert shown
    for kind, text in shown:
        assert text in {"py": code, "toml": project}[kind]


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: x @ tnp.asarray(np.arange(12, dtype=np.float32).reshape(6, 2)),
    "elementwise": lambda x: tnp.where(x > 0, tnp.exp(x), x * 2 - 1),
    "reductions": lambda x: (tnp.max(x, 0), tnp.sum(x * x)),
    "layout": lambda x: tnp.concatenate([x.T, x.T + 1], 0)[2:9],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_results_as_the_cpu(name: str, installed: None) -> None:
    x = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
    results, wanted = (tw.compile(PROGRAMS[name], (x,), target=target)(x) for target in ("toy", "cpu"))
    for a, b in zip(
        *((r if isinstance(r, tuple) else (r,)) for r in (results, wanted)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_symbolic_sizes(installed: None) -> None:
    x = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
    library = tw.compile(PROGRAMS["product"], (x,), target="toy", dims={"x": {0: "n<=50"}})
    for rows in (1, 3):
        np.testing.assert_allclose(
            library(x[:rows]), x[:rows] @ np.arange(12.0).reshape(6, 2), rtol=1e-5, atol=1e-5
        )


def test_what_it_cannot_express_is_named(installed: None) -> None:
    x = np.zeros((4, 6), np.float16)
    with pytest.raises(UnsupportedOperatorError, match=r"(?s)target toy cannot run.*has no float16 \(1x\)"):
        tw.compile(lambda x: x + 1, (x,), target="toy")


def choose(x: Any) -> Any:
    """A model with a branch."""
    return tw.cond(tnp.sum(x) > 0, lambda y: y * 3, lambda y: y, x)


def look_up(x: Any) -> Any:
    """A model that takes rows at computed indices."""
    return tnp.take(x, tnp.argmax(x, -1), 0)


REFUSED = {
    r"has no 'host\.if' \(1x\): .*test_adding_a_target": choose,
    r"has no 'loop\.load' with data-dependent indices \(1x\): gather": look_up,
    r"has no 'scalar\.pow' for f32 \(1x\): pow": lambda x: x**2.5,
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_it_does_not_run_is_refused(text: str, installed: None) -> None:
    with pytest.raises(UnsupportedOperatorError, match=text):
        tw.compile(REFUSED[text], (np.ones((4, 6), np.float32),), target="toy")


def test_unusual_values(installed: None) -> None:
    """The toy target and the cpu give the same results for NaN and infinite constants, a saturating cast, and
    a dimension whose name is a word of C.
    """
    x = np.array([[1, np.nan], [-np.inf, 1e20]], np.float32)

    def model(x: Any) -> Any:
        return tnp.where(x > 0, np.nan, -np.inf), x.astype("int64"), x != x, tnp.max(x)

    toy, cpu = (tw.compile(model, (x,), target=t, dims={"x": {0: "double"}}) for t in ("toy", "cpu"))
    for a, b in zip(toy(x), cpu(x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_carried_values_change_together(installed: None, tmp_path: Path) -> None:
    """All next values of a loop are computed from the current ones, as the exchange of two carried values
    shows.
    """
    import toy_target

    kernel = loop.Kernel(sym_name="exchange")
    result = kernel.body.add_arg(BufferType(f32, (2,)))
    b = Builder(kernel.body)
    first = [b(scalar.Constant(value=value, dtype=f32)) for value in (1.0, 2.0)]
    nest = loop.For(first, iv=symbol("i", 0, 2), combiners=("sum", "sum"))
    values = [nest.body.add_arg(f32) for _ in first]
    Builder(nest.body).insert(loop.Yield(values[::-1]))
    b.insert(nest)
    for k, value in enumerate(nest.results):
        b.insert(loop.Store(value, result, (), indices=(k,)))
    source, compiled, out = tmp_path / "k.c", tmp_path / "k.so", np.zeros(2, np.float32)
    source.write_text(toy_target.PRELUDE + toy_target.Printer(kernel).text())
    command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-o", compiled, source]
    subprocess.run(command, check=True)
    ctypes.CDLL(str(compiled)).kernel_exchange(out.ctypes.data_as(ctypes.c_void_p))
    assert out.tolist() == [2, 1]  # exchanged three times: an odd number


def test_levels_of_its_own(installed: None) -> None:
    library = tw.compile(lambda x: x + 1, (np.ones(3, np.float32),), target="toy")
    with pytest.raises(CompileError, match="no level 'asm'; known: graph, tensor, loop, host, c$"):
        library.ir("asm")


def test_it_is_listed_without_an_import(installed: None) -> None:
    sys.modules.pop("toy_target", None)
    with pytest.raises(CompileError, match="unknown target 'abacus'; known: this .*: cpu, .*; others: toy"):
        registry.resolve("abacus")
    assert "toy_target" not in sys.modules
