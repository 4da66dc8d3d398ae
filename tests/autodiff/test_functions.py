"""Gradients of the functions of `tw.numpy`, at once and compiled, against central differences of NumPy's
functions in float64.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontends.trace.test_numpy import CASES, DATA, OF_DATA, evaluate
from tilewright.frontends.trace.registry import FUNCTIONS

STEP = 1e-6
WIDE: dict[str, np.ndarray] = {
    **{n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in DATA.items()},
    "w": np.array([np.nan, 1.3, -0.4, 2.6, -3.7, 0.2]),
}
"""The data of the functions' own tests, without infinities and numbers at which a function is not smooth."""
FLOATS = [n for n, a in WIDE.items() if a.dtype.kind == "f"]


MORE = [
    *(f"xp.{f}(x)" for f in "absolute fabs fix around copy degrees radians real conj".split()),
    *(f"xp.{f}(x)" for f in "flatten fliplr flipud matrix_transpose atleast_1d atleast_2d".split()),
    *(f"xp.{f}(x)" for f in "asarray asanyarray ascontiguousarray array amax amin cumprod nanmean".split()),
    *(f"xp.{f}(u)" for f in "acos asin atan asinh atanh".split()),
    *(f"xp.{f}(u, y)" for f in "atan2 mod pow true_divide float_power".split()),
    "xp.divmod(x, u)[1]",
    "xp.acosh(1 + u)",
    "xp.concat([x, y])",
    "xp.permute_dims(z, (2, 0, 1))",
    "xp.unstack(z)[1]",
    "xp.full((2, 4), v)",
    "xp.astype(x, 'float64')",
    "xp.logsumexp(z, axis=1)",
    "xp.topk(z, 2, axis=1)[0]",
    "xp.vector_norm(z, axis=1)",
    "xp.linalg.vector_norm(z, axis=-1)",
    "xp.linalg.matmul(x, y.T)",
    "xp.linalg.matrix_transpose(z)",
    "xp.linalg.tensordot(z, x, axes=([1, 2], [0, 1]))",
    "xp.linalg.vecdot(x, y)",
    "xp.linalg.cross(x[:, :3], y[:, 1:])",
]
"""Uses of functions that the functions' own tests do not use on floating-point data."""

NOT_DIFFERENTIABLE = {
    "integers or booleans": """all any isnan isinf isfinite isneginf isposinf equal not_equal less less_equal
        greater greater_equal logical_and logical_or logical_xor logical_not isclose allclose array_equal
        bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_invert invert left_shift right_shift argmax
        argmin argsort argwhere nonzero flatnonzero count_nonzero nanargmax nanargmin isin searchsorted
        digitize shape size ndim""",
    "constants": "arange empty empty_like eye identity linspace ones ones_like tri zeros zeros_like",
    "parts of the class, tested elsewhere": """Tensor.at Tensor.__array_function__
        Tensor.__array_namespace__ Tensor.__array_ufunc__ Tensor.__getitem__ Tensor.implementation""",
}
"""Functions without a gradient, by what they return."""


def forward(text: str, xp: Any, data: dict[str, Any]) -> Any:
    """A text's result, by NumPy with the functions that it lacks."""
    if xp is np:
        data = {**data, "xp": _NUMPY}
    return evaluate(text, xp, data)


class _Numpy:
    """NumPy with the functions that only we have."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def flatten(self, x: Any) -> Any:
        return x.flatten()

    def logsumexp(self, x: Any, axis: int) -> Any:
        return np.log(np.exp(x).sum(axis))

    def topk(self, x: Any, k: int, axis: int) -> Any:
        return (np.flip(np.sort(x, axis), axis).take(range(k), axis),)

    def vector_norm(self, x: Any, axis: int) -> Any:
        return np.sqrt((x * x).sum(axis))


_NUMPY = _Numpy()


TEXTS = [*(t for group in CASES.values() for t in group), *OF_DATA, *MORE]


def weights(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape)


def total(text: str, xp: Any, data: dict[str, Any]) -> Any:
    """A scalar that depends on all finite elements of a result."""
    y = forward(text, xp, data)
    w = xp.cos(y) if text in OF_DATA else weights(tuple(y.shape))
    return xp.sum(xp.where(xp.isfinite(y), y * w, 0.0))


@cache
def is_floating(text: str) -> bool:
    """Whether a text uses floating-point data and has a floating-point result."""
    used = any(re.search(rf"\b{n}\b", text) for n in FLOATS)
    with np.errstate(all="ignore"):
        return used and np.asarray(forward(text, np, WIDE)).dtype.kind == "f"


def gradients(text: str, data: dict[str, Any]) -> dict[str, Any]:
    """The gradients with respect to the floating-point data that a text uses."""
    names = [n for n in FLOATS if re.search(rf"\b{n}\b", text)]

    def loss(values: dict[str, Any]) -> Any:
        return total(text, tw.numpy, {**data, **values})

    found: dict[str, Any] = tw.grad(loss)({n: data[n] for n in names})
    return found


def check_differences(text: str, found: dict[str, np.ndarray]) -> None:
    rng = np.random.default_rng(2)
    for name, g in found.items():
        for _ in range(2):
            v = rng.standard_normal(g.shape)
            with np.errstate(all="ignore"):
                ends = [total(text, np, {**WIDE, name: WIDE[name] + h * v}) for h in (STEP, -STEP)]
            expected = (ends[0] - ends[1]) / (2 * STEP)
            actual, scale = np.nansum(g * v), max(np.nansum(np.abs(g * v)), abs(expected), 1e-2)
            assert abs(actual - expected) <= 1e-6 * scale, f"{text}, {name}: {actual}, not {expected}"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("text", [t for t in TEXTS if is_floating(t)])
def test_gradients_equal_differences(text: str) -> None:
    found = gradients(text, {n: tw.Tensor(a) for n, a in WIDE.items()})
    check_differences(text, {n: np.asarray(g) for n, g in found.items()})


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("group", [*CASES, "more"])
def test_compiled_gradients_equal_those_at_once(group: str) -> None:
    texts = [t for t in CASES.get(group, MORE) if is_floating(t)]

    def run(**data: Any) -> dict[str, Any]:
        return {f"{t} {n}": g for t in texts for n, g in gradients(t, data).items()}

    for name, g in tw.jit(run)(**WIDE).items():
        expected = gradients(name.rpartition(" ")[0], {n: tw.Tensor(a) for n, a in WIDE.items()})
        z = np.asarray(expected[name.rpartition(" ")[2]])
        scale = np.abs(np.nan_to_num(z)).max(initial=1e-3)
        np.testing.assert_allclose(np.asarray(g), z, rtol=0, atol=1e-9 * scale, err_msg=name)


def test_every_function_is_differentiated_or_on_a_list() -> None:
    used = {n for t in TEXTS if is_floating(t) for n in re.findall(r"xp\.((?:linalg\.)?\w+)", t)}
    listed = {name for names in NOT_DIFFERENTIABLE.values() for name in names.split()}
    assert not set(FUNCTIONS) - used - listed, "functions whose gradient is not tested"
    assert not listed - set(FUNCTIONS)
    assert not listed & {n for t in MORE for n in re.findall(r"xp\.((?:linalg\.)?\w+)", t)}
