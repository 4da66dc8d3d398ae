"""Loops and scans whose trip counts or batch sizes are known only at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

import tilewright as tw
from tilewright.errors import TilewrightError


def model(text: str, opset: int = 22) -> Any:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}')


def slices(step: str) -> Any:
    """Return a loop whose body adds ``x[i : i + step]``, which it declares to have one element."""
    return model(f"""agraph (int64 trips, float[1] y, int64[1] step) => (float[1] last, float[m, 1] all) {{
        flag = Constant <value = bool {{1}}> ()
        go = Squeeze (flag)
        last, all = Loop (trips, go, y) <body = b (int64 i, bool c, float[1] state) => (bool again,
            float[1] out, float[1] one) {{
            again = Identity (c)
            x = Constant <value = float[5] {{1.0, 2.0, 3.0, 4.0, 5.0}}> ()
            at = Constant <value_ints=[0]> ()
            start = Unsqueeze (i, at)
            stop = Add (start, {step})
            part = Slice (x, start, stop)
            out = Add (state, part)
            one = Identity (out)
        }}>
    }}""")


def test_sizes_that_a_body_declares() -> None:
    with tw.compile(slices("step"), cache=False) as library:
        last, every = library(np.array(4), np.array([-2], np.float32), np.array([1]))
        np.testing.assert_array_equal(every, [[-1], [1], [4], [8]])
        np.testing.assert_array_equal(last, [8])
        with pytest.raises(TilewrightError, match="Add|Slice|Loop"):
            library(np.array(2), np.array([-2], np.float32), np.array([2]))


def test_scan_before_opset_9() -> None:
    text = """agraph (float[3,2] first, float[3,s,2] x) => (float[3,2] y, float[3,s,2] z) {
        y, z = Scan <num_scan_inputs=1, body = b (float[2] h, float[2] i) => (float[2] o, float[2] p) {
            o = Add (h, i)
            p = Identity (o)
        }> ("", first, x)
    }"""
    rng = np.random.default_rng(0)
    first, x = (
        rng.standard_normal((3, 2)).astype(np.float32),
        rng.standard_normal((3, 5, 2)).astype(np.float32),
    )
    sums = first[:, None] + np.cumsum(x, 1)
    for batch in ("3", "n"):
        with tw.compile(model(text.replace("float[3,", f"float[{batch},"), 8), cache=False) as library:
            y, z = library(first, x)
        np.testing.assert_allclose(y, sums[:, -1], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(z, sums, rtol=1e-5, atol=1e-6)


def test_an_example_without_elements_allows_such_inputs() -> None:
    text = "agraph (float[n] x) => (float[n] y) { y = Neg (x) }"
    with tw.compile(model(text), [np.zeros(0, np.float32)], cache=False) as library:
        assert library(np.zeros(0, np.float32)).shape == (0,)
        np.testing.assert_array_equal(library(np.ones(2, np.float32)), [-1, -1])
