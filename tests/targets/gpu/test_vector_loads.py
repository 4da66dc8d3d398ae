"""Loads and stores of several elements at once: convolutions, poolings, sums of columns; an address that is
not a multiple of a vector's bytes is never accessed as a vector.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bench.gpu.accesses import ALIGNMENT, STRIDED, WHOLE, WIDE, accesses_of_kernel
from tests.devices import need
from tests.targets.gpu.simulated import SMALL, Program

import tilewright as tw
from tilewright.schedule.kernel_schedule import pin

torch = pytest.importorskip("torch")
nn = torch.nn
tnp = tw.numpy
DRAW = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return DRAW.uniform(-1, 1, shape).astype(np.float32)


def of_image(module: Any, channels: int) -> Any:
    """A module that gets images whose channels come last in memory: those of a convolution before it."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, channels, 1), module).eval()


MODULES: dict[str, tuple[Any, str]] = {
    "max pool": (of_image(nn.MaxPool2d(3, 2, 1), 16), "max_pool"),
    "average pool": (of_image(nn.AvgPool2d(2, 2), 8), "avg_pool"),
    "depthwise": (
        of_image(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU6()), 16),
        "conv",
    ),
    "dense": (of_image(nn.Sequential(nn.Conv2d(24, 16, 3, stride=2, padding=1), nn.ReLU()), 24), "conv"),
    "odd channels": (of_image(nn.MaxPool2d(3, 2, 1), 9), "max_pool"),
}
IMAGES = drawn(1, 3, 7, 8)


def eager(module: Any) -> Any:
    with torch.no_grad():
        return module(torch.from_numpy(IMAGES)).numpy()


@pytest.mark.parametrize("target", ["opencl", "cuda"])
@pytest.mark.parametrize("name", MODULES)
def test_spatial_operators_read_vectors_of_channels(name: str, target: str) -> None:
    need(target)
    module, kernel = MODULES[name]
    pins = [pin(kernel, elements=4)] if kernel in ("max_pool", "avg_pool") and name != "odd channels" else []
    x = torch.from_numpy(IMAGES)
    with tw.compile(module, (x,), target=target, schedules=pins, cache=False) as library:
        run = library.simulated(checked=True) if target == "cuda" else library
        np.testing.assert_allclose(np.asarray(run(IMAGES)), eager(module), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [n for n in MODULES if n not in ("dense", "odd channels")])
def test_their_loads_are_wide(name: str) -> None:
    module, kernel_name = MODULES[name]
    program = Program(module, (torch.from_numpy(np.repeat(IMAGES, 8, 2)),))
    kernel = next(k for k in program.kernels[1:] if k.sym_name.startswith(kernel_name))
    assert {a.reason for a in accesses_of_kernel(kernel, SMALL)} == {WIDE}


ARRAYS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: tw.nn.functional.softmax(x, -1),
    "reduce_sum": lambda x: tnp.sum(x, 0),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_buffers_that_begin_at_any_element(name: str) -> None:
    """Parts of a larger buffer, as a caller's tensor may be one, are read and written element by element."""
    need("cuda")
    rows, columns, room = 9, 256, 4
    x = drawn(rows * columns + room)
    inputs = (x[: rows * columns].reshape(rows, columns),)
    schedules = [pin(name, elements=4)]
    with tw.compile(ARRAYS[name], inputs, target="cuda", schedules=schedules, cache=False) as library:
        text = library.ir("cuda")
        kernel = library.metadata["kernels"][0]["device"]
    assert "tw_16*" in text
    head = re.search(r"\b(tw_\w+)\(const float\* (?:__\w+ )?b0, float\* (?:__\w+ )?b1\) {", text)
    assert head is not None
    for offset in (0, 1, 2):
        places = f"const float* b0 = p0 + {offset}; float* b1 = p1 + {offset};"
        moved = text.replace(head[0], f"{head[1]}(const float* p0, float* p1) {{ {places}")
        part = x[offset:][: rows * columns].reshape(rows, columns)
        (wanted,) = Program(ARRAYS[name], inputs).wanted(part)
        y = np.zeros(wanted.size + room, np.float32)
        launch = (head[1], kernel["blocks"], kernel["threads"], [x, y])
        tw.simulate(moved, *launch, shared_bytes=kernel["dynamic_shared_bytes"])
        np.testing.assert_allclose(y[offset:][: wanted.size], wanted.reshape(-1), rtol=1e-4, atol=1e-5)
        assert not y[:offset].any() and not y[offset + wanted.size :].any()
    careless, count = re.subn(r"if \(\(\(unsigned long long\)\(\w+\) & 15\) == 0\)", "if (true)", moved)
    assert count
    with pytest.raises(tw.KernelError, match="aligned to 16 bytes"):
        tw.simulate(careless, *launch, shared_bytes=kernel["dynamic_shared_bytes"])


def test_parts_of_an_array_have_no_vectors_at_odd_places() -> None:
    """The rows of a slice begin at addresses that vectors cannot have."""
    inputs = (drawn(64, 256),)
    for function, reasons in (
        (lambda x: x[:, 4:] * 2.0, {WIDE}),
        (lambda x: x[:, 2:] * 2.0, {ALIGNMENT, WHOLE}),
        (lambda x: x[:, ::2] * 2.0, {STRIDED, WHOLE}),
    ):
        program = Program(function, inputs)
        program.check(*inputs)
        (kernel,) = program.kernels
        assert {a.reason for a in accesses_of_kernel(kernel, SMALL)} == reasons


@pytest.mark.parametrize("target", ["opencl", "metal"])
@pytest.mark.parametrize(
    ("dtype", "shape", "is_wide"),
    [(np.float32, (132, 140), True), (np.float16, (200, 336), True), (np.float32, (131, 140), False)],
)
def test_transpositions_in_registers(target: str, dtype: Any, shape: tuple[int, int], is_wide: bool) -> None:
    """Where both sides are multiples of a vector, threads read and write vectors and share no memory."""
    need(target)
    x = drawn(*shape).astype(dtype)

    def function(x: Any) -> Any:
        return x.T * 2

    with tw.compile(function, (x,), target=target, cache=False) as library:
        run = library if target == "opencl" else library.simulated(checked=True)
        np.testing.assert_array_equal(np.asarray(run(x)), x.T * 2)
        (kernel,) = library.ir("loop").split("loop.kernel")[1:]
    assert ('"shared"' not in kernel) == is_wide


def test_transpositions_of_views() -> None:
    """A result whose axes are fused is transposed in tiles, too: channels of an image that come first."""
    x = drawn(2, 12, 12, 64)
    program = Program(lambda x: (x.transpose(0, 3, 1, 2) * 2.0).reshape(2, 64, 144), (x,))
    program.check(x)
    (kernel,) = program.kernels
    assert {a.reason for a in accesses_of_kernel(kernel, SMALL)} == {WIDE}


@pytest.mark.parametrize("target", ["opencl", "cuda"])
def test_rows_that_data_choose(target: str) -> None:
    """The number of a row is loaded once for the elements of a thread, which are one vector."""
    need(target)
    x, rows = drawn(9, 64), np.array([[3, 8, -1], [0, 3, 5]])

    def function(x: Any, i: Any) -> Any:
        return x[i] * 2.0 + 1.0

    with tw.compile(
        function, (x, rows), target=target, schedules=[pin("add", elements=4)], cache=False
    ) as library:
        run = library.simulated(checked=True) if target == "cuda" else library
        np.testing.assert_allclose(np.asarray(run(x, rows)), x[rows] * 2 + 1, rtol=1e-6)
        if target == "cuda":
            text = library.ir("cuda")
            assert "tw_16*" in text[text.rindex("__global__") :]


def test_rows_whose_numbers_the_kernel_computes() -> None:
    """The number of a row that an earlier nest has stored is loaded once for the elements of a thread."""
    x, rows = drawn(40, 256), np.arange(64) % 13

    def function(x: Any, i: Any) -> Any:
        numbers = i * 3 + 1
        return numbers, tw.nn.functional.softmax(x[numbers], -1)

    program = Program(function, (x, rows))
    program.check(x, rows)
    (kernel,) = [k for k in program.kernels if k.num_outputs == 2]
    reasons = {str(a.buffer): a.reason for a in accesses_of_kernel(kernel, SMALL)}
    assert reasons['!tw.buffer<"f32", "40, 256", "global">'] == WIDE
