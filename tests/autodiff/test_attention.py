"""Gradients of attention and rotary embedding against torch.autograd of their formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
import tilewright.frontends.nn.functional as tf
from tests.autodiff.against_torch import check_gradients, random
from tilewright.dialects.graph import attention_blocks


@pytest.fixture(params=["at once", "blocks"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both forms of the gradients, whatever the sizes; the blocks have two rows, or three where that leaves
    fewer.
    """
    limits = {"DENSE_BYTES": 1 << 40, "DENSE_HEAD": 1 << 40}
    if request.param == "blocks":
        limits = {"DENSE_BYTES": 0, "DENSE_HEAD": 0, "BLOCK_BYTES": 8, "LEAST_ROWS": 2}
    for name, limit in limits.items():
        monkeypatch.setattr(attention_blocks, name, limit)
    return str(request.param)


def formula(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    sinks: Any = None,
    *,
    scale: Any = None,
    causal: Any = False,
    softcap: Any = 0.0,
) -> Any:
    """Attention as `graph.attention` defines it, by operators that torch differentiates."""
    repeat = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeat, 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    hidden = torch.zeros(scores.shape, dtype=torch.bool)
    if mask is not None and mask.dtype == torch.bool:
        hidden = hidden | ~mask
    elif mask is not None:
        scores = scores + mask
    if causal:
        hidden = hidden | ~torch.ones(scores.shape[2:], dtype=torch.bool).tril()
    none = hidden.all(-1, keepdim=True)
    scores = scores.masked_fill(hidden & ~none, -math.inf)
    if sinks is not None:
        column = sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = F.softmax(torch.cat((scores, column), -1), -1)[..., :-1]
    else:
        weights = F.softmax(scores, -1)
    return weights.masked_fill(none, 0.0) @ v


Q, K, V = random(2, 4, 5, 8), random(2, 4, 7, 8, seed=1), random(2, 4, 7, 6, seed=2)
GROUPED = (random(2, 2, 7, 8, seed=1), random(2, 2, 7, 6, seed=2))
BOOLEAN = random(2, 1, 5, 7, seed=3) > 0
BOOLEAN[0, 0, 2] = False

CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "plain": ((Q, K, V), {}),
    "causal": ((Q, K, V), {"causal": True}),
    "scale and cap": ((Q, K, V), {"scale": 0.7, "softcap": 1.5}),
    "grouped queries": ((Q, *GROUPED), {"causal": True}),
    "one batch of keys": ((Q, K[:1], V[:1]), {}),
    "more rows than keys": ((random(1, 2, 11, 4), K[:1, :2, :4, :4], V[:1, :2, :4]), {"causal": True}),
    "added mask": ((Q, K, V, random(2, 4, 5, 7, seed=4)), {}),
    "added mask that broadcasts": ((Q, *GROUPED, random(1, 4, 1, 7, seed=4)), {}),
    "added mask of two dimensions": ((Q, *GROUPED, random(5, 7, seed=4)), {"softcap": 2.0}),
}


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("name", CASES)
def test_attention(name: str) -> None:
    args, attributes = CASES[name]
    check_gradients(lambda *a: tf.attention(*a, **attributes), lambda *a: formula(*a, **attributes), *args)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("grouped", [False, True])
def test_boolean_masks_that_hide_a_whole_row(grouped: bool) -> None:
    check_gradients(
        lambda q, k, v, m: tf.attention(q, k, v, m, causal=True),
        lambda q, k, v, m: formula(q, k, v, m, causal=True),
        Q,
        *(GROUPED if grouped else (K, V)),
        BOOLEAN,
        count=3,
    )


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("masked", [False, True])
def test_sinks(masked: bool) -> None:
    """Scores without a value take part in a row's softmax; where all keys are hidden they change nothing."""
    mask = (BOOLEAN,) if masked else ()
    check_gradients(
        lambda q, k, v, s, *m: tf.attention(q, k, v, *m, sinks=s),
        lambda q, k, v, s, *m: formula(q, k, v, *(m or (None,)), s),
        Q,
        *GROUPED,
        random(4, seed=5),
        *mask,
        count=4,
    )


@pytest.mark.usefixtures("form")
def test_scales_of_keys_and_values() -> None:
    check_gradients(
        lambda q, k, v, a, b: tf.attention(q, k, v, k_scale=a, v_scale=b),
        lambda q, k, v, a, b: formula(q, k * a[..., None], v * b[..., None]),
        Q,
        *GROUPED,
        random(2, 2, 7, seed=6),
        random(2, 2, 7, seed=7),
    )


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("name", ["causal", "grouped queries"])
def test_second_order(name: str) -> None:
    args, attributes = CASES[name]
    check_gradients(
        lambda *a: tf.attention(*a, **attributes), lambda *a: formula(*a, **attributes), *args, order=2
    )


@pytest.mark.usefixtures("form")
def test_second_order_where_a_row_is_hidden() -> None:
    check_gradients(
        lambda q, k, v, m: tf.attention(q, k, v, m),
        lambda q, k, v, m: formula(q, k, v, m),
        Q,
        K,
        V,
        BOOLEAN,
        count=3,
        order=2,
        compiled=(),
    )


@pytest.mark.usefixtures("form")
def test_dynamic_lengths_with_a_mask() -> None:
    """A mask without a gradient of its own, added to the scores."""
    names = {k: {2: "length"} for k in ("args_0", "args_1", "args_2")}
    check_gradients(
        lambda q, k, v, m: tf.attention(q, k, v, m),
        lambda q, k, v, m: formula(q, k, v, m),
        random(2, 4, 6, 4),
        random(2, 2, 6, 4, seed=1),
        random(2, 2, 6, 4, seed=2),
        random(2, 1, 6, 6, seed=3),
        count=3,
        dims={**names, "args_3": {2: "length", 3: "length"}},
    )


@pytest.mark.usefixtures("form")
def test_dynamic_lengths() -> None:
    check_gradients(
        lambda q, k, v: tf.attention(q, k, v, causal=True),
        lambda q, k, v: formula(q, k, v, causal=True),
        random(2, 2, 6, 4),
        random(2, 2, 6, 4, seed=1),
        random(2, 2, 6, 4, seed=2),
        dims={f"args_{k}": {2: "length"} for k in range(3)},
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_memory_of_long_sequences(causal: bool, dynamic: bool) -> None:
    """The working memory grows with the rows, not with their square."""
    sizes = []
    for rows in (1024, 2048):
        q, k, v, dy = (random(2, 4, rows, 16, seed=s).astype(np.float32) for s in range(4))
        dims = {n: {2: f"rows<={rows}"} for n in ("q", "k", "v", "dy")} if dynamic else None

        def gradients(q: Any, k: Any, v: Any, dy: Any) -> Any:
            return tw.vjp(lambda *x: tf.attention(*x, causal=causal), q, k, v)[1](dy)

        library = tw.compile(gradients, (q, k, v, dy), dims=dims)
        sizes.append(library.report.memory["arena_bytes"])
    block = attention_blocks.BLOCK_BYTES
    operands = 2 * 4 * 2048 * 16 * 4
    assert sizes[1] < 4 * block + 4 * operands < 2 * 4 * 2048 * 2048 * 4 / 4
    assert sizes[1] < 2.2 * sizes[0]


def test_the_forward_pass_keeps_no_scores() -> None:
    """The backward pass computes scores anew, so a chain of attentions needs memory for those of one."""
    layers, shape = 6, (2, 4, 128, 16)
    x, dy = (random(*shape, seed=s).astype(np.float32) for s in range(2))
    scores, operand = 2 * 4 * 128 * 128 * 4, 2 * 4 * 128 * 16 * 4

    def chain(x: Any) -> Any:
        for _ in range(layers):
            x = tf.attention(x, x, x)
        return x

    library = tw.compile(lambda x, dy: tw.vjp(chain, x)[1](dy), (x, dy))
    assert library.report.memory["arena_bytes"] < 3 * scores + layers * operand + 4 * operand


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(interleaved: bool) -> None:
    """Cosines and sines that differ within a pair: the transpose is taken, not the inverse rotation."""

    def reference(x: Any, cos: Any, sin: Any) -> Any:
        if interleaved:
            turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
        else:
            turned = torch.cat((-x[..., 4:], x[..., :4]), -1)
        return x * cos + turned * sin

    check_gradients(
        lambda x, c, s: tf.rotary(x, c, s, interleaved),
        reference,
        random(2, 3, 5, 8),
        random(5, 8, seed=1),
        random(5, 8, seed=2),
    )


@pytest.mark.usefixtures("form")
def test_bfloat16_products_are_rounded_once() -> None:
    q, k, v = (torch.from_numpy(random(2, 4, 16, 32, seed=s)).bfloat16() for s in range(3))
    function = tw.grad(lambda q, k, v: tf.attention(q, k, v, causal=True).sum(), (0, 1, 2))
    found = tw.compile(function, (q, k, v))(q, k, v)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    for got, want in zip(found, torch.autograd.grad(formula(*wide, causal=True).sum(), wide), strict=True):
        error = (got.double() - want).abs().max()
        assert error <= 2e-2 * want.abs().max()
