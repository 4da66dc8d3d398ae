"""Attention over the pages of a library: floats and quantized values, windows, sinks and soft caps, the pages
that it reads and the memory that it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.llm.paged_library import HEADS, KV_HEADS, SIZE, library
from tilewright.llm import paged_cache
from tilewright.llm.cache import DenseCache
from tilewright.llm.paged_cache import PagedCache, Pages, token_bytes
from tilewright.llm.quantized_cache import CACHE_BITS, hadamard_rotation, packed, quantized, unpacked
from tilewright.llm.runner import PAGE

TABLES = np.array([[3, 9, 1, 7, 12], [4, 2, 8, 5, 6]], np.int32)


@pytest.mark.parametrize("bits", (8, 4))
def test_qvalues(bits: int) -> None:
    """Errors are at most half a step, or one step where the largest number is out of range. Zeros stay
    zero.
    """
    x = np.random.default_rng(0).standard_normal((7, 3, 16)).astype(np.float32)
    x[0, 0], x[1, 1, 3] = 0, 50
    qvalues, scales = quantized(tw.Tensor(x), bits)
    steps = scales.numpy().astype(np.float32)[..., None]
    found = qvalues.numpy() * steps
    assert (np.abs(found - x) <= np.abs(steps) * 1.01).all() and (found[0, 0] == 0).all()
    assert np.mean(np.abs(found - x) <= np.abs(steps) * 0.501) > 0.95
    assert qvalues.numpy().min() == -(2 ** (bits - 1)) and qvalues.numpy().max() <= 2 ** (bits - 1) - 1
    if bits == 4:
        pairs = packed(qvalues)
        assert pairs.dtype == np.uint8 and pairs.shape == (7, 3, 8)
        np.testing.assert_array_equal(unpacked(pairs).numpy(), qvalues.numpy())


@pytest.mark.parametrize("size", (64, 80, 24, 3))
def test_rotated_vectors_have_the_same_products(size: int) -> None:
    m = hadamard_rotation(size)
    np.testing.assert_allclose(m @ m, np.eye(size), atol=1e-6)


def test_rotated_keys_have_no_channel_of_large_numbers() -> None:
    """Rotated keys have no channel of large numbers, which would leave few quantization levels for all other
    channels.
    """
    keys = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float32)
    keys[:, 5] += 30

    def error(matrix: Any) -> Any:
        qvalues, scales = quantized(tw.Tensor(keys @ matrix), 4)
        return np.abs(qvalues.numpy() * scales.numpy().astype(np.float32)[:, None] @ matrix - keys).mean()

    assert error(hadamard_rotation(64)) < error(np.eye(64, dtype=np.float32)) / 2


def dequantized(x: Any, bits: int | None) -> Any:
    if bits is None:
        return x
    qvalues, scales = quantized(tw.Tensor(x), bits)
    return qvalues.numpy() * scales.numpy().astype(np.float32)[..., None]


@pytest.mark.parametrize(
    ("dtype", "options"),
    (
        ("float32", {"window": 70, "sinks": True}),
        ("float32", {"softcap": 2.0, "sinks": True}),
        ("int8", {"window": 17, "softcap": 2.0}),
        ("int4", {"sinks": True}),
    ),
)
def test_chunks_then_tokens(dtype: str, options: dict[str, Any]) -> None:
    """Two sequences of several windows get the result of attention over all keys and values. A row's result
    is equal to the bit for every batch and every width of the page table.
    """
    random = np.random.default_rng(0)
    sinks = tw.Tensor(random.standard_normal(HEADS).astype(np.float32)) if options.get("sinks") else None
    options = {**options, "sinks": sinks, "scale": 0.3}
    q, k, v = (
        random.standard_normal((2, 290, h, SIZE)).astype(np.float32) for h in (HEADS, KV_HEADS, KV_HEADS)
    )
    bits = CACHE_BITS.get(dtype)
    m = np.eye(SIZE, dtype=np.float32) if bits is None else hadamard_rotation(SIZE)
    held = q @ m, dequantized(k @ m, bits), dequantized(v, bits)
    tokens = np.zeros((2, 290))
    wanted = DenseCache().before(tokens).attend(0, *map(tw.Tensor, held), **options).numpy()
    found = np.zeros_like(wanted)
    # Quantized keys and values have errors of their own, so a layer that shares them has the same ones.
    with library(dtype, 5, again=dtype != "float32", **options) as functions:
        prefill, decode = functions.functions["prefill"], functions.functions["decode"]
        for row, length in ((0, 250), (1, 130)):
            for a in range(0, length, 50):
                part = slice(a, min(a + 50, length))
                table = TABLES[row, None, : -(-part.stop // PAGE)]
                x = (t[row, None, part] for t in (q, k, v))
                found[row, part] = prefill(*x, np.array([a], np.int32), table)[0]
        for step in range(40):
            at = np.array([250, 130], np.int32) + step
            x = [t[[0, 1], at][:, None] for t in (q, k, v)]
            together = decode(*x, at, TABLES)
            narrow = TABLES[1:, : -(-(at[1] + 1) // PAGE)]
            np.testing.assert_array_equal(decode(*(t[1:] for t in x), at[1:], narrow)[0], together[1])
            found[[0, 1], at] = together[:, 0]
    for row, length in ((0, 290), (1, 170)):
        # The rotation adds in another order here, so that a number may be quantized to the next level.
        few = 0 if bits is None else 2e-2 if bits == 8 else 0.2
        assert np.abs(found - wanted)[row, :length].max() < 1e-5 + few
        assert np.abs(found - wanted)[row, :length].mean() < 1e-5


def test_windows_bound_what_is_gathered() -> None:
    """With a window, the memory for gathered pages does not grow with the length of sequences."""
    sizes = []
    for pages in (4, 400):
        with library("bfloat16", pages, precision="bf16", window=70, scale=0.3) as functions:
            arenas = functions.metadata["functions"]
            sizes.append([arenas[f]["memory"]["arena_bytes"] - 8 * pages for f in ("prefill", "decode")])
    assert max(np.subtract(sizes[1], sizes[0])) < 400 * 3 * 8 * 4


def test_chunks_do_not_matter_to_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks do not change the results of attention in windows, not by a bit, also when it computes blocks of
    keys.
    """
    rule = import_module("tilewright.targets.llvm.rules.chain")
    monkeypatch.setattr(rule, "COLUMNS", 128)
    monkeypatch.setattr(rule, "most_columns", lambda *_: 128)
    monkeypatch.setattr(paged_cache, "LONG_WINDOW", 100)
    monkeypatch.setattr(paged_cache, "KEY_BLOCK", 128)
    random = np.random.default_rng(0)
    q, k, v = (
        random.standard_normal((1, 300, h, SIZE)).astype(np.float32) for h in (HEADS, KV_HEADS, KV_HEADS)
    )
    with library("bfloat16", 6, precision="bf16", window=130, scale=0.3) as functions:
        assert "_roll in " in functions.ir("loop")

        def chunks(n: int) -> Any:
            found = []
            for a in range(0, 300, n):
                x = (t[:, a : a + n] for t in (q, k, v))
                table = np.arange(-(-min(a + n, 300) // PAGE), dtype=np.int32)[None]
                found.append(functions.functions["prefill"](*x, np.array([a], np.int32), table))
            return np.concatenate(found, 1)

        whole = chunks(64)
        for n in (7, 50):
            np.testing.assert_array_equal(chunks(n), whole)


@pytest.mark.parametrize("dtype", ("float32", "int8"))
def test_long_contexts(dtype: str) -> None:
    """A prompt attends to one block of keys at a time, so that no memory for all scores is planned."""
    random = np.random.default_rng(0)
    q, k, v = (
        random.standard_normal((1, 740, h, SIZE)).astype(np.float32) for h in (HEADS, KV_HEADS, KV_HEADS)
    )
    sinks = tw.Tensor(random.standard_normal(HEADS).astype(np.float32))
    m = np.eye(SIZE, dtype=np.float32) if dtype == "float32" else hadamard_rotation(SIZE)
    held = q @ m, dequantized(k @ m, CACHE_BITS.get(dtype)), dequantized(v, CACHE_BITS.get(dtype))
    wanted = (
        DenseCache()
        .before(np.zeros((1, 740)))
        .attend(0, *map(tw.Tensor, held), scale=0.3, sinks=sinks)
        .numpy()
    )
    table = random.permutation(20)[None, :12].astype(np.int32)
    with library(dtype, 512, scale=0.3, sinks=sinks) as functions:
        arena = functions.metadata["functions"]["prefill"]["memory"]["arena_bytes"]
        for a in range(0, 740, 64):
            x = (t[:, a : a + 64] for t in (q, k, v))
            y = functions.functions["prefill"](*x, np.array([a], np.int32), table[:, : a // PAGE + 1])
            assert np.abs(y - wanted[:, a : a + 64]).mean() < 1e-5
    scores, keys = 4 * HEADS * 64 * 512 * PAGE, 4 * KV_HEADS * 512 * PAGE * 32
    assert arena < 4 * keys < scores


@pytest.mark.parametrize(
    ("dtype", "bytes_of_head"), (("float32", 96), ("bfloat16", 48), ("int8", 26), ("int4", 14))
)
def test_bytes(dtype: str, bytes_of_head: int) -> None:
    with library(dtype, 2, scale=0.3) as functions:
        states = functions.metadata["states"]
        held = sum(functions.state[s["name"]].nbytes for s in states)
    vectors = 2 * KV_HEADS
    assert held == 20 * PAGE * token_bytes(vectors, SIZE, dtype) == 20 * PAGE * vectors * bytes_of_head


def test_unsupported_caches_are_refused() -> None:
    with pytest.raises(tw.CompileError, match="int16 is not supported: float32"):
        Pages(4, "int16")
    odd = tw.Tensor(np.zeros((1, 1, 2, 5), np.float32))
    cache = PagedCache(
        Pages(4, "int4"), 1, tw.Tensor(np.zeros(1, np.int32)), tw.Tensor(np.zeros((1, 1), np.int32))
    )
    with pytest.raises(tw.CompileError, match="even head size, not 5"):
        cache.attend(0, odd, odd, odd, scale=1.0)
