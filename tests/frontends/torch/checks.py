"""Helpers of the PyTorch front end's tests, which import and verify a model, interpret it and compare it with
eager torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.frontends.torch import import_torch  # noqa: E402
from tilewright.ir.core import Module  # noqa: E402
from tilewright.ir.interpreter import Interpreter  # noqa: E402
from tilewright.ir.verifier import verify  # noqa: E402


class Lambda(torch.nn.Module):
    """A module around a function of tensors ``x``, ``y``, ``z``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, y: Any = None, z: Any = None) -> Any:
        return self.function(*(v for v in (x, y, z) if v is not None))


def random(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    """Return standard normal floats, integers in [-5, 6), or booleans."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if dtype is not None and dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype is not None and not dtype.is_floating_point:
        return torch.randint(-5, 6, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype or torch.float32)


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return a tensor as an array. The bits of bfloat16 are reinterpreted, because torch does not convert
    it.
    """
    x = x.detach().contiguous()
    if x.dtype is torch.bfloat16:
        import ml_dtypes

        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def close(got: Any, wanted: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Check for equal dtypes and shapes, and for values within a tolerance scaled by the largest
    magnitude.
    """
    wanted = to_numpy(wanted)
    assert got.dtype == wanted.dtype, (got.dtype, wanted.dtype)
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, wanted)
        return
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    finite = wanted[np.isfinite(wanted)]
    scale = max(1.0, float(np.abs(finite).max()) if finite.size else 1.0)
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol * scale)


def run(module: Module, inputs: Sequence[Any]) -> list[Any]:
    return Interpreter(module).run("main", [to_numpy(x) for x in inputs])


def check(
    model: Any,
    *inputs: Any,
    dims: Any = None,
    others: Sequence[Sequence[Any]] = (),
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> Module:
    """Import the model with `inputs` as examples, and compare it with eager torch on `inputs` and on each of
    `others`. Returns the module.
    """
    model = model if isinstance(model, torch.nn.Module) else Lambda(model)
    model.eval()
    module = import_torch(model, inputs, dims=dims)
    verify(module)
    for example in (inputs, *others):
        with torch.no_grad():
            wanted = torch.utils._pytree.tree_leaves(model(*example))
        for got, want in zip(run(module, example), [w for w in wanted if w is not None], strict=True):
            close(got, want, rtol, atol)
    return module


def operators(module: Module) -> list[str]:
    """Return the names of the graph operators of ``main``, in order."""
    return [op.name for op in module.symbol("main").body.ops]
