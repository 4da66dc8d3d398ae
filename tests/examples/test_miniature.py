"""The miniature compiler of examples/miniature: its results, the effects of its passes, and its size."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tilewright"
SOURCE = ROOT / "examples" / "miniature" / "miniature.py"


@pytest.fixture(scope="module")
def mini() -> Any:
    spec = importlib.util.spec_from_file_location("miniature", SOURCE)
    assert spec and spec.loader
    # dataclasses look the module up there
    module = sys.modules["miniature"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["miniature"]


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def transformer_block(lib: Any, size: int = 40) -> Any:
    """A function of a transformer block with one attention head and an MLP, written with the operators of
    `lib`: the miniature or `NumPy`.
    """
    names = ("query", "key", "value", "projection", "up", "down")
    shapes = [(size, size)] * 4 + [(size, 3 * size), (3 * size, size)]
    weights = {n: random(*s, seed=k) / size**0.5 for k, (n, s) in enumerate(zip(names, shapes, strict=True))}
    gamma, bias = random(size, seed=7), random(3 * size, seed=8)

    def mean(x: Any) -> Any:
        return lib.reduce(x, combiner="sum", axis=1) * (1 / x.shape[1])

    def layer_norm(x: Any) -> Any:
        centered = x - mean(x)
        return centered / lib.sqrt(mean(centered * centered) + 1e-5) * gamma

    def softmax(x: Any) -> Any:
        e = lib.exp(x - lib.reduce(x, combiner="max", axis=1))
        return e / lib.reduce(e, combiner="sum", axis=1)

    def block(x: Any) -> Any:
        n = layer_norm(x)
        q, k, v = (n @ weights[name] for name in ("query", "key", "value"))
        scores = softmax(q @ lib.transpose(k) * size**-0.5)
        x = x + scores @ v @ weights["projection"]
        return x + lib.tanh(layer_norm(x) @ weights["up"] + bias) @ weights["down"]

    return block


class NumPy:
    """The miniature's operators in NumPy."""

    exp, sqrt, tanh, maximum, transpose = np.exp, np.sqrt, np.tanh, np.maximum, np.transpose

    @staticmethod
    def reduce(x: Any, combiner: str, axis: int) -> Any:
        return getattr(x, combiner)(axis, keepdims=True)


def test_a_transformer_block(mini: Any) -> None:
    """A transformer block gives NumPy's result. Fusion halves the launches, and the arena is smaller than the
    sum of the intermediates.
    """
    x = random(23, 40, seed=9)
    library = mini.compile(transformer_block(mini), x)
    np.testing.assert_allclose(library(x), transformer_block(NumPy)(x), rtol=1e-4, atol=1e-4)
    fused = library.program
    whole = mini.compile(transformer_block(mini), x, passes=(mini.fold_constants, mini.lower_to_tensor))
    np.testing.assert_allclose(whole(x), library(x), rtol=1e-4, atol=1e-4)
    assert (len(fused.launches), len(whole.program.launches)) == (22, 46)
    assert len(fused.kernels) < len(fused.launches), "equal kernels are generated once"
    assert 0 < fused.memory.arena < fused.memory.unplanned / 2
    assert fused.memory.unplanned < whole.program.memory.unplanned


def test_passes_keep_the_results(mini: Any) -> None:
    """The interpreter, which runs the graph and the tensor level, gives the same results after every pass."""
    x = random(5, 40)
    function = mini.trace(transformer_block(mini), x)
    expected = mini.interpret(function, x)
    for step in mini.PASSES:
        step(function)
        for found, value in zip(mini.interpret(function, x), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)


def test_buffers_alive_together_are_disjoint(mini: Any) -> None:
    function = mini.trace(transformer_block(mini), random(23, 40))
    for step in mini.PASSES:
        step(function)
    computations = [op for op in function.operations if isinstance(op, mini.Compute)]
    plan = mini.plan_memory(computations, function.outputs)
    for step, op in enumerate(computations):
        used = {op, *(x for later in computations[step:] for x in later.operands)}
        alive = [x for x in computations[: step + 1] if x in used and x in plan.offsets]
        places = sorted((plan.offsets[x], plan.offsets[x] + math.prod(x.shape)) for x in alive)
        assert all(end <= start for (_, end), (start, _) in pairwise(places))


def test_constants_are_folded(mini: Any) -> None:
    weight = random(20, 4)

    def model(x: Any) -> Any:
        return x @ mini.transpose(mini.Constant(weight) * 0.5)

    library = mini.compile(model, random(3, 4))
    assert len(library.program.launches) == 1 and len(library.program.weights) == 1
    np.testing.assert_array_equal(library.program.weights[0], weight.T * np.float32(0.5))


@pytest.mark.parametrize("model", ["same", "twice", "constant", "unused"])
def test_outputs_that_compute_nothing(model: str, mini: Any) -> None:
    x = random(3, 5)
    one = np.ones((2, 2), np.float32)
    functions: dict[str, Any] = {
        "same": lambda x: x,
        "twice": lambda x: ((y := mini.exp(x)), y),
        "constant": lambda x: mini.Constant(one) + 1,
        "unused": lambda x, y: y * 2,
    }
    e = np.exp(x)
    expected: dict[str, Any] = {"same": x, "twice": (e, e), "constant": one + 1, "unused": 2 * one}
    arrays = (x, one) if model == "unused" else (x,)
    found = mini.compile(functions[model], *arrays)(*arrays)
    for a, b in zip(*((y if isinstance(y, tuple) else (y,)) for y in (found, expected[model])), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_expensive_work_is_not_repeated(mini: Any) -> None:
    """An exponential is computed once if it has two readers, and if a product reads each of its elements many
    times.
    """
    weight = random(5, 7)

    def product(x: Any) -> Any:
        return mini.exp(x) @ weight

    def two_readers(x: Any) -> Any:
        e = mini.exp(x)
        return e + 1, e * mini.reduce(e, combiner="sum", axis=1)

    x = random(3, 5)
    assert mini.compile(product, x).ir["tensor"].count("exp(") == 1
    library = mini.compile(two_readers, x)
    assert library.ir["tensor"].count("exp(") == 1
    e = np.exp(x)
    for found, value in zip(library(x), (e + 1, e * e.sum(1, keepdims=True)), strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5)


def test_nan_and_infinity(mini: Any) -> None:
    x = np.array([[np.nan, 1, -np.inf], [np.inf, -1, 2]], np.float32)

    def model(x: Any) -> Any:
        return mini.maximum(x, 0.0), mini.maximum(0.0, x), mini.reduce(x, combiner="max", axis=1), x * np.inf

    with np.errstate(invalid="ignore"):
        expected = np.maximum(x, 0), np.maximum(0, x), x.max(1, keepdims=True), x * np.float32(np.inf)
    for found, value in zip(mini.compile(model, x)(x), expected, strict=True):
        np.testing.assert_array_equal(found, value)


def test_arrays_of_any_kind(mini: Any) -> None:
    """Constants in float64, operands in column-major order, and tensors without dimensions give NumPy's
    results.
    """
    x, weight = random(3, 5).T, np.random.default_rng(1).normal(size=(3, 4))

    def model(x: Any, scale: Any) -> Any:
        return (2 - x @ weight) * scale, scale + 1

    scale = np.float32(0.5)
    for found, value in zip(mini.compile(model, x, scale)(x, scale), model(x, scale), strict=True):
        assert found.shape == np.shape(value) and found.dtype == np.float32
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)


def test_refusals_name_their_cause(mini: Any) -> None:
    def product(x: Any) -> Any:
        return x @ x

    x = random(3, 5)
    with pytest.raises(ValueError, match=r"\(3, 5\) and \(3, 5\)"):
        mini.compile(product, x)
    with pytest.raises(ValueError, match=r"\(3, 5\).*called with \[\(3, 4\)\]"):
        mini.compile(lambda x: mini.exp(x), x)(x[:, :4])
    function = mini.trace(lambda x: x @ mini.transpose(x), x)
    mini.lower_to_tensor(function)
    schedule = mini.Schedule(mini.kernel_of(function.outputs[0]))
    outer, inner = schedule.split("update_i1", 2)
    for primitive, arguments, message in [
        (schedule.split, ("update_i7", 2), "no loop 'update_i7'"),
        (schedule.split, (inner, 2), "depends on another loop"),
        (schedule.reorder, (inner, outer), "must stay inside"),
        (schedule.reorder, (outer, outer), "not distinct"),
        (schedule.vectorize, ("update_r0",), "reduction axis"),
        (schedule.vectorize, ("update_i0",), "not innermost"),
    ]:
        with pytest.raises(mini.ScheduleError, match=message):
            primitive(*arguments)


def test_modules_that_it_names_exist() -> None:
    page = ROOT / "docs" / "internals" / "miniature.md"
    for text in (SOURCE.read_text(), page.read_text()):
        named = set(re.findall(r"(?<![\w/.])(?:[a-z_]+/)+(?:[a-z_]+\.py)?", text))
        missing = [path for path in named if not any((base / path).exists() for base in (ROOT, PACKAGE))]
        assert len(named) > 10 and not missing


def test_stays_short() -> None:
    lines = SOURCE.read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 500
    assert max(map(len, lines)) <= 110
