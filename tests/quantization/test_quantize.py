"""`tw.quantize`: what it puts into a module, its options, its errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn
from tilewright.dialects import graph
from tilewright.errors import CompileError
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.types import i4
from tilewright.quantization.equalize import equalize
from tilewright.quantization.plan import make_plan
from tilewright.quantization.prepare import main_function, prepared

from .models import images, made

Array = np.ndarray[Any, Any]


class Block(nn.Module):
    """Convolutions with a convolution as shortcut, poolings and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.shortcut, self.scores = nn.Conv2d(16, 16, 1), nn.Linear(16, 5)

    def forward(self, x: tw.Tensor) -> tw.Tensor:
        x = nn.functional.max_pool(nn.functional.relu(self.first(x)), 2)
        x = nn.functional.relu(self.second(x) + self.shortcut(x))
        return self.scores(x.mean((2, 3)))


class Chain(nn.Module):
    """Two convolutions and two matrix products, with channels of very different ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.norm, self.c, self.d = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 4)
        factor = np.logspace(-2, 2, 8).astype(np.float32)
        self.a.weight = tw.tensor(np.asarray(self.a.weight) * factor[:, None, None, None])
        self.norm.weight = tw.tensor(factor)

    def forward(self, x: tw.Tensor) -> tw.Tensor:
        x = self.b(nn.functional.relu(self.a(x))).clip(-3.0, 3.0)
        return self.d(nn.functional.relu(self.c(self.norm(x.mean((2, 3))))))


def sqnr(actual: Array, expected: Array) -> float:
    return float(10 * np.log10((expected**2).sum() / ((actual - expected) ** 2).sum()))


def test_kernels_exchange_bytes() -> None:
    quantized = tw.quantize(made(Block), images())
    library = tw.compile(quantized)
    pooled = [op.results[0].type.dtype for op in quantized.module.walk() if isinstance(op, graph.MaxPool)]
    assert tw.u8 in pooled
    stored = re.findall(r'%out\d: !tw.buffer<"(\w+)"', library.ir("loop"))
    assert stored.count("f32") == 1 and set(stored) == {"ui8", "f32"}  # the scores are real
    expected = np.concatenate([tw.compile(made(Block), (x,))(x) for x in images()])
    assert sqnr(np.concatenate([library(x) for x in images()]), expected) > 35


def test_products_are_of_bytes() -> None:
    library = tw.compile(tw.quantize(made(Block), images()), target="cpu:x86-64-v4+avx512vnni")
    assembly = library.ir("asm")
    assert assembly.count("vpdpbusd") > 20
    assert not library.report.slower and "xf32> {strides" not in library.ir("graph")


def test_weights_of_four_bits_are_multiplied_as_bytes() -> None:
    quantized = tw.quantize(made(Block), images(), weight_bits=4)
    weights = [
        op.x.defining_op.value.array
        for op in quantized.module.walk()
        if isinstance(op, graph.Dequantize) and op.x.type.dtype is i4
    ]
    assert len(weights) == 4 and {int(abs(w.astype(int)).max()) for w in weights} == {7}
    library = tw.compile(quantized)
    assert "xf32> {strides" not in library.ir("graph")
    (expected,) = Interpreter(quantized.module).run("main", [images()[0]])
    assert sqnr(library(images()[0]), expected) > 80
    exact = np.concatenate([tw.compile(made(Block), (x,))(x) for x in images()])
    assert sqnr(np.concatenate([library(x) for x in images()]), exact) > 12


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3"])
def test_the_interpreter_agrees(target: str) -> None:
    quantized = tw.quantize(made(Block), images())
    library = tw.compile(quantized, target=target)
    for x in images(2):
        (expected,) = Interpreter(quantized.module).run("main", [x])
        assert sqnr(library(x), expected) > 50


def test_processors_with_and_without_fused_multiply_adds_agree_exactly() -> None:
    quantized = tw.quantize(made(Block), images())
    first, *others = (tw.compile(quantized, target=f"cpu:x86-64-{level}") for level in ("v2", "v3", "v4"))
    for x in images():
        for library in others:
            np.testing.assert_array_equal(library(x), first(x))


@pytest.mark.parametrize(("target", "bits"), [("c", 8), ("c", 4), ("wasm32", 8)])
def test_other_targets_have_equal_results(target: str, bits: int) -> None:
    quantized = tw.quantize(made(Block), images(), weight_bits=bits)
    library, expected = tw.compile(quantized, target=target), tw.compile(quantized)
    for x in images(2):
        assert np.array_equal(library(x), expected(x))


@pytest.mark.parametrize(
    "options",
    [
        {"observer": "percentile", "percentile": 99.0},
        {"observer": "entropy"},
        {"observer": "mse", "weight_observer": "mse"},
        {"activations": "symmetric"},
        {"bias_correction": False},
    ],
    ids=str,
)
def test_options(options: dict[str, Any]) -> None:
    assert tw.quantize(made(Block), images(), **options).report.output_sqnr > 20


def test_symmetric_activations_have_no_zero_points() -> None:
    module = tw.quantize(made(Block), images(), activations="symmetric").module
    conversions = [op for op in module.walk() if isinstance(op, graph.Quantize)]
    assert {op.dtype for op in conversions} == {tw.i8, tw.u8} and all(op.zero is None for op in conversions)


def test_equalization_keeps_results_and_helps_one_scale() -> None:
    x = images(1)[0]
    module = prepared(made(Chain), (x,), None, None)
    (expected,) = Interpreter(module).run("main", [x])
    assert equalize(make_plan(main_function(module))) == 2
    (actual,) = Interpreter(module).run("main", [x])
    assert sqnr(actual, expected) > 90
    plain, equal = (
        tw.quantize(made(Chain), images(), weights="per_tensor", equalize=e).report.output_sqnr
        for e in (False, True)
    )
    assert equal > plain + 3


def test_smoothing_helps_channels_with_outliers() -> None:
    plain, smooth = (
        tw.quantize(made(Chain), images(), smooth=s, weights="per_tensor").report for s in (None, 0.5)
    )
    of = [next(r.sqnr for r in report.layers if r.name.startswith("c/")) for report in (plain, smooth)]
    assert of[1] > of[0]


def test_skipped_layers_stay_in_floating_point() -> None:
    report = tw.quantize(made(Block), images(), skip=["s*"]).report
    assert [layer.name for layer in report.layers] == ["first/conv"]
    assert [s.name for s in report.skipped] == ["second/conv", "shortcut/conv", "scores/matmul"]
    assert "'skip' names it" in str(report)


def test_a_budget_raises_the_most_sensitive_layers() -> None:
    model, data = made(Chain), images()
    plain = tw.quantize(model, data, weights="per_tensor").report
    mixed = tw.quantize(model, data, weights="per_tensor", min_sqnr=plain.output_sqnr + 10).report
    assert mixed.output_sqnr > plain.output_sqnr + 9
    raised = [layer for layer in mixed.layers if layer.precision != "int8"]
    assert raised
    sensitivities = [layer.sensitivity for layer in mixed.layers]
    assert None not in sensitivities
    kept = [layer.sensitivity for layer in mixed.layers if layer.precision == "int8"]
    assert all(layer.sensitivity <= k for layer in raised for k in kept)  # type: ignore[operator]


def test_a_budget_of_a_metric() -> None:
    model, data = made(Chain), images()
    exact = tw.compile(model, (data[0],))
    expected = np.concatenate([exact(x) for x in data])

    def metric(run: Any) -> float:
        return sqnr(np.concatenate([run(x) for x in data]), expected + 1e-6)

    report = tw.quantize(
        model, data, metric=metric, max_drop=80.0, precisions=("int8", "float"), weights="per_tensor"
    ).report
    assert report.before is not None and report.after is not None
    assert report.after >= report.before - 80
    assert {layer.precision for layer in report.layers} <= {"int8", "float"}


def test_dynamic_sizes(tmp_path: Path) -> None:
    quantized = tw.quantize(made(Block), images(), dims={"x": {0: "n<=8"}})
    quantized.save(tmp_path / "block.tw")
    library = tw.compile(tmp_path / "block.tw")
    x = np.concatenate(images(2))[:3]
    assert np.array_equal(library(x), tw.compile(quantized)(x)) and library(x).shape == (3, 5)


def broken(value: float) -> list[Array]:
    data = images()
    data[1][0, 0, 0, 0] = value
    return data


@pytest.mark.parametrize(
    ("calibration", "options", "message"),
    [
        ([], {}, "there is no calibration data"),
        (images()[0], {}, "calibration is one ndarray; give a list of batches"),
        (broken(np.nan), {}, "batch 1 of the calibration data: input 0 has NaN"),
        (broken(np.inf), {}, "batch 1 of the calibration data: input 0 has infinite numbers"),
        ([*images(1), images(1, 4)[0]], {}, "batch 1 of the calibration data does not fit: .*'x'"),
        ([*images(1), {"y": images(1)[0]}], {}, "batch 1 of the calibration data does not fit: .*'y'"),
        ([*images(1), images(1)[0].astype(np.int32)], {}, "batch 1 .* does not fit: .*int32"),
        (images(), {"observer": "median"}, "unknown observer 'median'; known: minmax, percentile"),
        (images(), {"activations": "signed"}, "unknown activations='signed'"),
        (images(), {"weight_bits": 3}, "unknown weight_bits=3; known: 4, 8"),
        (images(), {"percentile": 3, "observer": "percentile"}, "percentile=3"),
        (images(), {"smooth": 2.0}, "smooth=2.0 is not between 0 and 1"),
        (images(), {"max_drop": 0.5}, "max_drop needs metric"),
        (images(), {"precisions": ("float", "int8")}, "is no ascending choice of int8, int16, float"),
        (
            images(),
            {"min_sqnr": 200.0, "precisions": ("int8", "int16")},
            "min_sqnr=200.0 is not kept with all layers in int16: .* add 'float'",
        ),
        (images(), {"skip": ["third*"]}, "no operator is called 'third\\*'"),
    ],
)
def test_errors(calibration: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        tw.quantize(made(Block), calibration, **options)


def test_a_model_without_anything_to_quantize() -> None:
    with pytest.raises(CompileError, match="nothing to quantize: it has no convolution and no matrix"):
        tw.quantize(lambda x: x + 1.0, images())
    with pytest.raises(CompileError, match="nothing to quantize: .*both factors are computed"):
        tw.quantize(lambda x: x @ x.transpose(0, 1, 3, 2), images())
