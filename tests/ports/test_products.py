"""Matrix products on AArch64, with lanes as factors and dot products, in QEMU, and the loops that compute
them.
"""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

from .emulators import NoEmulator, command_of, run_model

ALL = "aarch64-linux:dotprod+i8mm+bf16"
SHAPES = [(1, 64, 48), (2, 7, 5), (5, 33, 70), (13, 130, 16), (64, 48, 129)]
"""Rows, depth, columns."""


def run(library: Any, target: str, *inputs: np.ndarray) -> np.ndarray:
    try:
        command_of(target)
    except NoEmulator as error:
        pytest.skip(str(error))
    return run_model(library, target, [list(inputs)])[0][0]


def operands(shape: tuple[int, int, int], dtypes: tuple[Any, Any]) -> list[np.ndarray]:
    m, k, n = shape
    rng = np.random.default_rng(sum(shape))
    return [
        rng.standard_normal(s).astype(t)
        if np.dtype(t).kind not in "iu"
        else rng.integers(np.iinfo(t).min, np.iinfo(t).max, s, endpoint=True).astype(t)
        for s, t in zip(((m, k), (k, n)), dtypes, strict=True)
    ]


def integer_product(x: Any, weights: np.ndarray) -> Any:
    return tw.numpy.matmul(x.astype("int32"), tw.Tensor(weights).astype("int32"))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("target", ["aarch64-linux", ALL])
def test_float32(target: str, shape: tuple[int, int, int]) -> None:
    x, w = operands(shape, (np.float32, np.float32))
    library = tw.compile(lambda x: x @ tw.Tensor(w), (x,), target=target, cache=False)
    wanted = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_allclose(run(library, target, x), wanted, rtol=1e-5, atol=1e-5 * shape[1] ** 0.5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("target", ["aarch64-linux", ALL])
def test_bf16(target: str, shape: tuple[int, int, int]) -> None:
    x, w = operands(shape, (np.float32, np.float32))
    library = tw.compile(lambda x: x @ tw.Tensor(w), (x,), target=target, precision="bf16", cache=False)
    a, b = (v.astype(ml_dtypes.bfloat16).astype(np.float64) for v in (x, w))
    np.testing.assert_allclose(run(library, target, x), a @ b, rtol=1e-2, atol=2e-3 * shape[1] ** 0.5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("left", [np.int8, np.uint8])
@pytest.mark.parametrize("right", [np.int8, np.uint8])
def test_bytes_are_exact(left: Any, right: Any, shape: tuple[int, int, int]) -> None:
    check_bytes(ALL, left, right, shape)


@pytest.mark.parametrize("shape", SHAPES[1:4], ids=str)
@pytest.mark.parametrize("dtypes", [(np.int8, np.int8), (np.uint8, np.int8)])
@pytest.mark.parametrize("target", ["aarch64-linux", "armv7-linux", "riscv64-linux", "riscv64-linux:v"])
def test_bytes_without_dot_products_are_exact(
    target: str, dtypes: tuple[Any, Any], shape: tuple[int, int, int]
) -> None:
    check_bytes(target, *dtypes, shape)


def check_bytes(target: str, left: Any, right: Any, shape: tuple[int, int, int]) -> None:
    x, w = operands(shape, (left, right))
    library = tw.compile(lambda x: integer_product(x, w), (x,), target=target, cache=False)
    np.testing.assert_array_equal(run(library, target, x), x.astype(np.int32) @ w.astype(np.int32))


def inner_loop(text: str, product: str) -> list[str]:
    """The instructions of the loop in an assembly text that has the most products."""
    lines = text.splitlines()
    labels = {m[1]: k for k, line in enumerate(lines) if (m := re.match(r"(\.L\w+):", line))}
    loops = []
    for k, line in enumerate(lines):
        target = re.search(r"\tb\.\w+\t(\.L\w+)", line)
        if target and labels.get(target[1], k) < k:
            body = [x.split("//")[0].strip() for x in lines[labels[target[1]] : k + 1]]
            loops.append([x for x in body if x and x[0] != "." and not x.endswith(":")])
    return max(loops, key=lambda body: sum(x.startswith(product) for x in body))


@pytest.mark.parametrize(
    ("product", "target", "share"),
    [("fmla", "aarch64-linux", 0.9), ("sdot", ALL, 0.9), ("smlal", "aarch64-linux", 0.85)],
)
def test_instructions_of_the_inner_loop(product: str, target: str, share: float) -> None:
    """At least this share are multiply-adds or loads of their operands, and no register is spilled. Without
    dot products bytes are extended, too.
    """
    kind = np.float32 if product == "fmla" else np.int8
    x, w = operands((128, 512, 512), (kind, kind))
    model = (lambda x: x @ tw.Tensor(w)) if product == "fmla" else lambda x: integer_product(x, w)
    library = tw.compile(model, (x,), target=target, cache=False)
    body = inner_loop(library.ir("asm"), product)
    useful = [x for x in body if x.split()[0].removesuffix("2") in (product, "ldr", "ldp", "ldur", "ld1r")]
    assert len(useful) >= share * len(body), body
    assert not [x for x in body if x.split()[0] in ("str", "stp", "mov", "dup") or "[sp" in x], body
    assert sum(x.startswith(product) for x in body) >= 0.75 * len(body)
