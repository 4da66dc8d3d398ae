"""Operators whose result sizes or segments depend on values: nonzero elements, distinct elements, sums of
runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from tilewright.frontends.torch import import_torch  # noqa: E402

from .checks import Lambda, check, random, run  # noqa: E402

T = torch.tensor
X = random(3, 4)
TWICE = T([[2, 0, 1], [1, 5, 0], [1, 5, 0], [1, 0, 7], [2, 0, 1], [1, 5, 0]])
ROWS, BAGS = T([0, 4, 2, 2, 1, 1]), T([0, 3, 3, 4])

CASES: dict[str, tuple[Any, ...]] = {
    "nonzero_static": (lambda x: torch.nonzero_static(x > 0, size=20), X),
    "nonzero_static_few": (lambda x: torch.nonzero_static(x > 0, size=2, fill_value=7), X),
    "slices_apart": (lambda x, y: x.slice_scatter(y, 1, 1, 9, 3), random(3, 10), random(3, 3)),
    "resized": (lambda x: torch.ops.aten.resize(x, [2, 3]), X),
    "taken": (lambda x, y: torch.take_along_dim(x, y), X, T([[11, 1], [0, 3]])),
    "triangles": (lambda x: (torch.tril_indices(3, 4, -1) + x.shape[0], torch.triu_indices(4, 3, 1)), X),
    "truth_tables": (lambda x: (torch.outer(x[0], x[1]), torch.square(x)), X > 0),
    "unique_rows": (lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True), TWICE),
    "unique_columns": (lambda x: torch.unique(x, dim=1, return_inverse=True, return_counts=True), TWICE.T),
    "unique_of_equal_runs": (lambda x: torch.unique_consecutive(x * 0, dim=-1, return_counts=True), TWICE),
    "unique_of_runs": (lambda x: torch.unique_consecutive(x, dim=-2, return_counts=True), TWICE),
    **{
        f"bags_{mode}": (
            lambda x, y, z, mode=mode: F.embedding_bag(y, x, z, mode=mode, padding_idx=2),
            random(5, 4),
            ROWS,
            BAGS,
        )
        for mode in ("sum", "mean", "max")
    },
    "bags_weighted": (
        lambda x, y, z: F.embedding_bag(
            y, x, T([0, 2, 5]), mode="sum", per_sample_weights=z, include_last_offset=True
        ),
        random(5, 4),
        ROWS,
        random(6),
    ),
    **{
        f"segments_{how}": (
            lambda x, y, how=how: torch.segment_reduce(x, how, lengths=y, axis=0),
            random(6, 3),
            T([2, 0, 3, 1]),
        )
        for how in ("sum", "mean", "max", "min", "prod")
    },
    "segments_by_ends": (
        lambda x, y: torch.segment_reduce(x, "mean", offsets=y, axis=1, initial=2.0),
        random(2, 5),
        T([[0, 2, 5], [0, 5, 5]]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name: str) -> None:
    function, *inputs = CASES[name]
    check(function, *inputs)


def test_a_mask_may_choose_more_elements_than_there_are() -> None:
    """The bound of the result's size counts the elements after broadcasting with the mask. torch's own bound
    does not.
    """
    module = check(torch.masked_select, random(4), random(5, 4, dtype=torch.bool) | True)
    (result,) = module.symbol("main").body.terminator.operands
    (size,) = result.type.shape
    assert size.upper == 20


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (F.bilinear, (random(3, 4), random(3, 4, seed=1), random(2, 4, 4))),
        (torch.linalg.matrix_exp, (random(2, 3, 3) / 4,)),
        (lambda x: torch.linalg.vector_norm(x, 3, 1), (random(4, 50),)),
        (lambda x: torch.std(x, 1), (random(4, 50),)),
    ],
)
def test_narrow_floats_are_computed_in_float32(function: Any, inputs: Any) -> None:
    """The computation runs in float32 and rounds once, at the end. torch's exponential of bfloat16 matrices
    overflows, so the reference is computed in float32.
    """
    narrow = [x.bfloat16() for x in inputs]
    (got,) = run(import_torch(Lambda(function), narrow), narrow)
    wanted = function(*(x.float() for x in narrow)).numpy()
    np.testing.assert_allclose(got.astype(np.float32), wanted, rtol=2**-8, atol=1e-6)


def test_the_next_number() -> None:
    """The results equal torch's in every bit, from and to zeros, subnormals, infinities and NaN."""
    edges = T(
        [0.0, -0.0, 1e-45, 1.0, -2.0, 1.1754944e-38, 3.4028235e38, float("inf"), float("-inf"), float("nan")]
    )
    for dtype, bits in ((torch.float32, torch.int32), (torch.bfloat16, torch.int16)):
        x = edges.to(dtype)
        check(lambda x, y, bits=bits: torch.nextafter(x, y).view(bits), x[:, None], x[None, :])


@pytest.mark.parametrize("mode", ("bilinear", "bicubic"))
@pytest.mark.parametrize("size", ((4, 13), (20, 2)))
def test_antialiased_resizing(mode: str, size: tuple[int, int]) -> None:
    """Resizing with antialiasing agrees with torch; each dimension shrinks in one case and grows in
    another.
    """
    check(
        lambda x: F.interpolate(x, size=size, mode=mode, antialias=True, align_corners=mode == "bicubic"),
        random(2, 3, 9, 8),
        dims={"x": {2: "height", 3: "width"}},
        others=[(random(2, 3, 31, 6),)],
    )
