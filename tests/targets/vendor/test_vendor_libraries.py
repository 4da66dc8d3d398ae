"""Products by vendors' libraries: MKL and oneDNN on the CPU, cuBLASLt on a simulated device."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.artifact import link
from tilewright.artifact.vendor_libraries import LIBRARIES, make_known
from tilewright.errors import ArtifactError, CompileError
from tilewright.runtime.simulated_device import SimulatedDriver

rng = np.random.default_rng(0)

STAND_IN = """
#include <stdint.h>
#define SHOWN __attribute__((visibility("default")))
#define GEMM(name, type) \\
  SHOWN void name(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, type alpha, const type* a, \\
                  int64_t lda, const type* b, int64_t ldb, type beta, type* c, int64_t ldc) { \\
    if (order != 101 || ta != 111) return; \\
    for (int64_t i = 0; i < m; i++) \\
      for (int64_t j = 0; j < n; j++) { \\
        type total = 0; \\
        for (int64_t p = 0; p < k; p++) \\
          total += a[i * lda + p] * (tb == 112 ? b[j * ldb + p] : b[p * ldb + j]); \\
        c[i * ldc + j] = alpha * total + (beta ? beta * c[i * ldc + j] : 0); \\
      } \\
    __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED); \\
  }
SHOWN int calls, threads = 5;
GEMM(cblas_sgemm_64, float)
GEMM(cblas_dgemm_64, double)
SHOWN int MKL_Set_Num_Threads_Local(int count) {
  int before = threads;
  threads = count;
  return before;
}
"""


def shared_library(folder: Path, text: str) -> Path:
    triple = llvm.get_process_triple()
    path = folder / "library.so"
    data = link.compile_text(text, "library.c", triple, ["-O2"], "")
    link.link_shared([data], path, triple, ["cblas_*", "MKL_*", "calls", "threads"])
    return path


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


WEIGHT, BIAS = normal(33, 40), normal(40)


def layers(x: tw.Tensor, q: tw.Tensor) -> Any:
    """A product with a bias, one without, and batched ones of one and of two tensors."""
    y = tnp.maximum(x @ tnp.asarray(WEIGHT) + tnp.asarray(BIAS), 0)
    z = y @ tnp.swapaxes(tnp.asarray(WEIGHT), 0, 1)
    scores = q @ tnp.swapaxes(q, -1, -2)
    return z, scores @ q


def expected(x: np.ndarray, q: np.ndarray) -> Any:
    z = np.maximum(x @ WEIGHT + BIAS, 0) @ WEIGHT.T
    return z, q @ q.swapaxes(-1, -2) @ q


def check(library: Any) -> None:
    """Compare with NumPy for several sizes."""
    for batch, length in ((3, 7), (1, 1), (2, 16)):
        x, q = normal(batch, 20, 33), normal(batch, 4, length, 5)
        for y, wanted in zip(library(x, q), expected(x, q), strict=True):
            np.testing.assert_allclose(y, wanted, rtol=1e-3, atol=1e-3)


def compiled(libraries: Any, target: str = "cpu", **options: Any) -> Any:
    x, q = normal(2, 20, 33), normal(2, 4, 7, 5)
    dims = {"x": {0: "batch"}, "q": {0: "batch", 2: "length"}}
    return tw.compile(layers, (x, q), dims=dims, libraries=libraries, target=target, **options)


def test_calls_are_made_with_rows_shared_by_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shared_library(tmp_path, STAND_IN)
    monkeypatch.setenv("TILEWRIGHT_MKL", str(path))
    library = compiled("mkl", threads=2)
    assert library.report.libraries == {
        "mkl_f32_nn": 2,
        "mkl_f32_nt_batched": 1,
        "mkl_f32_nn_batched": 1,
    }
    check(library)
    opened = ctypes.CDLL(str(path))
    assert ctypes.c_int.in_dll(opened, "calls").value >= 12
    assert ctypes.c_int.in_dll(opened, "threads").value in (1, 5)
    check(tw.load(library.save(tmp_path / "model.so")))


def test_double_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_MKL", str(shared_library(tmp_path, STAND_IN)))
    a, b = normal(5, 6, dtype=np.float64), normal(6, 7, dtype=np.float64)
    library = tw.compile(lambda a, b: a @ b, (a, b), libraries=["onednn", "mkl"])
    assert library.report.libraries == {"mkl_f64_nn": 1}
    np.testing.assert_allclose(library(a, b), a @ b, rtol=1e-12)


@pytest.mark.parametrize("name", ["mkl", "onednn"])
def test_installed_libraries(name: str) -> None:
    if not make_known(name):
        try:
            ctypes.CDLL(LIBRARIES[name].files[0])
        except OSError:
            pytest.skip(f"{name} is not installed")
    library = compiled(name)
    assert all(kernel.startswith(name) for kernel in library.report.libraries)
    assert sum(library.report.libraries.values()) == 4
    check(library)


def test_an_absent_library_is_named_at_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_ONEDNN", str(tmp_path / "nowhere.so"))
    path = compiled("onednn").save(tmp_path / "model.so")
    with pytest.raises(ArtifactError, match=r"'onednn', but .*nowhere\.so was not found.*pip install onednn"):
        tw.load(path)


def test_a_library_without_a_function_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = STAND_IN.replace("GEMM(cblas_dgemm_64, double)", "")
    monkeypatch.setenv("TILEWRIGHT_MKL", str(shared_library(tmp_path, text)))
    path = compiled("mkl").save(tmp_path / "model.so")
    with pytest.raises(ArtifactError, match="'mkl' has no function cblas_dgemm_64"):
        tw.load(path)


def test_unknown_libraries_and_other_targets() -> None:
    with pytest.raises(CompileError, match="'blis' is unknown; known are mkl, onednn, cublas, cudnn"):
        compiled("blis")
    with pytest.raises(CompileError, match="'cublas' is for the target cuda"):
        compiled("cublas")


def test_recorded_timings_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = STAND_IN.replace("if (order != 101", "usleep(3000); if (order != 101")
    path = shared_library(tmp_path, "int usleep(unsigned);\n" + slow)
    monkeypatch.setenv("TILEWRIGHT_MKL", str(path))
    database = tmp_path / "timings.jsonl"
    args = normal(4, 8), normal(8, 8)

    def two(x: tw.Tensor, y: tw.Tensor) -> tw.Tensor:
        return (x @ y) @ tnp.asarray(WEIGHT[:8, :5])

    first, second = tw.measure_libraries(two, args, libraries=["mkl"], database=database)
    assert (first.library, second.library) == ("", "")
    assert first.seconds["mkl"] > 0.003 > first.seconds[""]
    assert first.structure == "product f32_nn of 1 x 4 x 8 x 8"
    assert second.structure == "product f32_nn of 1 x 4 x 5 x 8 by a constant"
    assert tw.compile(two, args, libraries="mkl", tuned=database).report.libraries == {}
    # A product without a record is computed as asked for.
    assert tw.compile(two, (normal(9, 8), args[1]), libraries="mkl", tuned=database).report.libraries
    assert tw.measure_libraries(two, args, libraries=["mkl"], database=database) == []


def test_a_faster_library_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_MKL", str(shared_library(tmp_path, STAND_IN)))
    race = "tilewright.tools.measure_libraries._race"
    monkeypatch.setattr(race, lambda runs: {name: 1.0 if name else 2.0 for name in runs})
    database, args = tmp_path / "timings.jsonl", (normal(4, 8), normal(8, 8))
    (found,) = tw.measure_libraries(lambda x, y: x @ y, args, libraries="mkl", database=database)
    assert found.library == "mkl"
    library = tw.compile(lambda x, y: x @ y, args, libraries=["onednn", "mkl"], tuned=database)
    assert library.report.libraries == {"mkl_f32_nn": 1}
    np.testing.assert_allclose(library(*args), args[0] @ args[1], rtol=1e-5)


def test_cublas_on_a_simulated_device(driver: SimulatedDriver, tmp_path: Path) -> None:
    library = compiled("cublas", "cuda")
    assert library.report.libraries == {
        "cublas_f32_nn_bias": 1,
        "cublas_f32_nn": 1,
        "cublas_f32_nt_batched": 1,
        "cublas_f32_nn_batched": 1,
    }
    # The workspace lies in the arena.
    assert "4194304" in library.report.memory["arena"]
    check(library.simulated(checked=True))
    assert driver.counters()["library_calls"] == 12
    check(tw.load(library.save(tmp_path / "model.so"), simulate="checked"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("transposed", "batched"), itertools.product((False, True), repeat=2))
def test_cublas_forms(driver: SimulatedDriver, dtype: str, transposed: bool, batched: bool) -> None:
    numpy = tw.bf16.numpy if dtype == "bfloat16" else np.dtype(dtype)
    lead = (3,) if batched else ()
    a = normal(*lead, 5, 9).astype(numpy)
    b = normal(*lead, *((6, 9) if transposed else (9, 6))).astype(numpy)

    def product(a: tw.Tensor, b: tw.Tensor) -> tw.Tensor:
        return a @ (tnp.swapaxes(b, -1, -2) if transposed else b)

    library = tw.compile(product, (a, b), target="cuda", libraries="cublas")
    (name,) = library.report.libraries
    assert ("_nt" in name) == transposed and ("batched" in name) == batched
    wide = b.astype(np.float64).swapaxes(-1, -2) if transposed else b.astype(np.float64)
    wanted = a.astype(np.float64) @ wide
    tolerance = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    result = np.asarray(library.simulated(checked=True)(a, b)).astype(np.float64)
    np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance)
    assert driver.counters()["library_calls"] == 1


def test_inputs_at_any_element(driver: SimulatedDriver) -> None:
    """A product of parts of a tensor, whose addresses are aligned to an element only."""
    x = normal(2, 1 + 5 * 8 + 8 * 4)

    def model(x: tw.Tensor) -> tw.Tensor:
        row = tnp.reshape(x, (-1,))
        return row[1:41].reshape(5, 8) @ row[41:73].reshape(8, 4)

    library = tw.compile(model, (x,), target="cuda", libraries="cublas")
    flat = x.reshape(-1)
    wanted = flat[1:41].reshape(5, 8) @ flat[41:73].reshape(8, 4)
    np.testing.assert_allclose(library.simulated(checked=True)(x), wanted, rtol=1e-4, atol=1e-4)


def test_products_in_graphs(driver: SimulatedDriver) -> None:
    """Runs that repeat replay one graph, which contains the product."""
    a, b = normal(4, 6), normal(6, 3)
    library = tw.compile(lambda a, b: tnp.tanh(a @ b) + a[:, :3], (a, b), target="cuda", libraries="cublas")
    simulated = library.simulated(checked=True)
    driver.reset()
    for _ in range(6):
        a = normal(4, 6)
        np.testing.assert_allclose(simulated(a, b), np.tanh(a @ b) + a[:, :3], rtol=1e-4, atol=1e-5)
    counters = driver.counters()
    assert counters["library_calls"] == 6 and counters["graph_launches"] > 0


def test_empty_results(driver: SimulatedDriver) -> None:
    a, b = normal(2, 6), normal(6, 3)
    library = tw.compile(
        lambda a, b: a @ b, (a, b), target="cuda", libraries="cublas", dims={"a": {0: "0<=rows<=9"}}
    )
    assert library.simulated()(normal(0, 6), b).shape == (0, 3)
