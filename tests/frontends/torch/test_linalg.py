"""torch.linalg against eager torch; factors that are not unique are compared by their product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402


class _Calls(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


def _matrices(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _positive(x: Any) -> Any:
    return x @ x.mT + torch.eye(x.shape[-1])


CASES: dict[str, Callable[..., Any]] = {
    "det": torch.linalg.det,
    "slogdet": torch.linalg.slogdet,
    "inv": torch.linalg.inv,
    "solve": lambda x: torch.linalg.solve(x, x[..., :2] + 1),
    "lu": torch.linalg.lu,
    "cholesky": lambda x: torch.linalg.cholesky(_positive(x)),
    "qr": torch.linalg.qr,
    "geqrf": torch.geqrf,
    "eigvalsh": lambda x: torch.linalg.eigvalsh(_positive(x)),
    "ldl_factor": lambda x: torch.linalg.ldl_factor_ex(x + x.mT),
    "ldl_solve": lambda x: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(x + x.mT), x[..., :2]),
    "ldl_of_nothing": lambda x: torch.linalg.ldl_factor_ex(x[:, :0, :0]),
    "svdvals": torch.linalg.svdvals,
    "pinv": lambda x: torch.linalg.pinv(x[..., :3]),
    "matrix_exp": lambda x: torch.linalg.matrix_exp(x / 2),
    "lstsq_by_qr": lambda x: torch.linalg.solve_triangular(
        torch.linalg.qr(x[..., :3]).R, torch.linalg.qr(x[..., :3]).Q.mT @ x[..., 3:], upper=True
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_against_torch(name: str) -> None:
    x = _matrices(2, 5, 5)
    model = _Calls(CASES[name]).eval()
    wanted, result = model(x), tw.compile(model, (x,), cache=False)(x)
    torch.testing.assert_close(
        tuple(result) if isinstance(result, tuple) else result, _plain(wanted), rtol=1e-3, atol=1e-4
    )


def _plain(results: Any) -> Any:
    return tuple(results) if isinstance(results, tuple) else results


def test_a_matrix_that_is_not_positive_definite_ends_the_run() -> None:
    model = _Calls(torch.linalg.cholesky).eval()
    library = tw.compile(model, (torch.eye(3),), cache=False)
    torch.testing.assert_close(library(torch.eye(3)), torch.eye(3))
    with pytest.raises(Exception, match="not positive definite"):
        library(-torch.eye(3))


def test_eigenvectors_are_orthogonal() -> None:
    """The eigenvectors stay orthogonal even where rounding has made the matrix asymmetric during the
    iteration.
    """
    x = _positive(_matrices(20, 7, 7))
    model = _Calls(torch.linalg.eigh).eval()
    values, vectors = tw.compile(model, (x,), cache=False)(x)
    eye = torch.eye(7).expand(20, 7, 7)
    torch.testing.assert_close(vectors.mT @ vectors, eye, rtol=0, atol=4e-6)
    torch.testing.assert_close((vectors * values[:, None]) @ vectors.mT, x, rtol=0, atol=4e-5)
