"""The code of docs/extending/adding-a-frontend.md runs, both registered by a call and as an installed
package.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.caches import new_cache
from tests.installed_packages import installing

import tilewright as tw
from tilewright.driver.frontend_registry import register_frontend, unregister_frontend
from tilewright.errors import CompileError, UnsupportedOperatorError

from .pages import DOCS, code_blocks, run_page

PAGE = "extending/adding-a-frontend.md"
BLOCKS = code_blocks((DOCS / PAGE).read_text())
FRONTEND = next(code for kind, code, _ in BLOCKS if kind == "python")
(TOML,) = [code for kind, code, _ in BLOCKS if kind == "toml"]
ENTRY_POINTS = re.sub(
    r'"(.*)"$',
    r"\1",
    TOML.replace('project.entry-points."tilewright.frontends"', "tilewright.frontends"),
    flags=re.M,
)
NETWORK = """{"layers": [{"weights": [[1, -2], [0.5, 1]], "bias": [0, 1], "activation": "tanh"}]}"""
X = np.array([[1, 2], [3, -4], [0, 0.5]], np.float32)
Y = np.tanh(X @ np.array([[1, -2], [0.5, 1]], np.float32) + np.array([0, 1], np.float32))


def ir_text(folder: Path) -> Path:
    """The path of a model in the text form of the IR, which a built-in front end reads."""
    library = tw.compile(lambda x: x + x, (X,), cache=False)
    path = folder / "sum.tw"
    path.write_text(library.ir("graph"))
    return path


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "perceptron_frontend.py").write_text(FRONTEND)
    try:
        page = run_page(PAGE, tmp_path)
        assert "tanh" not in page["printed"][0][1] and "float32" in page["printed"][0][1]
        assert len(FRONTEND.splitlines()) < 100
        with pytest.raises(
            UnsupportedOperatorError, match="softsign .1x.: layer 0\n      instead: use identity, relu"
        ):
            tw.compile(page["Perceptron"]([(X, X[0], "softsign")]))
        with pytest.raises(CompileError, match="the model has no input 'z'; its inputs are x"):
            tw.compile(page["model"], {"z": X})
        (tmp_path / "bad.mlp").write_text("{}")
        with pytest.raises(CompileError, match=r"bad\.mlp: not a perceptron in JSON: KeyError"):
            tw.compile("bad.mlp")
        (tmp_path / "bad.mlp").write_text('{"layers": []}')
        with pytest.raises(CompileError, match="a perceptron has at least one layer"):
            tw.compile("bad.mlp")
        for shapes in (((2, 3), (2,)), ((2,), (2,)), ((2, 3), (1, 3))):
            model = page["Perceptron"]([(*(np.ones(shape, np.float32) for shape in shapes), "relu")])
            with pytest.raises(CompileError, match="layer 0 with 2 inputs has weights"):
                tw.compile(model)
        with pytest.raises(CompileError, match="axis 1 has the fixed size 4"):
            tw.compile(page["model"], dims={"x": {1: "features"}})
    finally:
        unregister_frontend("perceptron")
    with pytest.raises(
        CompileError, match=r"unknown kind of model '\.mlp'; known: \.onnx, \.pt2, \.mlir, \.tw$"
    ):
        tw.compile("net.mlp")


def test_an_installed_package(tmp_path: Path) -> None:
    with installing(tmp_path) as install:
        install("perceptron-frontend", "perceptron_frontend", FRONTEND, ENTRY_POINTS)
        (tmp_path / "net.mlp").write_text(NETWORK)
        np.testing.assert_allclose(tw.compile(tmp_path / "net.mlp", cache=False)(X), Y, rtol=1e-5, atol=1e-6)
        model = sys.modules["perceptron_frontend"].Perceptron([(np.eye(2, dtype=np.float32), X[0], "relu")])
        np.testing.assert_array_equal(tw.compile(model, cache=False)(X), np.maximum(X + X[0], 0))
    with pytest.raises(CompileError, match="unknown kind of model"):
        tw.compile(tmp_path / "net.mlp")


def test_a_built_in_model_imports_no_package(tmp_path: Path) -> None:
    model = ir_text(tmp_path)
    with installing(tmp_path) as install:
        install(
            "perceptron-frontend", "perceptron_frontend", "raise ImportError('is broken')\n", ENTRY_POINTS
        )
        (tmp_path / "net.mlp").write_text(NETWORK)
        np.testing.assert_array_equal(tw.compile(model, cache=False)(X), X + X)
        broken = r"package perceptron-frontend 1\.2.*cannot be loaded .ImportError: is broken"
        with pytest.raises(CompileError, match=broken):
            tw.compile(tmp_path / "net.mlp")
        with pytest.warns(UserWarning, match=broken):
            library = tw.compile(lambda x: x + x, (X,), cache=False)
        np.testing.assert_array_equal(library(X), X + X)


def test_the_cache_notices_an_edited_importer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached library is used in another process if the model's file and the importer's code are unchanged;
    an edited importer runs again.
    """
    new_cache(monkeypatch, tmp_path / "cache")
    (tmp_path / "net.mlp").write_text(NETWORK)
    program = "\n".join(
        (
            "import sys, tilewright as tw, numpy as np",
            "from tilewright.driver.frontend_registry import register_frontend",
            f"sys.path.insert(0, {str(tmp_path)!r})",
            "import perceptron_frontend",
            "register_frontend(perceptron_frontend.FRONTEND)",
            f"library = tw.compile({str(tmp_path / 'net.mlp')!r})",
            "print((library.report.cached, 'import' in library.report.seconds, library(np.ones((1, 2), "
            "np.float32)).tolist()))",
        )
    )

    def run(code: str) -> tuple[bool, bool, list[list[float]]]:
        (tmp_path / "perceptron_frontend.py").write_text(code)
        command = [sys.executable, "-B", "-c", program]  # without bytecode, which is told apart by seconds
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        result: tuple[bool, bool, list[list[float]]] = ast.literal_eval(done.stdout)
        return result

    first = run(FRONTEND)
    assert first[:2] == (False, True)
    assert run(FRONTEND) == (True, False, first[2])
    edited = FRONTEND.replace('"tanh": graph.Tanh', '"tanh": graph.Relu')
    assert run(edited)[:2] == (False, True)
    assert run(edited)[2] == [[1.5, 0.0]]
    assert run(FRONTEND.replace("dims['x'][0]", "dims[x]")) == (True, True, first[2])


def test_what_is_registered_is_checked() -> None:
    from tilewright.driver.frontend_registry import Frontend

    def read(*_: object) -> None:
        return None

    with pytest.raises(CompileError, match="front end 'a' accepts no model"):
        register_frontend(Frontend("a", read, "nothing"))  # type: ignore[arg-type]
    with pytest.raises(
        CompileError,
        match=r"front end 'b': the suffix 'mlp' must be lower-case and begin with a dot, as '\.onnx'",
    ):
        register_frontend(Frontend("b", read, "nothing", ("mlp",)))  # type: ignore[arg-type]


def test_a_base_is_known_by_its_top_level_package() -> None:
    from tilewright.driver.frontend_registry import has_base

    class Model(np.random.Generator):
        pass

    model = Model(np.random.PCG64())
    assert has_base(model, "numpy", "Generator") and has_base(model, "numpy.models", "Generator")
    assert not has_base(model, "numpy", "Model") and not has_base(model, "torch", "Generator")
