"""C functions of a user's library compute matrix products instead of generated code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import CompileError
from tilewright.ir import plugins
from tilewright.ir.debug import VARIABLE
from tilewright.schedule.rules import RULES, register_schedule_rule
from tilewright.targets.llvm import libraries
from tilewright.targets.llvm.libraries import register_library, unregister_library

from ...installed_packages import installing

SOURCE = """
#include <stdint.h>

void acme_sgemm(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
                float *c, int64_t ldc) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float total = 0;
            for (int64_t p = 0; p < k; p++) total += a[i * lda + p] * b[p * ldb + j];
            c[i * ldc + j] = FACTOR * total;
        }
}
"""
"""FACTOR is 2 in tests that check whether the function was called."""

R = np.random.default_rng(0)
W, BIAS = R.normal(size=(48, 40)).astype(np.float32), R.normal(size=40).astype(np.float32)
X, TALL = (R.normal(size=(150, n)).astype(np.float32) for n in (48, 40))


def model(x: Any) -> Any:
    return tw.numpy.maximum(x @ tw.numpy.asarray(W) + tw.numpy.asarray(BIAS), 0)


def wanted(factor: float = 1) -> Any:
    return np.maximum(factor * (X @ W) + BIAS, 0)


def object_file(folder: Path, factor: int = 2, *flags: str) -> Path:
    (folder / "acme.c").write_text(SOURCE)
    command = [sys.executable, "-m", "ziglang", "cc", "-O2", *flags, "-fPIC", f"-DFACTOR={factor}", "-c"]
    subprocess.run([*command, "acme.c", "-o", "acme.o"], cwd=folder, check=True)
    return folder / "acme.o"


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the registrations of a test when it ends. Contractions that the library refuses use generated
    code.
    """
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(plugins, "_called", set())
    rules = dict(RULES)
    yield
    libraries.LIBRARIES.clear()
    RULES.clear()
    RULES.update(rules)


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The object file of a function that doubles the product, which shows whether it was called."""
    return object_file(tmp_path_factory.mktemp("twice"))


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_the_function_computes_the_product_and_the_artifact_contains_it(twice: Path, tmp_path: Path) -> None:
    generated = tw.compile(model, (X,), cache=False)
    register_library("acme", symbol="acme_sgemm", objects=[twice])
    library = tw.compile(model, (X,), cache=False)
    close(library(X), wanted(2))
    assert not library.report.slower
    assert "simd.external_gemm" in library.ir("loop") and "@acme_sgemm" in library.ir("llvm")
    path = library.save(tmp_path / "model.so")
    np.save(tmp_path / "x.npy", X)
    code = (
        "import sys, numpy as np, tilewright as tw\n"
        "library = tw.load(sys.argv[1])\n"
        "np.save(sys.argv[3], library(np.load(sys.argv[2])))\n"
    )
    files = [str(path), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    subprocess.run([sys.executable, "-c", code, *files], check=True, env=os.environ)
    close(np.load(tmp_path / "y.npy"), wanted(2))
    unregister_library("acme")
    again = tw.compile(model, (X,), cache=False)
    assert again.ir("llvm") == generated.ir("llvm") != library.ir("llvm")
    close(again(X), wanted())


def cases() -> dict[str, tuple[Any, tuple[Any, ...], Any]]:
    tnp = tw.numpy
    v = R.normal(size=(40, 48)).astype(np.float32)
    a, b = R.normal(size=(3, 20, 48)).astype(np.float32), R.normal(size=(3, 48, 40)).astype(np.float32)
    wide = R.normal(size=(48, 1100)).astype(np.float32)
    return {
        "no epilogue": (lambda x: x @ tnp.asarray(W), (X,), 2 * X @ W),
        "transposed weights": (lambda x: x @ tnp.asarray(v).T + 1, (X,), 2 * X @ v.T + 1),
        "two inputs": (lambda x, w: tnp.exp(-abs(x @ w)), (X, W), np.exp(-abs(2 * X @ W))),
        "one row": (lambda x: x @ tnp.asarray(W) + 1, (X[:1],), 2 * X[:1] @ W + 1),
        "batches": (lambda a, b: a @ b * 3, (a, b), 6 * a @ b),
        "rows of a batch": (lambda a: a @ tnp.asarray(W), (a,), 2 * a @ W),
        "several tiles of columns": (lambda x: x @ tnp.asarray(wide) + 1, (X,), 2 * X @ wide + 1),
        "part of a matrix": (lambda x, w: x[:, :24] @ w[24:, 8:], (X, W), 2 * X[:, :24] @ W[24:, 8:]),
    }


@pytest.mark.parametrize("case", cases())
def test_products_that_the_library_computes(twice: Path, case: str) -> None:
    function, inputs, result = cases()[case]
    register_library("acme", symbol="acme_sgemm", objects=[twice])
    library = tw.compile(function, inputs, cache=False)
    assert not library.report.slower
    close(library(*inputs), result)


def test_a_dynamic_number_of_rows(twice: Path) -> None:
    register_library("acme", symbol="acme_sgemm", objects=[twice])
    library = tw.compile(model, (X,), dims={"x": {0: "rows"}}, cache=False)
    close(library(X), wanted(2))
    close(library(X[:1]), wanted(2)[:1])


def test_a_library_for_webassembly(tmp_path: Path) -> None:
    pytest.importorskip("wasmtime")
    path = object_file(tmp_path, 2, "-target", "wasm32-freestanding")
    register_library("acme", symbol="acme_sgemm", objects=[path], target="wasm32")
    close(tw.compile(model, (X,), target="wasm32", cache=False)(X), wanted(2))
    close(tw.compile(model, (X,), cache=False)(X), wanted())


@pytest.mark.parametrize(
    ("function", "inputs", "why"),
    [
        (lambda x, y: x @ y.T, (X, X), "the right operand is packed into panels"),
        (lambda x: tw.numpy.swapaxes(x, 0, 1) @ x, (X,), "the left factor is not a row-major matrix"),
        (lambda x: tw.numpy.swapaxes(x, 0, 1) @ tw.numpy.asarray(TALL), (X,), "the left factor is not a row"),
        (lambda x: x[:, :9] @ tw.numpy.asarray(W[:9]), (X,), "does not accept m, n, k = 150, 40, 9"),
        (lambda x: x.astype("float64") @ tw.numpy.asarray(W.astype("float64")), (X,), "of types f64"),
    ],
)
def test_what_it_refuses_keeps_generated_code(twice: Path, function: Any, inputs: Any, why: str) -> None:
    expected = tw.compile(function, inputs, cache=False)(*inputs)
    register_library(
        "acme", symbol="acme_sgemm", objects=[twice], accepts=lambda m, n, k: k is None or k >= 16
    )
    library = tw.compile(function, inputs, cache=False)
    close(library(*inputs), expected)
    assert "external_gemm" not in library.ir("loop")
    (reason,) = library.report.slower.values()
    assert re.search(why, reason), reason


def test_the_cache_notices_registrations_and_contents(tmp_path: Path) -> None:
    compiled = [tw.compile(model, (X,))(X)]
    for factor in (2, 3):
        register_library("acme", symbol="acme_sgemm", objects=[object_file(tmp_path, factor)])
        compiled.append(tw.compile(model, (X,))(X))
    object_file(tmp_path, 4)
    with pytest.raises(CompileError, match=r"acme\.o has changed since it was registered"):
        tw.compile(model, (X,), cache=False)
    register_library(
        "acme", symbol="acme_sgemm", objects=[object_file(tmp_path, 3)], accepts=lambda m, n, k: False
    )
    compiled.append(tw.compile(model, (X,))(X))
    for y, factor in zip(compiled, (1, 2, 3, 1), strict=True):
        close(y, wanted(factor))


def test_a_static_library_of_a_package(twice: Path, tmp_path: Path) -> None:
    archive = tmp_path / "libacme.a"
    subprocess.run([sys.executable, "-m", "ziglang", "ar", "rc", archive, twice], check=True)
    code = (
        "from tilewright.targets.llvm.libraries import register_library\n"
        f"def register():\n    register_library('acme', symbol='acme_sgemm', objects=[{str(archive)!r}])\n"
    )
    with installing(tmp_path) as install:
        install("acme-sgemm", "acme_sgemm", code, "[tilewright.libraries]\nacme = acme_sgemm:register\n")
        library = tw.compile(model, (X,), cache=False)
        close(library(X), wanted(2))
        assert [x["name"] for x in library.metadata["target"]["libraries"]] == ["acme"]


def test_wrong_registrations_are_named(twice: Path, tmp_path: Path) -> None:
    def register(**changes: Any) -> None:
        register_library("acme", **{"symbol": "acme_sgemm", "objects": [twice], **changes})

    with pytest.raises(CompileError, match=r"library 'acme': cannot read .*no\.o"):
        register(objects=[tmp_path / "no.o"])
    with pytest.raises(CompileError, match=r"libacme\.so\.1 is a shared library"):
        register(objects=[tmp_path / "libacme.so.1"])
    with pytest.raises(CompileError, match="symbol 'a b' is not the name of a C function"):
        register(symbol="a b")
    with pytest.raises(CompileError, match="kind is 'rows'"):
        register(kind="rows")
    with pytest.raises(CompileError, match="tile is"):
        register(tile=(0, 8))
    register_schedule_rule("contraction", lambda s, rows: None, target="cpu")
    with pytest.raises(CompileError, match="another schedule rule for 'contraction' on target 'cpu'"):
        register()
    assert not libraries.LIBRARIES
