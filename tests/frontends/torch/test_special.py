"""Special functions over ranges that use every formula, compared with torch's in float64, or with mpmath
where torch's have only seven digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.frontends.torch import import_torch  # noqa: E402

from .checks import Lambda, random, run  # noqa: E402

ALL = torch.cat(
    [torch.linspace(-30, 30, 1201), torch.tensor([0.0, -0.0, 1e-30, 1e30, float("inf"), float("nan")])]
)
FINITE = ALL[:-3]
RANGES: dict[str, Any] = {
    **dict.fromkeys(
        ("modified_bessel_i0", "modified_bessel_i1", "i0e", "i1e", "spherical_bessel_j0"), FINITE
    ),
    **dict.fromkeys(("modified_bessel_k0", "modified_bessel_k1"), ALL),
    **dict.fromkeys(("scaled_modified_bessel_k0", "scaled_modified_bessel_k1"), ALL),
}
POLYNOMIALS = [
    *(f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"),
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
]


def agree(function: Any, wanted: Any, *inputs: Any) -> None:
    """Check that the results are within a few units in the last place of the expected ones, or of their
    neighbours' magnitude where the function crosses zero.
    """
    (got,) = run(import_torch(Lambda(function), inputs), inputs)
    assert got.dtype == np.float32
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(got, np.asarray(wanted).astype(np.float32), rtol=4e-7, atol=2e-8)


@pytest.mark.parametrize("name", RANGES)
def test_functions(name: str) -> None:
    function, x = getattr(torch.special, name), RANGES[name]
    agree(function, function(x.double()), x)


@pytest.mark.parametrize("kind", "jy")
@pytest.mark.parametrize("order", (0, 1))
def test_bessel_functions(kind: str, order: int) -> None:
    import mpmath

    x = FINITE[(FINITE >= 0) & (FINITE < 100)][::3]
    exact = [
        float(getattr(mpmath, f"bessel{kind}")(order, v)) if v or kind == "j" else -np.inf for v in x.tolist()
    ]
    agree(getattr(torch.special, f"bessel_{kind}{order}"), exact, x)


def test_airy_function() -> None:
    import mpmath

    x = FINITE[FINITE.abs() < 100][::3]
    agree(torch.special.airy_ai, [float(mpmath.airyai(v)) for v in x.tolist()], x)


def test_edges() -> None:
    x = torch.tensor([0.0, -1.0, -20.0, float("inf"), float("nan")])
    for name in ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"):
        function = getattr(torch.special, name)
        agree(function, function(x.double()), x)


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name: str) -> None:
    """Polynomials agree for all degrees from negative ones on, and for values that are not degrees."""
    degrees = torch.tensor([-2.0, 0.0, 0.9, 1.0, 2.0, 5.5, 9.0, 20.0, float("nan"), float("-inf")])[:, None]
    x = torch.cat([random(20) * 0.5, torch.tensor([-1.0, 0.0, 0.5, 1.0, 1.5])])
    function = getattr(torch.special, name)
    agree(function, function(x.double(), degrees.double()), x, degrees)


@pytest.mark.parametrize("order", range(5))
def test_polygamma(order: int) -> None:
    import mpmath

    x = torch.cat([torch.linspace(-5.05, 40, 400), torch.tensor([1e-3, 1e3])])
    agree(lambda v: torch.polygamma(order, v), [float(mpmath.polygamma(order, v)) for v in x.tolist()], x)


def test_zeta() -> None:
    import mpmath

    s = torch.tensor([1.5, 2, 3, 7.25, 30]).repeat(60)
    q = torch.linspace(0.05, 30, 300)
    exact = [float(mpmath.zeta(a, b)) for a, b in zip(s.tolist(), q.tolist(), strict=True)]
    agree(torch.special.zeta, exact, s, q)
    edges = torch.cartesian_prod(torch.tensor([0.5, 1, 2, 2.5, 3]), torch.tensor([-3, -2.5, -0.25, 0, 1e30]))
    agree(torch.special.zeta, torch.special.zeta(*edges.double().T), *edges.T.contiguous())
