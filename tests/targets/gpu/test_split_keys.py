"""Attention of few queries: pieces of keys have blocks of their own, and their results are combined."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.targets.gpu.simulated import SMALL, Program, blocks, count

import tilewright as tw
from tilewright.dialects import simt
from tilewright.ir.matrix_atom import MMA_SYNC
from tilewright.passes.tensor import split_keys

BF16 = ml_dtypes.bfloat16
WITH_ATOMS = replace(SMALL, atoms=tuple(MMA_SYNC.values()), async_copies=True)
attention = tw.nn.functional.attention


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_keys, "PIECE", 32)


def drawn(dtype: Any, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def kinds(program: Program) -> list[str]:
    return [info.kind for info in program.lowered.kernels.values()]


def test_ragged_pieces_and_hidden_ones() -> None:
    """Four queries share the keys of a head; the mask hides all keys of a piece, and all keys of a
    sequence.
    """
    q, k, v = drawn(BF16, (2, 4, 1, 16), (2, 1, 70, 16), (2, 1, 70, 24))
    mask = np.random.default_rng(1).uniform(size=(2, 1, 1, 70)) > 0.3
    mask[0, ..., 32:64] = False
    mask[1] = False
    program = Program(lambda q, k, v, m: attention(q, k, v, m), (q, k, v, mask), gpu=WITH_ATOMS)
    assert kinds(program) == ["chain", "rows"]
    first = program.kernels[0]
    assert blocks(first) == 2 * 3  # sequences and pieces
    assert count(first, simt.Mma) == 2
    program.check(q, k, v, mask, rtol=2e-2, atol=1e-2)


def test_lengths_at_run_time() -> None:
    q, k, v = drawn(np.float32, (1, 2, 1, 8), (1, 1, 96, 8), (1, 1, 96, 8))
    program = Program(attention, (q, k, v), dims={"k": {2: "n"}, "v": {2: "n"}})
    assert kinds(program) == ["chain", "rows"]
    for n in (1, 65):
        program.check(q, k[:, :, :n], v[:, :, :n], rtol=1e-4)


def test_sinks() -> None:
    q, k, v, sinks = drawn(np.float32, (1, 2, 1, 8), (1, 1, 96, 8), (1, 1, 96, 8), (2,))
    program = Program(lambda q, k, v, s: attention(q, k, v, sinks=s), (q, k, v, sinks))
    assert kinds(program)[0] == "chain" and len(kinds(program)) == 2
    program.check(q, k, v, sinks, rtol=1e-4)


def test_many_queries_and_many_heads_are_not_split() -> None:
    for q in ((1, 1, 20, 8), (16, 2, 1, 8)):
        inputs = drawn(np.float32, q, (q[0], 1, 96, 8), (q[0], 1, 96, 8))
        assert kinds(Program(attention, inputs)) == ["chain"]


def test_one_query_of_each_head() -> None:
    """No queries share keys: the products are kernels of their own, which are parallel along the keys."""
    inputs = drawn(np.float32, (1, 2, 1, 8), (1, 2, 96, 8), (1, 2, 96, 8))
    program = Program(attention, inputs)
    assert "chain" not in kinds(program)
    program.check(*inputs, rtol=1e-4)
