"""Scatters use lanes and threads only if no two updates have the same place. If some have, the order and the
sums of updates are kept.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tilewright as tw

pytestmark = pytest.mark.every_isa

generator = torch.Generator().manual_seed(0)


class Model(torch.nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def places(*shape: int, upto: int) -> torch.Tensor:
    return torch.randint(0, upto, shape, generator=generator)


CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], str]] = {
    "long rows": (
        lambda x, i, u: x.index_add(0, i, u),
        (random(50, 512), places(70, upto=50), random(70, 512)),
        "parallel vectorize",
    ),
    "odd rows": (
        lambda x, i, u: x.index_add(0, i, u),
        (random(50, 531), places(70, upto=50), random(70, 531)),
        "parallel vectorize",
    ),
    "short rows": (
        lambda x, i, u: x.index_add(0, i, u),
        (random(50, 20), places(70, upto=50), random(70, 20)),
        "vectorize",
    ),
    "within rows": (
        lambda x, i, u: x.scatter_add(1, i, u),
        (random(50, 33), places(50, 33, upto=33), random(50, 33)),
        "parallel vectorize",
    ),
    "across rows": (
        lambda x, i, u: x.scatter_add(0, i, u),
        (random(50, 600), places(70, 600, upto=50), random(70, 600)),
        "parallel vectorize",
    ),
    "part of the rows": (
        lambda x, i, u: x.scatter_add(0, i, u),
        (random(50, 600), places(70, 300, upto=50), random(70, 300)),
        "vectorize",
    ),
    "cache": (
        lambda x, i, u: x.index_copy(2, i, u),
        (random(1, 4, 64, 16), torch.tensor([7]), random(1, 4, 1, 16)),
        "parallel vectorize",
    ),
    "one element": (
        lambda x, i, u: x.scatter_add(1, i, u),
        (random(1, 1), places(1, 1, upto=1), random(1, 1)),
        "",
    ),
    "one row": (
        lambda x, i, u: x.scatter_add(1, i, u),
        (random(1, 40), places(1, 9, upto=40), random(1, 9)),
        "vectorize",
    ),
    "maxima": (
        lambda x, i, u: x.scatter_reduce(1, i, u, "amax"),
        (random(50, 33), places(50, 33, upto=33), random(50, 33)),
        "parallel vectorize",
    ),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_scatter(case: str, threads: int) -> None:
    function, inputs, kinds = CASES[case]
    library = tw.compile(Model(function), inputs, cache=False, threads=threads)
    torch.testing.assert_close(library(*inputs), function(*inputs), rtol=1e-5, atol=1e-5)
    for kind in ("parallel", "vectorize"):
        assert (f'kind = "{kind}"' in library.ir("loop")) == (kind in kinds)


def test_the_last_of_equal_places_wins() -> None:
    """The last of several updates of a place is kept, in row-major order, as in NumPy and the interpreter.
    ONNX does not define the order.
    """
    x, u = random(8, 64), random(300, 64)
    where = places(300, upto=8)
    library = tw.compile(Model(lambda x, i, u: x.index_put((i,), u)), (x, where, u), cache=False)
    wanted = x.numpy().copy()
    for k, place in enumerate(where.tolist()):
        wanted[place] = u[k]
    torch.testing.assert_close(library(x, where, u), torch.tensor(wanted))
