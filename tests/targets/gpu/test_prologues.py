"""Products that compute their factors while they copy them: one kernel, with matrix instructions where the
device has them. Results are compared with NumPy's in float64, of factors rounded as the model says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.devices import need, running

import tilewright as tw
from tilewright.passes.tensor import prologues

tnp = tw.numpy
BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
DRAW = np.random.default_rng(0)


def normal(dtype: Any, *shape: int) -> np.ndarray:
    return DRAW.normal(size=shape).astype(dtype)


def rounded(x: np.ndarray, dtype: Any) -> np.ndarray:
    return x.astype(dtype).astype(np.float64)


def gelu(x: Any, library: Any) -> Any:
    return 0.5 * x * (1 + library.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


BYTES = DRAW.integers(-128, 128, (37, 45)).astype(np.int8)
SCALE, BIAS = normal(F32, 45), normal(F32, 37)
LEFT, RIGHT = normal(F16, 50, 37), normal(F16, 37, 45)
WIDE, WIDE_RIGHT = normal(F32, 50, 37), normal(F32, 37, 45)
BATCHED = normal(F16, 3, 50, 37)

CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], np.ndarray]] = {
    "both factors cast": (
        lambda x, y: tnp.matmul(x.astype(F16), y.astype(F16)),
        (WIDE, WIDE_RIGHT),
        rounded(WIDE, F16) @ rounded(WIDE_RIGHT, F16),
    ),
    "activation": (
        lambda x, y: tnp.matmul(tnp.maximum(x, 0), y),
        (LEFT, RIGHT),
        np.maximum(rounded(LEFT, F16), 0) @ rounded(RIGHT, F16),
    ),
    "function that is not zero at zero": (
        lambda x, y: tnp.matmul(x, tnp.cos(y)),
        (LEFT, RIGHT),
        rounded(LEFT, F16) @ rounded(np.cos(RIGHT.astype(F32)), F16),
    ),
    "expensive activation": (
        lambda x, y: tnp.matmul(gelu(x.astype(F32), tnp).astype(F16), y),
        (LEFT, RIGHT),
        rounded(gelu(rounded(LEFT, F16), np), F16) @ rounded(RIGHT, F16),
    ),
    "dequantized weight": (
        lambda x, q, s: tnp.matmul(x, (q.astype(F32) * s).astype(F16)),
        (LEFT, BYTES, SCALE),
        rounded(LEFT, F16) @ rounded(BYTES.astype(F32) * SCALE, F16),
    ),
    "scale before the weight, which is transposed": (
        lambda x, q, s: tnp.matmul(x, tnp.swapaxes((s * q.astype(F32)).astype(F16), 0, 1)),
        (normal(F16, 50, 45), BYTES, SCALE),
        np.zeros(0),
    ),
    "bias": (
        lambda x, b, y: tnp.matmul((x.astype(F32) + b).astype(F16), y),
        (LEFT, BIAS, RIGHT),
        rounded(LEFT.astype(F32) + BIAS, F16) @ rounded(RIGHT, F16),
    ),
    "batched": (
        lambda x, y: tnp.matmul(tnp.maximum(x, 0), y),
        (BATCHED, RIGHT),
        np.maximum(rounded(BATCHED, F16), 0) @ rounded(RIGHT, F16),
    ),
    "one row": (
        lambda x, q, s: tnp.matmul(x[:1], (q.astype(F32) * s).astype(F16)),
        (LEFT, BYTES, SCALE),
        rounded(LEFT[:1], F16) @ rounded(BYTES.astype(F32) * SCALE, F16),
    ),
}
_x = CASES["scale before the weight, which is transposed"][1][0]
CASES["scale before the weight, which is transposed"] = (
    *CASES["scale before the weight, which is transposed"][:2],
    rounded(_x, F16) @ rounded(BYTES.astype(F32) * SCALE, F16).T,
)


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx90a", "metal", "opencl", "vulkan"])
@pytest.mark.parametrize("case", CASES)
def test_one_kernel(case: str, target: str) -> None:
    function, inputs, wanted = CASES[case]
    need(target)
    library = tw.compile(function, inputs, target=target)
    assert len(library.kernels) == 1
    if target.partition(":")[0] in ("cuda", "hip", "metal") and case != "one row":
        assert "tw_mma_" in library.ir(target.partition(":")[0])
    found = np.asarray(running(library, checked=True)(*inputs), np.float64)
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(found / scale, wanted / scale, rtol=0, atol=2e-3)


def test_lower_precision_needs_no_kernel_for_casts() -> None:
    library = tw.compile(lambda x, y: x @ y, (WIDE, WIDE_RIGHT), target="cuda:sm_80", precision="bf16")
    assert len(library.kernels) == 1
    assert "tw_mma_m16n8k16_f32_bf16(" in library.ir("cuda")
    wanted = rounded(WIDE, BF16) @ rounded(WIDE_RIGHT, BF16)
    found = np.asarray(library.simulated(checked=True)(WIDE, WIDE_RIGHT))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_factors_of_many_tiles_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many tiles use a factor, and starting a kernel is nothing in comparison, it is kept apart."""
    x, y = normal(F16, 64, 64), normal(F16, 64, 4096)
    function = lambda x, y: tnp.matmul(tnp.maximum(x, 0), y)  # noqa: E731
    assert len(tw.compile(function, (x, y), target="cuda:sm_80").kernels) == 1
    monkeypatch.setattr(prologues, "LAUNCH", 0)
    assert len(tw.compile(function, (x, y), target="cuda:sm_80", cache=False).kernels) == 2


def test_factors_with_other_readers_are_kept() -> None:
    def function(x: Any, y: Any) -> Any:
        z = tnp.maximum(x, 0) + 1
        return tnp.matmul(z, y), z

    library = tw.compile(function, (LEFT, RIGHT), target="cuda:sm_80")
    assert len(library.kernels) == 2
    product, z = library.simulated(checked=True)(LEFT, RIGHT)
    wanted = rounded(np.maximum(LEFT, 0) + np.float16(1), F16)
    np.testing.assert_allclose(np.asarray(z, np.float64), wanted)
    np.testing.assert_allclose(
        np.asarray(product, np.float64), wanted @ rounded(RIGHT, F16), rtol=1e-2, atol=0.1
    )
