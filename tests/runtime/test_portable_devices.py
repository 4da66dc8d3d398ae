"""Artifacts for OpenCL and Vulkan with handwritten kernels, run by the drivers of this machine (PoCL and
Mesa's lavapipe are enough).
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.devices import lacks
from tests.runtime.device_program import Kernel, begin, built, declare, f32, host, weight

import tilewright as tw
from tilewright.artifact.device_code import DEVICE_TYPES, DeviceImage
from tilewright.dialects import func
from tilewright.errors import DeviceError, ShapeError
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import BufferType
from tilewright.runtime.device_library import DeviceLibrary
from tilewright.targets.llvm.build import BuiltLibrary
from tilewright.targets.vulkan.toolchain import compile_all

n = symbol("n", 1, 100_000)
OPENCL = """
__kernel void tw_add(__global const float* b0, __global const float* b1, __global float* b2, long n,
                     long o0, long o1, long o2) {
  long i = get_group_id(0) * 64 + get_local_id(0);
  if (i < n) b2[i + o2] = b0[i + o0] + b1[i % 4 + o1];
}
"""
VULKAN = """#version 450
layout(std430, binding = 0) readonly buffer B0 { float b0[]; };
layout(std430, binding = 1) readonly buffer B1 { float b1[]; };
layout(std430, binding = 2) buffer B2 { float b2[]; };
layout(push_constant, std430) uniform Params { uvec2 p[4]; };
layout(local_size_x = 64) in;
void main() {
  uint i = gl_WorkGroupID.x * 64 + gl_LocalInvocationID.x;
  if (i < p[0].x) b2[i + p[3].x] = b0[i + p[1].x] + b1[i % 4 + p[2].x];
}
"""
WEIGHT = np.arange(1, 5, dtype=np.float32)


def vector(size: object) -> BufferType:
    return BufferType(f32, (size,))


def sums() -> tuple:
    """y = x + w + w with a weight that repeats; the second launch reads a part of the arena."""
    module, b, (x, y) = begin({"x": vector(n)}, {"y": vector(n)})
    declare(module, "add", [(f32, (n,)), (f32, (4,)), (f32, (n,))], (n,))
    w = b(host.Constant(value=weight(WEIGHT)))
    between = b(host.Alloc(buffer=vector(n)))
    b.insert(host.Launch([x, w, between], kernel="add"))
    b.insert(host.Launch([between, w, y], kernel="add"))
    b.insert(func.Return(()))
    return module, {"add": Kernel("tw_add", ((n + 63) // 64, 1, 1))}


@pytest.fixture(scope="module", params=["opencl", "vulkan"])
def api(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if reason := lacks(name):
        pytest.skip(reason)
    return name


def build_sums(api: str, kernel: str = "tw_add", threads: int = 64) -> BuiltLibrary:
    module, kernels = sums()
    kernels = {"add": Kernel(kernel, kernels["add"].grid, threads)}
    if api == "vulkan":
        images = [DeviceImage("spirv", data) for data in compile_all({"tw_add": VULKAN}).values()]
        return built(module, kernels, images, api)
    return built(module, kernels, [DeviceImage("source-opencl", OPENCL.encode())], api)


@pytest.fixture(scope="module")
def artifact(api: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sums(api).save(tmp_path_factory.mktemp("sums") / "sums.so")


@pytest.fixture
def library(artifact: Path) -> Iterator[DeviceLibrary]:
    library = tw.load(artifact)
    assert isinstance(library, DeviceLibrary)
    with library:
        yield library


def expected(x: np.ndarray) -> np.ndarray:
    return x + 2 * np.resize(WEIGHT, x.size)


def test_results_for_several_sizes(library: DeviceLibrary) -> None:
    for size in (5, 1000, 64, 5, 70_000):
        x = np.random.default_rng(size).random(size, np.float32)
        np.testing.assert_allclose(library(x), expected(x), rtol=1e-6)
    out = np.zeros(5, np.float32)
    library(np.ones(5, np.float32), out=out)
    np.testing.assert_array_equal(out, expected(np.ones(5, np.float32)))


def test_a_new_process(artifact: Path) -> None:
    code = "import sys, tilewright as tw, numpy as np; print(tw.load(sys.argv[1])(np.ones(6, np.float32)))"
    run = subprocess.run([sys.executable, "-c", code, artifact], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(expected(np.ones(6, np.float32)))


def test_bound_calls_and_torch_tensors(library: DeviceLibrary) -> None:
    torch = pytest.importorskip("torch")
    x, y = np.ones(8, np.float32), np.empty(8, np.float32)
    call = library.bind(x, out=y)
    x[:] = 3
    call()
    np.testing.assert_array_equal(y, expected(x))
    result = library(torch.full((8,), 2.0))
    np.testing.assert_array_equal(result.numpy(), expected(np.full(8, 2, np.float32)))


def test_wrong_arguments_are_told_as_on_the_cpu(library: DeviceLibrary) -> None:
    with pytest.raises(ShapeError, match="input 'x': expected float32, got float64"):
        library(np.ones(4))
    with pytest.raises(ShapeError, match="input 'x': expected 1 dimensions, got 2"):
        library(np.ones((4, 4), np.float32))


def test_profile_counts_launches_and_time(library: DeviceLibrary) -> None:
    x = np.ones(50_000, np.float32)
    library(x)
    (row,) = library.profile_raw(x)
    assert (row.name, row.calls) == ("add", 2)
    assert row.nanoseconds > 0


def test_threads_have_contexts_of_their_own(library: DeviceLibrary) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).random(100 + seed, np.float32)
        for _ in range(10):
            if not np.allclose(library(x), expected(x)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_missing_driver_is_named(api: str, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="its library /nowhere/libnone.so was not found: install"):
        DeviceLibrary(artifact, driver="/nowhere/libnone.so")
    variable = f"TILEWRIGHT_{api.upper()}_DRIVER"
    monkeypatch.setenv(variable, "/nowhere/libother.so")
    with pytest.raises(DeviceError, match=rf"libother\.so was not found.*{variable}"):
        tw.load(artifact)


def test_a_missing_device_is_told(artifact: Path) -> None:
    with pytest.raises(DeviceError, match="no (OpenCL|Vulkan) device number 77: the numbers here are 0 to"):
        tw.load(artifact, device=77)


def test_a_kernel_that_is_missing_is_named(api: str, tmp_path: Path) -> None:
    path = build_sums(api, "tw_other").save(tmp_path / "m.so")
    said = "kernel 'add': clCreateKernel failed: CL_INVALID_KERNEL_NAME|no SPIR-V for kernel 'add'"
    with pytest.raises(DeviceError, match=said):
        tw.load(path)(np.ones(4, np.float32))


def test_too_large_blocks_are_told(api: str, tmp_path: Path) -> None:
    path = build_sums(api, threads=1 << 20).save(tmp_path / "m.so")
    with pytest.raises(
        DeviceError, match=r"kernel 'add' has blocks of 1048576( x 1 x 1)? threads; the device"
    ):
        tw.load(path)(np.ones(4, np.float32))


def test_messages_of_the_compiler_for_opencl_are_shown(tmp_path: Path) -> None:
    if reason := lacks("opencl"):
        pytest.skip(reason)
    module, kernels = sums()
    broken = [DeviceImage("source-opencl", b"__kernel void tw_add() { broken }")]
    path = built(module, kernels, broken, "opencl").save(tmp_path / "m.so")
    with pytest.raises(DeviceError, match=r"refuses the kernels: CL_BUILD_PROGRAM_FAILURE \(-11\).*broken"):
        tw.load(path)


def test_tensors_of_other_devices_are_refused(api: str, library: DeviceLibrary) -> None:
    """A CUDA tensor, and one of the API itself, whose buffers cannot be shared between programs."""
    from tilewright.runtime.context import _TENSOR

    context = library._context()
    own = (DEVICE_TYPES[api], f"{'OpenCL' if api == 'opencl' else 'Vulkan'} gives no address for")
    for device, sentence in ((2, "got device type 2"), own):
        block = ctypes.create_string_buffer(2 * _TENSOR.size + 16)
        start = ctypes.addressof(block)
        shape = start + 2 * _TENSOR.size
        ctypes.c_int64.from_address(shape).value = 4
        for index, place in enumerate((device, 1)):
            _TENSOR.pack_into(
                block, index * _TENSOR.size, 4096 * (1 - index), place, 0, 1, 2, 32, 1, shape, 0, 0
            )
        status = context.native.tw_function_run(context.handle, 0, start, 1, start + _TENSOR.size, 1)
        assert status == 1
        assert sentence in context.native.tw_last_error().decode()


def test_prefix(api: str, tmp_path: Path) -> None:
    path = build_sums(api).save(tmp_path / "m.so", prefix="adder")
    assert "int adder_create_on(" in (tmp_path / "adder.h").read_text()
    np.testing.assert_array_equal(tw.load(path)(WEIGHT), 3 * WEIGHT)
