"""Products by cooperative matrices: in the interpreter, in SPIR-V, on devices that have them, and on others
with emulated ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.devices import need
from tests.targets.gpu.simulated import SMALL, Program
from tests.targets.vulkan.emulated_matrices import emulated

import tilewright as tw
from tilewright.analysis.matrices import held_in, matrix_move, moves_matrices
from tilewright.dialects import loop, simt
from tilewright.errors import CompileError, DeviceError
from tilewright.runtime.model import CompiledModel
from tilewright.targets.gpu.writer import threads_of
from tilewright.targets.vulkan import glslang, toolchain
from tilewright.targets.vulkan.devices import DEVICES

needs_compiler = pytest.mark.skipif(toolchain.missing() is not None, reason=str(toolchain.missing()))
PROBE = """#version 450
#extension GL_KHR_cooperative_matrix : require
layout(local_size_x = 32) in;
void main() {}
"""


@pytest.fixture
def compiles_matrices() -> None:
    """Skip where the compiler of GLSL is absent or too old for the extension."""
    if reason := toolchain.missing():
        pytest.skip(reason)
    try:
        toolchain.compile_spirv(PROBE)
    except CompileError as error:
        if "has no cooperative matrices" not in str(error):
            raise
        pytest.skip(str(error))


MATRICES = [name for name in DEVICES if name != "vulkan"]


def whole(dtype: Any, *shape: int, seed: int = 0) -> np.ndarray:
    """Small integers, whose sums of products float32 has exactly, in any order."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


def compiled(function: Callable[..., Any], *inputs: np.ndarray, target: str, **options: Any) -> CompiledModel:
    """The library; it must have matrix instructions."""
    library = tw.compile(function, inputs, target=target, cache=False, **options)
    assert "tw_matrix_multiply_add(" in library.ir("glsl")
    return library


def product(x: Any, y: Any) -> Any:
    return x.astype(np.float32) @ y.astype(np.float32)


def bytes_product(x: Any, y: Any) -> Any:
    return x.astype(np.int32) @ y.T.astype(np.int32)


def activation(x: Any, y: Any) -> Any:
    return abs(x @ y + 1)


CASES: dict[str, tuple[Callable[..., Any], Any, tuple[int, ...], tuple[int, ...]]] = {
    "ragged": (activation, np.float16, (35, 40), (40, 34)),
    "odd": (activation, np.float16, (17, 7), (7, 33)),
    "batches": (activation, np.float16, (2, 20, 24), (2, 24, 20)),
    "turned": (lambda x, y: activation(x.T, y.T), np.float16, (40, 35), (20, 40)),
    "bytes": (bytes_product, np.int8, (35, 50), (34, 50)),
    "bytes whose rows are neighbours": (lambda x, y: bytes_product(x.T, y.T), np.int8, (36, 24), (36, 20)),
}
"""The function, the type of the factors, and their shapes."""


def case(name: str) -> tuple[Callable[..., Any], np.ndarray, np.ndarray, np.ndarray]:
    function, dtype, left, right = CASES[name]
    x, y = whole(dtype, *left), whole(dtype, *right, seed=1)
    wanted = function(x, y) if dtype is np.int8 else function(x.astype(np.float64), y.astype(np.float64))
    return function, x, y, np.asarray(wanted)


def check(library: CompiledModel, wanted: np.ndarray, *inputs: np.ndarray) -> None:
    """All bits: float16 has the results, whole numbers, exactly, or rounds them in one way."""
    found = np.asarray(library(*inputs))
    np.testing.assert_array_equal(found, wanted.astype(found.dtype))


@pytest.mark.parametrize(
    ("target", "name"),
    [
        *(("vulkan:cooperative_matrix", name) for name in CASES),
        *((target, "bytes") for target in MATRICES[1:]),
    ],
)
def test_the_interpreter_runs_the_same_loops(target: str, name: str) -> None:
    function, x, y, wanted = case(name)
    gpu = replace(DEVICES[target], multiprocessors=SMALL.multiprocessors)
    program = Program(function, (x, y), gpu=gpu)
    (kernel,) = program.kernels
    atoms = [op for op in kernel.walk() if isinstance(op, simt.Mma)]
    assert atoms and all(op.description.opaque for op in atoms)
    nests = [f for f in kernel.walk() if isinstance(f, loop.For) and f.kind == "thread.x"]
    moves = [matrix_move(f, threads_of(kernel)) for f in nests if moves_matrices(f)]
    assert None not in moves
    operands = sorted(held_in(m.buffer).operand for m in moves)  # type: ignore[union-attr]
    assert operands == ["a", "b", "d", "d"]
    (found,) = program.run(x, y)
    np.testing.assert_array_equal(found, wanted.astype(found.dtype))


@pytest.mark.usefixtures("compiles_matrices")
@pytest.mark.parametrize("target", MATRICES)
def test_spirv_has_the_instructions(target: str) -> None:
    x, y = whole(np.float16, 64, 64), whole(np.int8, 64, 64)
    text = compiled(product, x, x, target=target).ir("spirv")
    assert "OpCooperativeMatrixMulAddKHR" in text and "OpCapability CooperativeMatrixKHR" in text
    assert text.count("OpCooperativeMatrixLoadKHR") == 2 and "OpCooperativeMatrixStoreKHR" in text
    text = compiled(bytes_product, y, y, target=target).ir("spirv")
    (line,) = [line for line in text.splitlines() if "OpCooperativeMatrixMulAddKHR" in line]
    assert all(f"Matrix{x}SignedComponentsKHR" in line for x in ("A", "B", "C", "Result"))


@needs_compiler
def test_plain_vulkan_has_none() -> None:
    x = whole(np.float16, 64, 64)
    assert "Cooperative" not in tw.compile(product, (x, x), target="vulkan").ir("spirv")


def test_names_of_targets() -> None:
    x = whole(np.float16, 64, 64)
    with pytest.raises(CompileError, match="known: vulkan, vulkan:cooperative_matrix"):
        tw.compile(product, (x, x), target="vulkan:matrices")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["vulkan:cooperative_matrix", "vulkan:nvidia"])
def test_kernels_run_with_emulated_matrices(name: str, target: str) -> None:
    need("vulkan")
    function, x, y, wanted = case(name)
    kind = "i8" if x.dtype == np.int8 else "f16"
    (atom,) = [a for a in DEVICES[target].atoms if a.left_type.name == kind]
    with emulated(atom.name):
        library = compiled(function, x, y, target=target)
        assert "coopmat" not in library.ir("glsl")
        check(library, wanted, x, y)


def test_convolutions() -> None:
    need("vulkan")
    torch = pytest.importorskip("torch")
    x, weight = (torch.from_numpy(whole(np.float16, *s)) for s in ((2, 8, 9, 11), (20, 8, 3, 3)))

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.relu(torch.nn.functional.conv2d(x, weight, stride=2, padding=1))

    wanted = torch.relu(torch.nn.functional.conv2d(x.double(), weight.double(), stride=2, padding=1))
    with emulated("cooperative_16x16x16_f16"):
        check(compiled(Model(), x, target="vulkan:cooperative_matrix"), wanted.numpy(), x)


def test_sizes_that_are_known_at_run_time() -> None:
    need("vulkan")
    weight, x = whole(np.float16, 72, 130, seed=1), whole(np.float16, 40, 72)
    with emulated("cooperative_16x16x16_f16"):
        library = compiled(
            lambda x: x @ tw.Tensor(weight), x, target="vulkan:cooperative_matrix", dims={"x": {0: "rows"}}
        )
        for rows in (1, 16, 130):
            x = whole(np.float16, rows, 72, seed=rows)
            check(library, x.astype(np.float64) @ weight.astype(np.float64), x)


def lacks_matrices() -> str:
    """The message of a device without them; empty where it has those of lavapipe."""
    x = whole(np.float16, 64, 64)
    try:
        compiled(product, x, x, target="vulkan:lavapipe")(x, x)
    except DeviceError as error:
        return str(error)
    return ""


@pytest.mark.usefixtures("compiles_matrices")
@pytest.mark.parametrize("name", CASES)
def test_results_on_a_device_with_matrices(name: str) -> None:
    need("vulkan")
    if lacks_matrices():
        pytest.skip(lacks_matrices())
    function, x, y, wanted = case(name)
    check(compiled(function, x, y, target="vulkan:lavapipe"), wanted, x, y)


@pytest.mark.usefixtures("compiles_matrices")
def test_a_device_without_them_is_refused_by_name() -> None:
    need("vulkan")
    x = whole(np.float16, 64, 64)
    message = (
        r"kernel 'matmul\w*' needs (the extension VK_KHR_cooperative_matrix, which the device '.*' lacks: "
        r"compile the model for the target vulkan|\d subgroups of 32 threads; those of the device)"
    )
    library = compiled(product, x, x, target="vulkan:cooperative_matrix")
    if not lacks_matrices() or "needs the extension" in lacks_matrices():
        with pytest.raises(DeviceError, match=message):
            library(x, x)


@needs_compiler
@pytest.mark.parametrize(
    "words",
    [
        "'GL_KHR_cooperative_matrix' : extension not supported",
        "'#extension' : extension not supported: GL_KHR_cooperative_matrix",
    ],
)
def test_an_old_compiler_is_named(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def rejects(text: str, name: str) -> bytes:
        raise glslang.Rejected(f"ERROR: kernel:2: {words}")

    monkeypatch.setattr(toolchain, "_found", lambda: toolchain._Compiler("glslang", ("old",), rejects))
    x = whole(np.float16, 64, 64)
    with pytest.raises(CompileError, match="glslang has no cooperative matrices: install"):
        tw.compile(product, (x, x), target="vulkan:nvidia", cache=False)
