"""Kernels as operators of PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.errors import ShapeError

from .loop_programs import EXAMPLES, layer_norm_reference
from .sources import RMS, moments_kernel, rms_kernel, rms_reference


class Model(torch.nn.Module):
    def __init__(self, kernel: tw.Kernel, width: int = 24) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.weight = torch.nn.Parameter(torch.randn(width))
        self.kernel = kernel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.kernel(self.linear(x), self.weight, eps=1e-3)
        return y.tanh()


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model(rms_kernel()).eval().requires_grad_(False)


def test_eager_runs_the_compiled_kernel(model: Model) -> None:
    x, w = torch.randn(2, 3, 24), torch.randn(24)
    y = torch.ops.tilewright.rms(x, w, 0.5)
    np.testing.assert_allclose(y, rms_reference(x.numpy(), w.numpy(), 0.5), rtol=1e-5, atol=1e-5)
    with pytest.raises(ShapeError, match="input 'w' is float32"):
        torch.ops.tilewright.rms(x, w[1:])
    mean, place = moments_kernel()(x[0].double())
    torch.testing.assert_close(mean, x[0].double().mean(1))
    assert place.dtype is torch.int64
    torch.library.opcheck(torch.ops.tilewright.rms, (x, w, 0.5), test_utils="test_schema")
    torch.library.opcheck(torch.ops.tilewright.rms, (x, w, 0.5), test_utils="test_faketensor")


def test_compile(model: Model) -> None:
    x = torch.randn(3, 5, 24)
    library = tw.compile(model, (x,), dims={"x": {0: "batch", 1: "seq"}})
    assert "kernel.call" in library.ir("loop")
    for shape in ((3, 5), (1, 7)):
        y = torch.randn(*shape, 24)
        torch.testing.assert_close(library(y), model(y), rtol=1e-5, atol=1e-5)


def test_exported_program_in_a_file(model: Model, tmp_path: Path) -> None:
    x = torch.randn(4, 24)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("n", min=1)},))
    torch.export.save(program, tmp_path / "model.pt2")
    library = tw.compile(tmp_path / "model.pt2")
    y = torch.randn(9, 24)
    expected = model(y)
    torch.testing.assert_close(library(y), expected, rtol=1e-5, atol=1e-5)
    # torch knows operators by name: another source takes the place of the first, and is no hit of the cache
    rms_kernel(RMS.replace("* scale *", "* 2 * scale *"))
    double = torch.as_tensor(tw.compile(tmp_path / "model.pt2")(y))
    assert ((double - (2 * expected.double().atanh()).tanh()).abs() < 1e-3).all()


def test_torch_compile_with_a_gradient(model: Model) -> None:
    x = torch.randn(4, 24)
    compiled = torch.compile(model, backend="tilewright", options={"fallback": False})
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


def test_replaced_in_a_model() -> None:
    class Plain(torch.nn.Module):
        def __init__(self, form: int) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(24, 24)
            self.weight = torch.nn.Parameter(torch.randn(24))
            self.form = form

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                h = self.linear(x)
                if self.form == 0:
                    y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
                elif self.form == 1:
                    y = self.weight * (h / torch.sqrt((h * h).mean(-1, keepdim=True) + 1e-3))
                else:
                    y = torch.nn.functional.rms_norm(h, (24,), self.weight, 1e-5)
                x = x + y
            return x

    for form in range(3):
        model = Plain(form).eval().requires_grad_(False)
        x = torch.randn(3, 5, 24)
        library = tw.compile(model, (x,), replace=[rms_kernel()], dims={"x": {0: "batch"}})
        assert library.report.replaced == {"rms": 2}
        assert library.ir("graph").count("kernel.apply") == 2 and "rms_norm" not in library.ir("graph")
        torch.testing.assert_close(library(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_loop_program(tmp_path: Path) -> None:
    kernel = EXAMPLES["layer_norm"].kernel

    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(16, 16)
            self.weight, self.bias = (torch.nn.Parameter(torch.randn(16)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, mean = kernel(self.linear(x), self.weight, self.bias)
            result: torch.Tensor = y.tanh() + mean[:, None]
            return result

    x, w, b = torch.randn(5, 16), torch.randn(16), torch.randn(16)
    y, mean = kernel(x, w, b)
    expected = layer_norm_reference(x.numpy(), w.numpy(), b.numpy())
    np.testing.assert_allclose(y, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, expected[1], rtol=1e-4, atol=1e-5)
    torch.library.opcheck(kernel.torch, (x, w, b), test_utils="test_faketensor")
    model = Norm().eval().requires_grad_(False)
    wanted = model(x)
    library = tw.compile(model, (x,), dims={"x": {0: "batch"}})
    torch.testing.assert_close(library(x), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.compile(model, backend="tilewright")(x), wanted, rtol=1e-4, atol=1e-5)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("n", min=1)},))
    torch.export.save(program, tmp_path / "model.pt2")
    torch.testing.assert_close(tw.compile(tmp_path / "model.pt2")(x), wanted, rtol=1e-4, atol=1e-5)
