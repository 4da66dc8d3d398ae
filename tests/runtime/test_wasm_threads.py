"""WebAssembly with threads and relaxed SIMD, in wasmtime."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn
from tilewright.errors import CompileError
from tilewright.runtime.wasm import WasmLibrary

pytest.importorskip("wasmtime")

X = np.random.default_rng(0).standard_normal((96, 64), np.float32)


def model() -> Any:
    nn.seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32)).eval()


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    result: np.ndarray = tw.compile(model(), (X,), cache=False)(X)
    return result


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tw.compile(model(), (X,), target="wasm32:relaxed+threads", threads=1, cache=False)
    return library.save(tmp_path_factory.mktemp("threads") / "model.wasm")


def started(count: int) -> int:
    """The threads of this process beside `count`."""
    gc.collect()
    return threading.active_count() - count


@pytest.mark.parametrize("target", ["wasm32:relaxed", "wasm32:threads"])
@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_those_of_the_cpu(target: str, threads: int, expected: np.ndarray) -> None:
    with tw.compile(model(), (X,), target=target, threads=threads, cache=False) as library:
        assert library.num_threads == (threads if "threads" in target else 1)
        np.testing.assert_allclose(library(X), expected, rtol=1e-5, atol=1e-5)
        assert library.metadata["target"]["name"] == target


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_do_not_depend_on_the_threads(saved: Path, expected: np.ndarray, threads: int) -> None:
    with tw.load(saved, threads=threads) as library:
        first = library(X)
        np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-5)
        for _ in range(20):
            np.testing.assert_array_equal(library(X), first)


def test_threads_end_with_the_library(saved: Path) -> None:
    count = started(0)  # without those of libraries that other tests have forgotten
    library = tw.load(saved, threads=3)
    library(X)
    assert started(count) == 2
    library.close()
    assert started(count) == 0
    forgotten = tw.load(saved, threads=2)
    forgotten(X)
    assert started(count) == 1
    del forgotten
    assert started(count) == 0


def test_memory_does_not_leak(saved: Path) -> None:
    with tw.load(saved, threads=2) as library:
        assert isinstance(library, WasmLibrary)
        for _ in range(3):
            library(X)
        before = library._instance.memory_bytes
        for _ in range(50):
            library(X)
        assert library._instance.memory_bytes == before


def test_relaxed_code_has_fused_multiply_adds() -> None:
    codes = {t: tw.compile(model(), (X,), target=t).ir("asm") for t in ("wasm32", "wasm32:relaxed")}
    assert "relaxed_madd" in codes["wasm32:relaxed"]
    assert "relaxed_madd" not in codes["wasm32"]


def test_unknown_features_are_refused() -> None:
    with pytest.raises(CompileError, match="unknown feature 'simd256' of wasm32"):
        tw.compile(model(), (X,), target="wasm32:simd256")


def test_a_product_that_two_sums_read_is_rounded_once() -> None:
    """``x*y - x*y`` with one fused product would be the rounding error of the other."""

    def difference(x: Any) -> Any:
        product = x * 0.1
        return product - product

    x = np.linspace(1, 2, 100, dtype=np.float32)
    for target in ("cpu", "wasm32:relaxed"):
        np.testing.assert_array_equal(tw.compile(difference, (x,), target=target, cache=False)(x), 0 * x)
