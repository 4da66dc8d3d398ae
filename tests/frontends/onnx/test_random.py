"""ONNX operators that draw random numbers: distributions, seeds of nodes, seeds of runs, and loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import tilewright as tw
from tilewright.driver.frontend_registry import import_model
from tilewright.errors import ShapeError, UnsupportedOperatorError
from tilewright.ir.interpreter import Interpreter


def model(text: str, opset: int = 22) -> Any:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}')


ALL = """agraph (float[n] x, float[2,3] logits) => (float[60,50] y, float16[n] z, float[n] w, bool[n]
    mask, double[n] hits, int64[2,400] places) {
    y = RandomNormal <shape=[60,50], mean=2.0, scale=3.0> ()
    z = RandomUniformLike <low=-1.0, high=4.0, dtype=10> (x)
    ratio = Constant <value_float=0.25> ()
    training = Constant <value = bool {1}> ()
    one = Squeeze (training)
    w, mask = Dropout (x, ratio, one)
    quarter = Constant <value_float=0.25> ()
    chances = Mul (x, quarter)
    hits = Bernoulli <dtype=11> (chances)
    places = Multinomial <sample_size=400, dtype=7> (logits)
}"""


def test_distributions() -> None:
    x, logits = np.full(4000, 2.0, np.float32), np.log(np.array([[1, 2, 1], [5, 0.01, 5]], np.float32))
    with tw.compile(model(ALL), cache=False) as library:
        y, z, w, mask, hits, places = library(x, logits)
        assert library.metadata["seed"] == "seed" and library.inputs[-1].dtype == "int64"
    assert y.mean() == pytest.approx(2, abs=0.3) and y.std() == pytest.approx(3, abs=0.2)
    assert z.dtype == np.float16 and -1 <= z.min() < -0.98 and 3.98 < z.max() <= 4
    assert z.astype(np.float64).mean() == pytest.approx(1.5, abs=0.12)
    np.testing.assert_allclose(w, np.where(mask, x / 0.75, 0), rtol=1e-6)
    assert mask.mean() == pytest.approx(0.75, abs=0.04) and hits.mean() == pytest.approx(0.5, abs=0.04)
    assert set(np.unique(hits)) == {0.0, 1.0} and hits.dtype == np.float64
    shares = [np.bincount(row, minlength=3) / 400 for row in places]
    np.testing.assert_allclose(shares, [[0.25, 0.5, 0.25], [0.5, 0, 0.5]], atol=0.13)


def test_each_run_draws_anew_unless_it_is_given_a_seed(tmp_path: Path) -> None:
    text = "agraph (float[n] x) => (float[n] a, float[n] b, float[n] c) {"
    text += "a = RandomUniformLike(x)\n b = RandomUniformLike(x)\n c = RandomUniformLike <seed=3.0> (x) }"
    x = np.zeros(6, np.float32)
    with tw.compile(model(text), cache=False) as compiled:
        path = compiled.save(tmp_path / "draws.so")
    with tw.load(path) as library:
        first, second, again = library(x), library(x, seed=7), library(x, 7)
        assert not np.array_equal(first[0], second[0]) and not np.array_equal(first[0], library(x)[0])
        assert not np.array_equal(first[0], first[1])
        np.testing.assert_array_equal(second, again)
        np.testing.assert_array_equal(first[2], second[2])
        with pytest.raises(ShapeError, match="seed"):
            library.bind(x)  # A bound call would draw the same numbers in every run.
    module = import_model(model(text), None, {}, None)
    found = Interpreter(module).run("main", [x, np.array(7)])
    np.testing.assert_array_equal(found, second)


def test_a_seed_beside_lists() -> None:
    text = """agraph (seq(float[n]) s) => (float[3] y) {
        zero = Constant <value_int=0> ()
        x = SequenceAt(s, zero)
        y = RandomUniformLike(x)
    }"""
    example = [np.zeros(3, np.float32), np.zeros(4, np.float32)]
    with tw.compile(model(text), [example], cache=False) as library:
        assert not np.array_equal(library(example), library(example))
        np.testing.assert_array_equal(library(example, seed=1), library(example, seed=1))


def test_every_iteration_draws_other_numbers() -> None:
    for limit, head in (("n = Constant <value_int=3> ()", ""), ("n = Identity (given)", "int64 given")):
        text = f"""agraph ({head}) => (float[k,2] s) {{
            {limit}
            flag = Constant <value = bool {{1}}> ()
            go = Squeeze (flag)
            s = Loop (n, go) <body = b (int64 i, bool q) => (bool q, float[2] r) {{ r = RandomUniform
                <shape=[2], seed=1.0> () }}>
        }}"""
        with tw.compile(model(text), cache=False) as library:
            drawn = library(*([np.array(3)] if head else []))
        assert np.unique(drawn).size == 6


def test_a_scan_is_refused() -> None:
    text = """agraph (float[5,2] x) => (float[5,2] s) {
        s = Scan <num_scan_inputs=1, body = b (float[2] i) => (float[2] r) { r = RandomUniformLike (i) }> (x)
    }"""
    with pytest.raises(UnsupportedOperatorError, match="a Loop can draw them"):
        tw.compile(model(text), cache=False)


def test_training_before_opset_7() -> None:
    x = np.ones(3000, np.float32)
    with tw.compile(
        model("agraph (float[n] x) => (float[n] y) { y = Dropout <ratio=0.75> (x) }", 6), cache=False
    ) as f:
        y = f(x)
    assert set(np.unique(y)) == {0.0, 4.0} and y.mean() == pytest.approx(1, abs=0.2)
