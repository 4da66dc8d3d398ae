"""Attention over a paged cache on devices reads keys and values in their pages, and gives what attention over
all keys and values gives.
"""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.devices import need, running, sources_only
from tests.llm.paged_library import HEADS, KV_HEADS, SIZE, library
from tilewright.llm.cache import DenseCache
from tilewright.llm.quantized_cache import hadamard_rotation, quantized
from tilewright.llm.runner import PAGE

LENGTH = 600
TABLES = np.array([[3, 9, 1, 7, 12, 0, 10, 11, 13, 14], [4, 2, 8, 5, 6, 16, 15, 17, 18, 19]], np.int32)
PAGES_OF_TABLES = 20
"""The most pages of a sequence: so many that decoding divides keys among blocks."""
OPTIONS = {
    "f32": ("float32", None, {}),
    "window": ("float32", None, {"window": 300, "sinks": True}),
    "bf16": ("bfloat16", "bf16", {}),
    "int8": ("int8", "bf16", {"softcap": 2.0}),
}
ERRORS = {"f32": 1e-5, "window": 1e-5, "bf16": 0.02, "int8": 0.02}
"""The largest difference from float32, relative to the largest result: factors of bf16 have 8 bits, and
quantized vectors are off by 0.6 %.
"""
TARGETS = "cuda", "hip:gfx942", "metal", "opencl", "vulkan", "webgpu"
QUICK = {"cuda-bf16", "cuda-int8", "opencl-f32", "opencl-window"}
CASES = [
    pytest.param(target, form, marks=[] if f"{target}-{form}" in QUICK else pytest.mark.slow)
    for target in TARGETS
    for form in OPTIONS
]


def drawn(form: str) -> tuple[list[Any], Any, dict[str, Any]]:
    """Queries, keys and values [2, `LENGTH`, heads, `SIZE`], the wanted attention, and options."""
    dtype, _, options = OPTIONS[form]
    random = np.random.default_rng(0)
    q, k, v = (
        random.standard_normal((2, LENGTH, h, SIZE)).astype(np.float32) for h in (HEADS, KV_HEADS, KV_HEADS)
    )
    if "sinks" in options:
        options = {**options, "sinks": tw.Tensor(random.standard_normal(HEADS).astype(np.float32))}
    if dtype == "bfloat16":
        k, v = (x.astype(ml_dtypes.bfloat16).astype(np.float32) for x in (k, v))
    held = [q, k, v]
    if dtype == "int8":
        m = hadamard_rotation(SIZE)
        held = [q @ m, *map(_dequantized, (k @ m, v))]
    reference = DenseCache().before(np.zeros((2, LENGTH)))
    wanted = reference.attend(0, *map(tw.Tensor, held), scale=0.3, **options).numpy()
    return [q, k, v], wanted, options


def _dequantized(x: Any) -> Any:
    qvalues, scales = quantized(tw.Tensor(x), 8)
    return qvalues.numpy() * scales.numpy().astype(np.float32)[..., None]


@pytest.mark.parametrize(("target", "form"), CASES)
def test_chunks_then_tokens(target: str, form: str) -> None:
    """Prompts in chunks, then tokens of both sequences, one of which had nothing in the cache. A row's result
    does not depend on the other rows, nor on pages beyond its tokens, not by a bit.
    """
    need(target)
    dtype, precision, _ = OPTIONS[form]
    qkv, wanted, options = drawn(form)
    error = ERRORS[form] * np.abs(wanted).max()
    with sources_only():
        made = library(dtype, PAGES_OF_TABLES, precision=precision, target=target, scale=0.3, **options)
    with running(made, checked=True) as there:
        prefill, decode = there.functions["prefill"], there.functions["decode"]
        for start in range(0, LENGTH - 20, 60):
            part = slice(start, min(start + 60, LENGTH - 20))
            table = TABLES[:1, : -(-part.stop // PAGE)]
            found = prefill(*(x[:1, part] for x in qkv), np.array([start], np.int32), table)
            np.testing.assert_allclose(found, wanted[:1, part], rtol=0, atol=error)
        for step in range(3):
            at = np.array([LENGTH - 20 + step, step], np.int32)
            rows = [x[[0, 1], at][:, None] for x in qkv]
            found = decode(*rows, at, TABLES)
            np.testing.assert_allclose(found[:, 0], wanted[[0, 1], at], rtol=0, atol=error)
            alone = decode(*(x[1:] for x in rows), at[1:], TABLES[1:, :1])
            np.testing.assert_array_equal(alone[0], found[1])


@pytest.mark.parametrize("form", ("f32", "bf16"))
def test_no_copies_of_pages(form: str) -> None:
    """Memory for a further page of a sequence has no room for its keys and values. Prompts are attended by
    one kernel, tokens by two: pieces of keys, and their combination.
    """
    dtype, precision, _ = OPTIONS[form]
    made = []
    for pages in (20, 40):
        with sources_only():
            made.append(library(dtype, pages, precision=precision, target="cuda", scale=0.3))
    page = KV_HEADS * PAGE * SIZE * np.dtype(tw.Tensor(np.zeros(1, np.float32)).dtype).itemsize
    for function in ("prefill", "decode"):
        arenas = [m.metadata["functions"][function]["memory"]["arena_bytes"] for m in made]
        assert arenas[1] - arenas[0] < 20 * page / 8
    text = made[0].ir("cuda")
    kernels = {k[0]: k[1] for k in re.findall(r"__global__ [^(]*\(\d+\) (\w+)\(([^)]*)\)", text)}
    assert kernels
    attention = [name for name in kernels if "attention" in name]
    assert len(attention) == 3
    body = text[text.index(f" {attention[0]}(") :]
    if form == "bf16":  # keys and values pass to shared memory 16 bytes at a time, without registers
        assert body[: body.index("__global__")].count("tw_copy_async_16(") >= 2
