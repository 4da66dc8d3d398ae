"""Whole models on devices: OpenCL, Vulkan and WebGPU by this machine's drivers, CUDA, HIP and Metal on
simulated devices. Their results equal those of the interpreter or of the CPU.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import devices
from tests.caches import new_cache
from tests.devices import lacks
from tests.models.test_control_flow import compare, doubled_until, one_of_two, positive_elements
from tests.quantization.models import Mixed, images, made

import tilewright as tw
from tilewright.errors import ArtifactError, CompileError, DeviceError, OutOfRangeError
from tilewright.runtime.device_library import DeviceLibrary
from tilewright.runtime.simulated_device import SIMULATED, simulated_driver
from tilewright.runtime.webgpu import WebgpuLibrary

RNG = np.random.default_rng(5)


@pytest.fixture(scope="module", params=["opencl", "cuda", "hip", "metal", "vulkan", "webgpu"])
def target(request: pytest.FixtureRequest) -> str:
    if reason := lacks(request.param):
        pytest.skip(reason)
    name: str = request.param
    return name


def running(library: Any) -> Any:
    """A library that runs here: on a simulated device, which is faster without checks where others check."""
    assert isinstance(library, DeviceLibrary | WebgpuLibrary)
    return devices.running(library, checked=library.metadata["target"]["name"] != "cuda")


def test_a_network_of_dynamic_size(target: str, tmp_path: Path) -> None:
    tw.nn.seed(0)
    layers = tw.nn.Sequential(tw.nn.Linear(24, 40), tw.nn.LayerNorm(40), tw.nn.Linear(40, 5))

    def model(x: Any) -> Any:
        return tw.nn.functional.softmax(layers(x), -1)

    dims = {"x": {0: "batch<=200"}}
    x = RNG.standard_normal((3, 24)).astype(np.float32)
    wanted = tw.compile(model, (x,), dims=dims, cache=False)
    library = tw.compile(model, (x,), dims=dims, target=target, cache=False)
    path = library.save(tmp_path / ("model.tar" if target == "webgpu" else "model.so"))
    here, loaded = running(library), tw.load(path, simulate=target in SIMULATED)
    for rows in (3, 1, 200):
        x = RNG.standard_normal((rows, 24)).astype(np.float32)
        for found in (here(x), loaded(x)):
            np.testing.assert_allclose(found, wanted(x), rtol=1e-4, atol=1e-6)
    text = library.ir({"vulkan": "glsl", "webgpu": "wgsl"}.get(target, target))
    assert all(name in text for name in library.kernels)


def test_sizes_that_the_run_computes(target: str) -> None:
    module = positive_elements()
    library = running(tw.compile(module.clone(), target=target, cache=False))
    for rows, share in ((5, 0.5), (1, 1.0), (64, 0.9), (3, 0.0), (64, 0.1)):
        x = RNG.standard_normal((rows, 3)).astype(np.float32)
        x[RNG.random(x.shape) >= share] = 0
        compare(module, library, x)


def test_loops_that_a_condition_ends(target: str) -> None:
    module = doubled_until()
    library = running(tw.compile(module.clone(), target=target, cache=False))
    for count, limit in ((1, 100), (7, 0), (7, 1), (64, 3), (64, 100)):
        compare(module, library, RNG.random(count).astype(np.float32) * 0.1 + 0.01, np.int64(limit))


def test_branches(target: str) -> None:
    module = one_of_two()
    library = running(tw.compile(module.clone(), target=target, cache=False))
    for sign in (1, -1):
        compare(module, library, (RNG.random(9) * sign).astype(np.float32))


def test_functions_states_and_checks(target: str) -> None:
    """Functions share a state with an initial value; an index out of range ends the run."""
    counter = tw.State("counter", (4,), "float32", value=[1, 2, 3, 4])

    def add(x: Any) -> Any:
        counter.value = counter.value + x
        return counter.value * 1

    def pick(at: Any) -> Any:
        return counter.value[at]

    one = np.ones(4, np.float32)
    functions = {"add": (add, (one,)), "pick": (pick, (np.array([1, 2]),))}
    library = running(tw.compile(functions, target=target, cache=False))
    np.testing.assert_array_equal(library.functions["add"](one), [2, 3, 4, 5])
    np.testing.assert_array_equal(library.functions["add"](one), [3, 4, 5, 6])
    np.testing.assert_array_equal(library.functions["pick"](np.array([3, 0])), [6, 3])
    library.state["counter"] = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(library.functions["add"](one), [1, 2, 3, 4])
    if target != "webgpu":  # Indices are clamped there.
        with pytest.raises(OutOfRangeError):
            library.functions["pick"](np.array([4, 0]))
    library.state.reset()
    np.testing.assert_array_equal(library.state["counter"], [1, 2, 3, 4])
    session = library.session()
    session.functions["add"](one)
    np.testing.assert_array_equal(library.state["counter"], [1, 2, 3, 4])


def test_other_types(target: str) -> None:
    def model(x: Any, y: Any) -> Any:
        return (x * y).astype("float16"), x > 2, (y * 3).astype("int8"), x.sum()

    x, y = np.arange(70), np.arange(70, dtype=np.float32) / 8
    wanted = tw.compile(model, (x, y), cache=False)(x, y)
    found = running(tw.compile(model, (x, y), target=target, cache=False))(x, y)
    for w, f in zip(wanted, found, strict=True):
        assert w.dtype == f.dtype
        np.testing.assert_allclose(f.astype(np.float64), w.astype(np.float64), rtol=1e-3)


@pytest.mark.parametrize("options", [{}, {"precisions": ("int16",)}], ids=["int8", "int16"])
def test_a_quantized_network(target: str, options: dict[str, Any]) -> None:
    """Networks of bytes have the bits of ``cpu``; products of 16-bit activations are in floating point."""
    quantized = tw.quantize(made(Mixed), images(), **options)
    library, wanted = tw.compile(quantized, target=target), tw.compile(quantized)
    x = images(1)[0]
    np.testing.assert_allclose(running(library)(x), wanted(x), rtol=1e-4 if options else 0, atol=0)


def test_attention_of_unknown_length(target: str) -> None:
    """Several tiles of queries and of keys, for grouped heads."""

    def model(q: Any, k: Any, v: Any) -> Any:
        return tw.nn.functional.attention(q, k, v, causal=True)

    def drawn(heads: int, n: int) -> Any:
        return RNG.standard_normal((1, heads, n, 16)).astype(np.float32)

    dims = {name: {2: "n<=256"} for name in "qkv"}
    examples = drawn(4, 8), drawn(2, 8), drawn(2, 8)
    wanted = tw.compile(model, examples, dims=dims, cache=False)
    library = running(tw.compile(model, examples, dims=dims, target=target, cache=False))
    for n in (50, 7, 100):
        inputs = drawn(4, n), drawn(2, n), drawn(2, n)
        np.testing.assert_allclose(library(*inputs), wanted(*inputs), rtol=1e-4, atol=1e-5)


def test_a_library_from_the_cache(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_cache(monkeypatch, tmp_path)
    x = np.arange(6, dtype=np.float32)
    for cached in (False, True):
        library = tw.compile(lambda x: x * 2 + 1, (x,), target=target)
        assert bool(library.report.cached) == cached
        np.testing.assert_array_equal(running(library)(x), 2 * x + 1)


def test_launches_of_a_simulated_device_are_counted() -> None:
    if reason := lacks("cuda"):
        pytest.skip(reason)
    x = np.ones((4, 30), np.float32)
    library = tw.compile(lambda x: tw.nn.functional.softmax(x, -1), (x,), target="cuda", cache=False)
    simulated, driver = running(library), simulated_driver("cuda")
    simulated(x)
    driver.reset()
    simulated(x)
    counted = driver.counters()
    assert counted["allocations"] == 0
    assert (counted["uploads"], counted["downloads"]) == (1, 1)
    assert counted["launches"] == sum(row.calls for row in simulated.profile(x, repeat=1))
    simulated.close()


def test_memory_of_a_device_is_freed() -> None:
    if reason := lacks("cuda"):
        pytest.skip(reason)
    driver = simulated_driver("cuda")
    gc.collect()  # libraries of other tests
    before = driver.counters()["bytes"]
    x = np.ones(1000, np.float32)
    library = running(tw.compile(lambda x: (x * 2).sum() + x, (x,), target="cuda", cache=False))
    library(x)
    assert driver.counters()["bytes"] > before
    library.close()
    assert driver.counters()["bytes"] == before


def test_without_a_driver_a_library_is_compiled_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CUDA_DRIVER", "/nowhere/libcuda.so")
    x = np.ones(3, np.float32)
    library = tw.compile(lambda x: x + 1, (x,), target="cuda:sm_90", cache=False)
    path = library.save(tmp_path / "model.so")
    for call in (lambda: library(x), lambda: tw.load(path)):
        with pytest.raises(DeviceError, match=r"its library /nowhere/libcuda\.so was not found"):
            call()


def test_wrong_names_and_arguments(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="unknown target 'cuda:sm_1'; known: cuda, cuda:sm_80, cuda:sm_90"):
        tw.compile(lambda x: x, (np.ones(1),), target="cuda:sm_1")
    path = tw.compile(lambda x: x + 1, (np.ones(1),), cache=False).save(tmp_path / "cpu.so")
    with pytest.raises(ArtifactError, match="only artifacts for CUDA, HIP and Metal can be simulated"):
        tw.load(path, simulate=True)


def test_attention_over_several_tiles_of_keys_of_any_number(target: str) -> None:
    def model(q: Any, k: Any, v: Any) -> Any:
        return tw.nn.functional.attention(q, k, v)

    def heads(n: int) -> tuple[Any, ...]:
        return tuple(RNG.standard_normal((2, 3, n, 8)).astype(np.float32) for _ in range(3))

    dims = {name: {0: "batch<=4", 2: "2<=n<=128"} for name in "qkv"}
    library = tw.compile(model, heads(16), dims=dims, target=target, cache=False)
    here = running(library)
    for n in (100, 37, 2):
        x = heads(n)
        scores = np.einsum("bhqd,bhkd->bhqk", x[0], x[1]) / np.sqrt(np.float32(8))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        np.testing.assert_allclose(here(*x), weights @ x[2], rtol=1e-4, atol=1e-5)


def test_attention_whose_masks_may_leave_no_keys(target: str) -> None:
    def model(q: Any, k: Any, v: Any) -> Any:
        rows, columns = tw.numpy.arange(q.shape[2])[:, None], tw.numpy.arange(k.shape[2])
        return tw.nn.functional.attention(q, k, v, (columns > rows) & (columns < rows + 20))

    def drawn(n: int, m: int) -> tuple[Any, ...]:
        return tuple(RNG.standard_normal((1, 2, s, 8)).astype(np.float32) for s in (n, m, m))

    dims = {"q": {2: "n<=150"}, "k": {2: "m<=150"}, "v": {2: "m"}}
    here = running(tw.compile(model, drawn(9, 16), dims=dims, target=target, cache=False))
    reference = tw.compile(model, drawn(9, 16), dims=dims, cache=False)
    for sizes in ((1, 80), (33, 65), (140, 30)):
        x = drawn(*sizes)
        np.testing.assert_allclose(here(*x), reference(*x), rtol=1e-4, atol=1e-5)
