"""Attention in one kernel agrees with PyTorch's: masks, windows, grouped heads, head sizes, fixed and dynamic
lengths, and long rows in blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import tilewright as tw
from tilewright.ir import notes

pytestmark = pytest.mark.every_isa

LENGTHS = (1, 2, 7, 16, 37, 64, 65, 130, 257, 520)


class Attend(torch.nn.Module):
    """A module that computes `form` of (q, k, v, mask)."""

    def __init__(self, form: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.form = form

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> Any:
        return self.form(q, k, v, mask)


def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _: Any) -> torch.Tensor:
    """Return attention to the last 40 keys up to the query's own."""
    rows, columns = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
    return sdpa(q, k, v, attn_mask=(columns <= rows) & (columns > rows - 40))


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + mask, -1) @ v


FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "plain": lambda q, k, v, m: sdpa(q, k, v),
    "causal": lambda q, k, v, m: sdpa(q, k, v, is_causal=True),
    "window": window,
    "mask": lambda q, k, v, m: sdpa(q, k, v, attn_mask=m),
    "eager": eager,
    "causal grouped": lambda q, k, v, m: sdpa(q, k, v, is_causal=True, enable_gqa=True),
    "capped": lambda q, k, v, m: torch.softmax(30 * torch.tanh(q @ k.transpose(2, 3) / 30), -1) @ v,
    "unscaled": lambda q, k, v, m: sdpa(q, k, v, scale=1.0),
}


def factors(batch: int, heads: int, groups: int, rows: int, keys: int, depth: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * 1000 + keys)
    shapes = (batch, heads, rows, depth), (batch, groups, keys, depth), (batch, groups, keys, depth)
    return [torch.randn(s, generator=generator) for s in shapes]


def check(library: Any, form: str, inputs: list[torch.Tensor]) -> None:
    wanted = Attend(FORMS[form])(*inputs)
    torch.testing.assert_close(library(*inputs), wanted, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("form", ["plain", "causal", "window", "causal grouped", "capped"])
def test_dynamic_lengths(form: str) -> None:
    heads, groups = (6, 2) if "grouped" in form else (3, 3)
    dims = {name: {2: "seq<=520"} for name in ("q", "k", "v")}
    library = tw.compile(Attend(FORMS[form]), factors(1, heads, groups, 9, 9, 32), dims=dims, cache=False)
    for n in LENGTHS:
        check(library, form, factors(1, heads, groups, n, n, 32))


@pytest.mark.parametrize("kind", ["boolean", "padding", "added", "per head"])
def test_masks(kind: str) -> None:
    dims = {"q": {2: "rows<=300"}, "k": {2: "keys<=300"}, "v": {2: "keys"}}
    lead = {"boolean": (2, 1), "padding": (2, 1), "added": (1, 1), "per head": (1, 4)}[kind]

    def make(rows: int, keys: int) -> list[torch.Tensor]:
        shape = (*lead, 1 if kind == "padding" else rows, keys)
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(keys)) < 0.6
        if kind == "added" or kind == "per head":
            return [*factors(2, 4, 4, rows, keys, 24), torch.randn(shape)]
        if rows > 2 and kind == "boolean":
            mask[0, 0, 1] = False  # A row that attends to nothing is zero.
        return [*factors(2, 4, 4, rows, keys, 24), mask]

    own = {3: "keys"} if kind == "padding" else {2: "rows", 3: "keys"}
    form = "eager" if kind == "per head" else "mask"
    library = tw.compile(Attend(FORMS[form]), make(9, 11), dims={**dims, "mask": own}, cache=False)
    for rows, keys in ((1, 1), (1, 130), (7, 5), (64, 64), (130, 37), (33, 200), (300, 300)):
        check(library, form, make(rows, keys))


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        ("plain", (1, 2, 2, 197, 197, 64)),
        ("causal", (1, 2, 2, 128, 128, 80)),
        ("unscaled", (2, 1, 1, 50, 77, 96)),
        ("causal", (1, 1, 1, 100, 260, 128)),
        ("causal", (1, 1, 1, 150, 60, 40)),
        ("window", (1, 2, 2, 200, 200, 64)),
        ("window", (1, 1, 1, 300, 70, 17)),
        ("plain", (1, 12, 12, 1, 1000, 64)),
        ("causal grouped", (1, 8, 2, 33, 33, 64)),
        ("plain", (5, 3, 3, 49, 49, 32)),
    ],
    ids=str,
)
def test_static_shapes(form: str, shape: tuple[int, ...]) -> None:
    inputs = factors(*shape)
    check(tw.compile(Attend(FORMS[form]), inputs, cache=False), form, inputs)


def in_blocks_of(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = import_module("tilewright.targets.llvm.rules.chain")
    monkeypatch.setattr(rule, "COLUMNS", columns)
    monkeypatch.setattr(rule, "most_columns", lambda *_: columns)


def test_as_many_columns_as_the_cache_holds_stay_whole() -> None:
    for keys, whole in ((3500, True), (3800, False)):
        shapes = {"q": (1, 1, 64, 64), "k": (1, 1, keys, 64), "v": (1, 1, keys, 64)}
        inputs = [torch.zeros(s) for s in shapes.values()]
        library = tw.compile(
            Attend(FORMS["plain"]), inputs, target="cpu:x86-64-v4", precision="bf16", cache=False
        )
        assert ("_roll in " not in library.ir("loop")) == whole


@pytest.mark.parametrize("form", ["plain", "causal", "window"])
def test_long_rows_go_in_blocks(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long rows are computed in blocks, which are small here, and the sums are rescaled from block to block.
    The window hides whole blocks on both sides.
    """
    in_blocks_of(64, monkeypatch)
    inputs = factors(1, 2, 2, 300, 300, 32)
    library = tw.compile(Attend(FORMS[form]), inputs, cache=False)
    assert "_roll in " in library.ir("loop")
    check(library, form, inputs)
    inputs[0] *= 40  # The maximum changes much from block to block.
    check(library, form, inputs)


def test_long_rows_of_narrow_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """In long rows, the weights are converted to bfloat16 between the softmax and the product with the
    values.
    """
    in_blocks_of(64, monkeypatch)
    inputs = factors(1, 2, 2, 300, 300, 32)
    library = tw.compile(Attend(FORMS["window"]), inputs, precision="bf16", cache=False)
    assert "_roll in " in library.ir("loop")
    torch.testing.assert_close(library(*inputs), Attend(FORMS["window"])(*inputs), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("precision", [None, "bf16"])
@pytest.mark.parametrize("form", ["plain", "causal", "mask"])
def test_what_does_not_show_is_left_out(form: str, precision: str | None) -> None:
    """Infinities and NaN reach the results that they affect, although the maximum ignores NaN, and
    exponentials that are rounded to 16 bits are computed with fewer digits.
    """
    inputs = factors(1, 2, 2, 70, 70, 32)
    inputs[0][0, 0, 3, 5] = inputs[0][0, 1, 69, 0] = float("nan")
    inputs[1][0, 1, 20, 7] = float("inf")
    mask = torch.randn(1, 1, 70, 70)
    mask[..., 30:] = -float("inf")
    arguments = [*inputs, mask] if form == "mask" else inputs
    library = tw.compile(Attend(FORMS[form]), arguments, precision=precision, cache=False)
    text = library.ir("loop")
    assert notes.IGNORE_NAN.key in text and (notes.RELAXED_ACCURACY.key in text) == (precision is not None)
    near = 2e-5 if precision is None else 3e-2
    rounded = arguments if precision is None else [x.bfloat16().float() for x in arguments]
    wanted = Attend(FORMS[form])(*rounded)
    assert wanted.isnan().any(-1).sum() > 1 and not wanted.isnan().all()
    torch.testing.assert_close(library(*arguments), wanted, rtol=near, atol=near, equal_nan=True)


@pytest.mark.parametrize("heads", [4, 16], ids=["one query a key head", "four queries a key head"])
def test_a_few_queries_pack_no_keys(heads: int) -> None:
    inputs = factors(1, heads, 4, 1, 700, 64)
    library = tw.compile(Attend(lambda q, k, v, m: sdpa(q, k, v, enable_gqa=True)), inputs, cache=False)
    assert "@pack" not in library.ir("loop")
    wanted = sdpa(*inputs, enable_gqa=True)
    torch.testing.assert_close(library(*inputs), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_one_kernel(causal: bool) -> None:
    inputs = factors(1, 4, 4, 128, 128, 64)
    library = tw.compile(Attend(FORMS["causal" if causal else "plain"]), inputs, cache=False)
    kernels = [
        name
        for name in library.ir("loop").split()
        if name.startswith("@") and "pack" not in name and name != "@main"
    ]
    assert len(set(kernels)) == 1
