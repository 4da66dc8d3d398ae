"""Kernels with numbered sizes: the numbers do not depend on the names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.analysis.size_names import number_sizes
from tilewright.dialects import loop
from tilewright.ir.printer import print_op
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import BufferType, f32
from tilewright.lowering.groups_to_kernels import kernel_names
from tilewright.lowering.kernel_forms import forms, structure_of
from tilewright.lowering.pipeline import tensor_passes

ONES = np.ones((2, 3, 5, 8), np.float32)


def scaled(x: Any) -> Any:
    y = x.reshape(-1, 8)
    return y / (y * y).sum(axis=1, keepdims=True)


def joined(x: Any) -> Any:
    return tnp.concatenate([x, tnp.exp(x)], axis=2).sum(axis=1)


def product(x: Any) -> Any:
    return tnp.tanh(x @ np.full((8, 48), 0.1, np.float32))


def texts(function: Callable[[Any], Any], names: Sequence[str]) -> list[tuple[str, str]]:
    """The structure and the scheduled kernel, with numbered sizes, of each kernel of a function of four-
    dimensional input.
    """
    dims = {"x": {k: f"{name}<={40 + k}" for k, name in enumerate(names)}}
    origin: Any = tw.compile(function, (ONES,), dims=dims, cache=False).origin
    module = origin.graph.clone()
    for step in tensor_passes(origin.target.lowering):
        step(module)
    found = []
    for group, name in kernel_names(module).items():
        form = next(forms(group, name, origin.target.info, origin.target.lowering.rules))
        numbered, _ = number_sizes(form.scheduled().kernel)
        found.append((structure_of(group), print_op(numbered)))
    return found


@pytest.mark.parametrize("function", [scaled, joined, product])
def test_equal_kernels_have_equal_texts(function: Callable[[Any], Any]) -> None:
    expected = texts(function, ("a", "b", "c"))
    assert expected and all("size_0" in text and "size_1" in text for pair in expected for text in pair)
    for names in (
        ("c", "b", "a"),
        ("n", "nn", "n_"),
        ("r0", "i1", "matmul_i0"),
        ("size_1", "size", "size_0"),
    ):
        assert texts(function, names) == expected


def kernel(shape: Callable[..., Any], names: Sequence[str]) -> loop.Kernel:
    """An empty kernel of one argument, whose shape a function of the symbols gives."""
    sizes = [symbol(name, 1, 64) for name in names]
    made = loop.Kernel(sym_name="kernel", num_outputs=1)
    made.body.add_arg(BufferType(f32, shape(*sizes), "global"), "x")
    made.dims = tuple(sorted(sizes, key=lambda s: s.name))
    return made


@pytest.mark.parametrize(
    "shape",
    [
        lambda a, b, c: (a * b, a + c),
        lambda a, b, c: (2 * a + 3 * b, c),
        lambda a, b, c: (a * b + a * c, 7),
        lambda a, b, c: ((a + b) // 4 + c % 3,),
        lambda a, b, c: (a + b + c,),
    ],
)
def test_sizes_that_are_parts_of_dimensions_have_numbers_by_their_roles(shape: Callable[..., Any]) -> None:
    found = set()
    for names in itertools.permutations(("x", "y", "size_0")):
        numbered, order = number_sizes(kernel(shape, names))
        assert sorted(order) == sorted(names)
        assert [d.name for d in numbered.dims] == ["size_0", "size_1", "size_2"]
        found.add(print_op(numbered))
    assert len(found) == 1
