"""Symbols are replaced by numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.dialects import graph as g
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify
from tilewright.passes.graph.specialize_shapes import specialize_shapes

from .graphs import BATCH, SEQ, build, weight


def module() -> Any:
    def body(b: Any, x: Any) -> Any:
        y = b(g.Reshape(b(g.Matmul(x, weight(b, 6, 4))), shape=(BATCH * SEQ, 4)))
        y = b(g.Slice(y, starts=(SEQ - 1, 0), stops=(BATCH * SEQ, 4), steps=(1, 1)))
        return [y, b(g.Symbolic(values=(SEQ, BATCH * 2), shape=(2,)))]

    return build({"x": (BATCH, SEQ, 6)}, body)


def test_all_and_some_symbols() -> None:
    import numpy as np

    x = np.random.default_rng(0).standard_normal((3, 5, 6)).astype(np.float32)
    wanted = Interpreter(module()).run("main", [x])
    for sizes in ({"batch": 3, "seq": 5}, {"seq": 5}, {"batch": 3}):
        special = module()
        specialize_shapes(special, sizes)
        verify(special)
        text = repr(special)
        assert not any(name in text.replace("arg_names", "") for name in sizes)
        for y, z in zip(Interpreter(special).run("main", [x]), wanted, strict=True):
            np.testing.assert_array_equal(y, z)


def test_unknown_names_and_sizes_out_of_bounds() -> None:
    with pytest.raises(KeyError, match="'width'; symbolic are: batch, seq"):
        specialize_shapes(module(), {"width": 3})
    with pytest.raises(ValueError, match=r"'batch' = 9 is outside of its bounds 1\.\.8"):
        specialize_shapes(module(), {"batch": 9})
