"""Models of which some parts run in the interpreter: how they are split and run, and that saving them is
refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, parser, save
from tests.caches import new_cache

import tilewright as tw
from tilewright.cli.doctor import command as doctor
from tilewright.errors import ArtifactError, CompileError, ShapeError, TilewrightError
from tilewright.frontends.onnx import import_onnx
from tilewright.ir.interpreter import Interpreter
from tilewright.passes.graph.split_interpreted import separate

CLASSIFIER = """<ir_version: 10, opset_import: ["" : 22, "ai.onnx.ml" : 4]>
agraph (string[n] words, float[n, 4] x) => (string[n] label, float[n, 3] scores, string[n, p] pieces,
    int64[n] counts) {
    low = StringConcat (words, words)
    pieces, counts = StringSplit <delimiter="-"> (words)
    axes = Constant <value_ints=[1]> ()
    lone = Unsqueeze (counts, axes)
    number = Cast <to=1> (lone)
    scaled = Mul (x, number)
    category = ai.onnx.ml.LabelEncoder <keys_strings=["a-b", "c", "d-e-f"], values_floats=[1.0, 2.0, 3.0],
        default_float=0.5> (words)
    column = Unsqueeze (category, axes)
    both = Concat <axis=1> (scaled, column)
    label, scores = ai.onnx.ml.LinearClassifier <classlabels_strings=["no", "yes", "may be"],
        coefficients=[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0],
            intercepts=[0.0, 0.0, 0.5]> (both)
}"""


def classifier() -> Any:
    return parser.parse_model(CLASSIFIER)


def inputs() -> tuple[Any, Any]:
    return np.array(["a-b", "c", "?", "d-e-f"], object), np.arange(16, dtype=np.float32).reshape(4, 4) / 8


def test_parts() -> None:
    parts = separate(import_onnx(classifier()))
    assert parts is not None
    assert [p.interpreted for p in parts] == [True, False, True]
    assert (
        separate(
            import_onnx(
                parser.parse_model(
                    '<ir_version: 10, opset_import: ["" : 22]> agraph (float[n] x) => (float[n] y) '
                    "{ y = Abs(x) }"
                )
            )
        )
        is None
    )


def test_runs_as_interpreted() -> None:
    words, x = inputs()
    expected = Interpreter(import_onnx(classifier())).run("main", [words, x])
    numbers = np.array([1, 2, 0.5, 3], np.float32)
    scores = np.stack([x[:, 0] * [2, 1, 1, 3], x[:, 1] * [2, 1, 1, 3], numbers * 2 + 0.5], 1)
    with tw.compile(classifier(), cache=False) as library:
        label, found, pieces, counts = library(words, x)
        assert list(label) == [("no", "yes", "may be")[k] for k in scores.argmax(1)] == list(expected[0])
        np.testing.assert_allclose(found, scores, rtol=1e-6)
        assert (
            pieces.tolist()
            == [["a", "b", ""], ["c", "", ""], ["?", "", ""], ["d", "e", "f"]]
            == expected[2].tolist()
        )
        assert counts.tolist() == [2, 1, 1, 3]
        again = library(["c"], x[:1])
        assert again[2].tolist() == [["c"]] and again[1].shape == (1, 3)
        assert "strings.split" in library.ir("graph") and library.ir("asm")


def test_kernels_of_one_name_in_two_parts() -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 22]> agraph (float[n] x) => (float[n] y) {
            a = Mul (x, x)
            text = Cast <to=8> (a)
            b = Cast <to=1> (text)
            y = Mul (b, b)
        }"""
    )
    with tw.compile(model, cache=False) as library:
        x = np.array([1, 2, 3], np.float32)
        np.testing.assert_allclose(library(x), x**4)
        assert set(library.kernels) == {"mul (part 1)", "mul (part 2)"}
        assert {kernel.name for kernel in library.kernels.values()} == {"mul"}


def test_what_does_not_fit_is_refused() -> None:
    words, x = inputs()
    with tw.compile(classifier(), cache=False) as library:
        with pytest.raises(ShapeError, match="input 'words': expected strings, got int"):
            library([1, 2, 3, 4], x)
        with pytest.raises(ShapeError, match="input 'x': expected float32 of 2 dimensions, got float64 of 2"):
            library(words, x.astype(np.float64))
        with pytest.raises(ShapeError, match="size 3 in dimension 0"):
            library(words, x[:3])
        with pytest.raises(ShapeError, match="run in Python"):
            library(words, x, out=(x,))
        with pytest.raises(ShapeError, match="run in Python"):
            library.bind(words, x)


def test_saving_is_refused_and_names_the_operators(tmp_path: Path) -> None:
    refusal = pytest.raises(ArtifactError, match=r"strings\.split \(1x: StringSplit\(pieces\)\)")
    with tw.compile(classifier(), cache=False) as library, refusal:
        library.save(tmp_path / "model.so")
    assert not list(tmp_path.iterdir())


def test_doctor_counts_interpreted_operators(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    save(classifier(), path)
    text = CliRunner().invoke(doctor, [str(path)]).output
    assert "strings.split (1x: StringSplit(pieces))" in text and "cannot be saved" in text


def test_an_error_in_the_run_names_the_place() -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 22]> agraph (string[n] s) '
        "=> (float[n] y) { x = Cast <to=1> (s)  y = Neg (x) }"
    )
    with tw.compile(parser.parse_model(text), cache=False) as library:
        np.testing.assert_array_equal(library(["1.5", "-1e3", "INF"]), [-1.5, 1000, -np.inf])
        with pytest.raises(TilewrightError, match=r"strings\.parse.*Cast\(x\).*'one'"):
            library(["one"])


@pytest.mark.parametrize("flag", [True, False])
def test_branches_and_loops_on_strings(flag: bool) -> None:
    text = """<ir_version: 10, opset_import: ["" : 22]>
    agraph (string[n] s, bool b, float[n, k] x) => (string[n] y, float[k] total, int64 length) {
        y = If (b) <then_branch = t () => (string[n] p) { p = StringConcat (s, s) }, else_branch = e () =>
            (string[n] q) { q = Identity (s) }>
        axes = Constant <value_ints=[0]> ()
        total = ReduceSum <keepdims=0> (x, axes)
        shape = Shape (s)
        one = Constant <value_int=0> ()
        length = Gather (shape, one)
    }"""
    with tw.compile(parser.parse_model(text), cache=False) as library:
        y, total, length = library(["a", "b"], flag, np.ones((2, 3), np.float32))
    assert y.tolist() == (["aa", "bb"] if flag else ["a", "b"])
    assert total.tolist() == [2, 2, 2] and length == 2


def test_sizes_pass_from_part_to_part() -> None:
    """Run-time sizes are passed between parts, also where a compiled part takes no tensor of that size or
    computes a size that the interpreter needs.
    """
    text = """<ir_version: 10, opset_import: ["" : 22]>
    agraph (string[n] s, float[m] x) => (int64[k] row, string[k2] kept, int64[m2] ones) {
        pieces, counts = StringSplit (s)
        shape = Shape (pieces)
        row = Add (shape, shape)
        places = NonZero (x)
        axes = Constant <value_ints=[0]> ()
        flat = Squeeze (places, axes)
        kept = Gather (s, flat)
        size = Shape (kept)
        ones = Expand (axes, size)
    }"""
    with tw.compile(parser.parse_model(text), cache=False) as library:
        row, kept, ones = library(["a b c", "d", "e f"], np.array([1, 0, 2], np.float32))
        assert row.tolist() == [6, 6] and kept.tolist() == ["a b c", "e f"] and ones.tolist() == [0, 0]
        row, kept, ones = library(["", ""], np.zeros(5, np.float32))
        assert row.tolist() == [4, 0] and kept.tolist() == [] and ones.tolist() == []


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("Relu (s)", r"'graph.relu' is not defined for strings \(at Relu\(y\)\)"),
        ("Unique (s)", "'graph.topk' is not defined for strings"),
        ("Add (s, s)", "is not defined for string"),
        ('RegexFullMatch <pattern="("> (s)', "RegexFullMatch.*not in Python's syntax: missing \\)"),
        ("StringConcat (s, x)", "StringConcat.*needs strings, got"),
        ("Cast <to=9> (s)", "cannot convert strings to bool"),
    ],
)
def test_what_strings_cannot_do_is_refused_when_compiling(node: str, message: str) -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 22]> agraph (string[n] '
        f"s, float[n] x) => (string[n] y) {{ y = {node} }}"
    )
    with pytest.raises(CompileError, match=message):
        tw.compile(parser.parse_model(text), cache=False)


def test_strings_that_are_bytes_are_refused() -> None:
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    tensor.data_type, tensor.raw_data = TensorProto.STRING, b"abcd"
    out = helper.make_tensor_value_info("y", TensorProto.STRING, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "g", [], [out], [tensor])
    with pytest.raises(CompileError, match="elements of type string"):
        tw.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]), cache=False)


THROUGH_TEXT = """<ir_version: 10, opset_import: ["" : 22]>
agraph (float[n, 8] x) => (float[n, 8] y) {
    a = Softmax <axis=-1> (x)
    text = Cast <to=8> (a)
    number = Cast <to=1> (text)
    y = LogSoftmax <axis=-1> (number)
}"""


def test_schedules_may_be_for_kernels_of_one_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    new_cache(monkeypatch, tmp_path)
    model = parser.parse_model(THROUGH_TEXT)
    x = np.arange(24, dtype=np.float32).reshape(3, 8) / 8
    plain = tw.compile(model)
    first, second = plain.kernels
    own = [tw.pin(first), tw.pin(second, when="n <= 2"), tw.pin(second)]
    for _ in range(2):  # the second time from the cache
        library = tw.compile(model, schedules=own)
        assert [v.when for v in library.kernels[second].variants] == ["n <= 2"]
        np.testing.assert_allclose(library(x), plain(x), rtol=1e-5)
        with pytest.raises(CompileError, match=f"no kernel is called 'conv'; .* {second}, {first}$"):
            tw.compile(model, schedules=[*own, tw.pin("conv")])
        with pytest.raises(CompileError, match=rf"of '{second}' with when='n < 0' is for no sizes: .* never"):
            tw.compile(model, schedules=[tw.pin(second, when="n < 0")])
    checked = tw.check_schedule(library, tw.pin("*"))
    assert {one.kernel for one in checked} == {first, second}


def test_a_part_that_is_kept_is_no_whole_model_without_its_schedules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    new_cache(monkeypatch, tmp_path)
    model = parser.parse_model(THROUGH_TEXT)
    parts = separate(import_onnx(model))
    assert parts is not None
    _, second = tw.compile(model).kernels
    own = [tw.pin(second)]
    tw.compile(model, schedules=own)
    with pytest.raises(CompileError, match=f"no kernel is called '{second}'"):
        tw.compile(parts[0].module, schedules=own)
