"""Complex numbers of exported programs, compiled and run, against eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402

Z = torch.Generator().manual_seed(1)


def z(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.complex64, generator=Z)


def r(*shape: int) -> Any:
    return torch.randn(shape, generator=Z)


def compare(function: Callable[..., Any], *args: Any) -> None:
    class Model(torch.nn.Module):
        def forward(self, *x: Any) -> Any:
            return function(*x)

    expected, result = function(*args), tw.compile(Model(), args)(*args)
    if not isinstance(expected, tuple):
        expected, result = (expected,), (result,)
    for want, got in zip(expected, result, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


def test_arithmetic() -> None:
    compare(
        lambda a, b: (a * b + 2j * a - b / (a + 3), a.conj() * b, a**2, a**0.5, a / 2.0, 1.0 / b),
        z(4, 8),
        z(4, 8),
    )
    compare(
        lambda a, b: (a.abs(), b.angle(), a == b, a != b, a.isfinite(), torch.real(a), torch.imag(b)),
        z(5),
        z(5),
    )


def test_functions() -> None:
    compare(
        lambda a: (a.exp(), a.log(), a.sqrt(), a.sin(), a.tanh(), a.sigmoid(), a.sgn(), a.reciprocal()),
        z(6, 5),
    )


def test_real_and_complex_ones_together() -> None:
    compare(
        lambda a, x: (
            a * x,
            x + a,
            x - a,
            torch.where(x > 0, a, x.to(a.dtype)),
            torch.cat([a, x]),
            torch.stack([a, a], 1),
        ),
        z(4, 8),
        r(4, 8),
    )
    compare(
        lambda x: (torch.complex(x, 2 * x), torch.zeros(3, dtype=torch.complex64) + x, torch.full((2,), 1j)),
        r(3),
    )


def test_shapes_places_and_sums() -> None:
    compare(lambda a: (a[:, 1:3], a[torch.tensor([0, 2])], a.T.contiguous(), a.roll(1, 0), a.tril()), z(4, 8))
    compare(
        lambda a: (a.sum(0), a.mean(), a.cumsum(1), torch.nn.functional.pad(a, (1, 2)), *a.split(4, 1)),
        z(4, 8),
    )


def test_products() -> None:
    compare(
        lambda a, b: (a @ b.T, a @ b.mH, torch.einsum("ij,kj->ik", a, b), torch.outer(a[0], b[0])),
        z(4, 8),
        z(4, 8),
    )
    compare(lambda a, x: (a @ x.to(a.dtype).T, torch.nn.functional.linear(a, a, a[:, 0])), z(4, 8), r(4, 8))


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_fourier_transforms(norm: str) -> None:
    compare(
        lambda a: (torch.fft.fft(a, norm=norm), torch.fft.ifft2(a, norm=norm), torch.fft.fftn(a, norm=norm)),
        z(4, 6),
    )
    compare(
        lambda x: (torch.fft.rfft(x, norm=norm), torch.fft.rfft2(x, norm=norm), torch.fft.fft(x, norm=norm)),
        r(4, 7),
    )
    compare(
        lambda a: (torch.fft.irfft(a, n=9, norm=norm), torch.fft.irfftn(a, norm=norm), torch.fft.hfft(a)),
        z(4, 5),
    )


def test_short_time_transforms() -> None:
    def both(x: Any) -> Any:
        window = torch.hann_window(16)
        spectrum = torch.stft(x, 16, hop_length=4, window=window, return_complex=True)
        return spectrum, torch.istft(spectrum, 16, 4, window=window)

    compare(both, r(64))


class Rotated(torch.nn.Module):
    """A rotary position embedding that stores its rotations as complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("waves", torch.polar(torch.ones(16, 4), torch.rand(16, 4, generator=Z)))

    def forward(self, x: Any, c: Any) -> Any:
        q = torch.view_as_complex(x.reshape(x.shape[0], -1, 4, 2))
        q = q * self.waves[: q.shape[1]]
        return torch.view_as_real(q).flatten(2), q * c, torch.fft.rfft(x, dim=1)


def test_dynamic_sizes_and_numbers_at_the_border() -> None:
    model = Rotated()
    library = tw.compile(model, (r(2, 6, 8), z(1)), dims={"x": {0: "batch", 1: "seq"}})
    for batch, seq in ((2, 6), (3, 9), (1, 2)):
        args = r(batch, seq, 8), z(1)
        for want, got in zip(model(*args), library(*args), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    with pytest.raises(tw.ShapeError, match="input 'c': expected complex numbers, got torch.float32"):
        library(r(2, 6, 8), r(1))


def test_errors_name_operators_without_complex_numbers() -> None:
    with pytest.raises(tw.UnsupportedOperatorError, match="aten.prod.default.*\n.*complex numbers"):
        compare(lambda a: a.prod(), z(3))
