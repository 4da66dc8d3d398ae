"""Collective operations in compiled code and at once, among threads that act as processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.distributed as td
import tilewright.numpy as tnp
from tilewright.distributed.engine import ThreadEngine
from tilewright.errors import OutOfRangeError

SIZE = 3
Array = np.ndarray[Any, Any]


def together(run: Callable[[int], Any], size: int = SIZE) -> list[Any]:
    """Run a function of the rank in a thread for each rank; return the results, or raise the first error."""
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def call(rank: int) -> None:
        try:
            results[rank] = run(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return results


def compiled(function: Callable[..., Any], inputs: Sequence[Sequence[Array]]) -> list[Any]:
    """The results of ``function(group, *inputs)`` on all ranks, compiled once."""
    groups = [td.Group(engine) for engine in ThreadEngine.of_size(len(inputs))]
    library = tw.compile(lambda *args: function(groups[0], *args), tuple(inputs[0]))

    def run(rank: int) -> Any:
        session = library.session()
        td.connect(session, groups[rank])
        return session(*inputs[rank])

    return together(run, len(inputs))


def at_once(function: Callable[..., Any], inputs: Sequence[Sequence[Array]]) -> list[Any]:
    groups = [td.Group(engine) for engine in ThreadEngine.of_size(len(inputs))]
    return together(lambda rank: function(groups[rank], *map(tw.Tensor, inputs[rank])), len(inputs))


def samples(shape: tuple[int, ...], dtype: Any = np.float32, size: int = SIZE) -> list[list[Array]]:
    random = np.random.default_rng(0)
    return [[(random.normal(size=shape) * 8).astype(dtype)] for _ in range(size)]


XS = samples((6, 2))
SUM = np.sum(XS, 0)[0]
CASES: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "sum": (lambda g, x: td.all_reduce(x, "sum", g), lambda k: SUM),
    "mean": (lambda g, x: td.all_reduce(x, "mean", g), lambda k: SUM / SIZE),
    "max": (lambda g, x: td.all_reduce(x, "max", g), lambda k: np.max(XS, 0)[0]),
    "min": (lambda g, x: td.all_reduce(x, "min", g), lambda k: np.min(XS, 0)[0]),
    "gather": (lambda g, x: td.all_gather(x, g), lambda k: np.concatenate([x for (x,) in XS])),
    "scatter": (lambda g, x: td.reduce_scatter(x, "sum", g), lambda k: SUM[2 * k : 2 * k + 2]),
    "scatter of means": (
        lambda g, x: td.reduce_scatter(x, "mean", g),
        lambda k: SUM[2 * k : 2 * k + 2] / SIZE,
    ),
    "broadcast": (lambda g, x: td.broadcast(x, 1, g), lambda k: XS[1][0]),
    "exchange": (
        lambda g, x: td.all_to_all(x, g),
        lambda k: np.concatenate([x[2 * k : 2 * k + 2] for (x,) in XS]),
    ),
    "shift": (lambda g, x: td.shift(x, 1, g), lambda k: XS[(k - 1) % SIZE][0]),
    "shift back": (lambda g, x: td.shift(x, -1, g), lambda k: XS[(k + 1) % SIZE][0]),
    "rank": (lambda g, x: td.rank(g) + 0 * x.sum().astype("int64"), lambda k: k),
}


@pytest.mark.parametrize("run", [compiled, at_once])
@pytest.mark.parametrize("case", CASES)
def test_operations(case: str, run: Callable[..., list[Any]]) -> None:
    function, expected = CASES[case]
    copies = [[x.copy()] for (x,) in XS]
    for rank, found in enumerate(run(function, copies)):
        np.testing.assert_allclose(np.asarray(found), expected(rank), rtol=1e-6)
    for (x,), (before,) in zip(copies, XS, strict=True):
        np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("dtype", ["float64", "float16", ml_dtypes.bfloat16, "int32", "int64", "uint8"])
def test_element_types(dtype: Any) -> None:
    xs = [[np.array([1, 2, 3]).astype(dtype) * np.array(k + 1).astype(dtype)] for k in range(2)]
    for found in compiled(lambda g, x: td.all_reduce(x, "sum", g), xs):
        assert np.asarray(found).dtype == xs[0][0].dtype
        np.testing.assert_array_equal(np.asarray(found).astype(float), [3, 6, 9])


def test_dynamic_sizes() -> None:
    groups = [td.Group(engine) for engine in ThreadEngine.of_size(2)]
    x = np.ones((4, 2), np.float32)
    library = tw.compile(lambda x: td.all_gather(x * 2, groups[0]), (x,), dims={"x": {0: "n<=8"}})

    def run(rank: int) -> Any:
        session = library.session()
        td.connect(session, groups[rank])
        return [session(np.full((n, 2), rank + 1, np.float32)) for n in (3, 5)]

    for three, five in together(run, 2):
        assert three.shape == (6, 2)
        assert five[:, 0].tolist() == [2.0] * 5 + [4.0] * 5


GRADIENTS: dict[str, Callable[..., Any]] = {
    "sum": lambda g, x: td.all_reduce(tnp.sin(x), "sum", g),
    "mean": lambda g, x: td.all_reduce(tnp.sin(x), "mean", g),
    "gather": lambda g, x: td.all_gather(tnp.sin(x), g),
    "scatter": lambda g, x: td.reduce_scatter(tnp.sin(x), "sum", g),
    "broadcast": lambda g, x: td.broadcast(tnp.sin(x), 1, g),
    "exchange": lambda g, x: td.all_to_all(tnp.sin(x), g),
    "shift": lambda g, x: td.shift(tnp.sin(x), 1, g),
}


@pytest.mark.parametrize("run", [compiled, at_once])
@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients(case: str, run: Callable[..., list[Any]]) -> None:
    """The gradient of the sum of all processes' losses, by finite differences of the whole."""
    xs = samples((6, 2), np.float64)
    weights = [np.cos(np.arange(36.0) + k) for k in range(SIZE)]

    def loss(group: td.Group, x: Any, weight: Any) -> Any:
        y = GRADIENTS[case](group, x).reshape(-1)
        return (y * y * weight[: y.shape[0]]).sum()

    inputs = [[x, w] for (x,), w in zip(xs, weights, strict=True)]
    found = run(lambda g, x, w: tw.grad(lambda x: loss(g, x, w))(x), inputs)
    step = 1e-6
    for rank, place in ((0, (0, 1)), (1, (3, 0)), (2, (5, 1))):
        ends = []
        for sign in (1, -1):
            moved = [[x.copy(), w] for x, w in inputs]
            moved[rank][0][place] += sign * step
            ends.append(sum(float(np.asarray(v)) for v in at_once(loss, moved)))
        np.testing.assert_allclose(
            np.asarray(found[rank])[place], (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-6
        )


def test_the_maximum_has_no_gradient() -> None:
    group = td.Group(ThreadEngine.of_size(1)[0])
    with pytest.raises(tw.GradientError, match="ccl.all_reduce"):
        tw.compile(tw.grad(lambda x: td.all_reduce(x, "max", group).sum()), (np.ones(2),))


def test_many_tensors_are_reduced_in_few_operations_behind_other_work() -> None:
    random = np.random.default_rng(0)
    shapes = {"a": (64, 64), "b": (64,), "c": (64, 64), "d": (64,)}
    weights = {n: random.normal(size=s).astype(np.float32) / 8 for n, s in shapes.items()}
    groups = [td.Group(engine) for engine in ThreadEngine.of_size(2)]

    def loss(weights: Any, x: Any) -> Any:
        h = tnp.tanh(x @ weights["a"] + weights["b"])
        return ((h @ weights["c"] + weights["d"]) ** 2).mean()

    def gradients(x: Any) -> Any:
        found = tw.grad(loss)({n: tw.Tensor(w) for n, w in weights.items()}, x)
        return td.all_reduce_tree(found, "mean", groups[0], bucket_bytes=64 * 65 * 4)

    xs = random.normal(size=(2, 8, 64)).astype(np.float32)
    library = tw.compile(gradients, (xs[0],))

    def run(rank: int) -> Any:
        session = library.session()
        td.connect(session, groups[rank])
        return session(xs[rank])

    found = together(run, 2)
    wanted = tw.grad(loss)({n: tw.Tensor(w) for n, w in weights.items()}, tw.Tensor(xs.reshape(16, 64)))
    for result in found:
        for name, part in zip(weights, result, strict=True):
            np.testing.assert_allclose(part, wanted[name].numpy(), rtol=1e-4, atol=1e-6)
    launches = [line for line in library.ir("host").splitlines() if "host.launch" in line]
    starts = [k for k, line in enumerate(launches) if "ccl_start" in line]
    waits = [k for k, line in enumerate(launches) if "ccl_wait" in line]
    assert len(starts) == len(waits) == 2
    between = [line for line in launches[starts[0] + 1 : waits[0]] if "ccl_" not in line]
    assert between, "the first bucket is reduced while the rest of the backward pass runs"


def test_a_library_without_a_group_says_what_to_do() -> None:
    group = td.Group(ThreadEngine.of_size(1)[0])
    x = np.ones(2, np.float32)
    library = tw.compile(lambda x: td.all_reduce(x, "sum", group), (x,))
    with pytest.raises(tw.TilewrightError, match="connect"):
        library(x)
    td.connect(library, group)
    np.testing.assert_array_equal(library(x), x)
    group._handle.magic -= 1  # that of an older version
    with pytest.raises(tw.TilewrightError, match="another version of Tilewright.*compile the library again"):
        library(x)
    with pytest.raises(tw.CompileError, match="no collective operations of a group 'world'"):
        td.connect(tw.compile(lambda x: x + 1, (x,)), group)


def test_wrong_operands_are_refused_where_they_are() -> None:
    group = td.Group(ThreadEngine.of_size(2)[0])
    with pytest.raises(tw.ShapeError, match="no 2 equal parts"):
        td.reduce_scatter(np.ones(3), "sum", group)
    with pytest.raises(tw.ShapeError, match="'product'"):
        td.all_reduce(np.ones(3), "product", group)
    with pytest.raises(tw.ShapeError, match="cannot be sent"):
        td.all_reduce(np.ones(3, bool), "sum", group)


class Slow(ThreadEngine):
    """Writes each result in a thread of its own, some time after the start."""

    def __init__(self, rank: int, size: int, shared: dict[str, Any]) -> None:
        super().__init__(rank, size, shared)
        self.writers: list[threading.Thread] = []

    def start(self, operation: Any) -> Callable[[], None]:
        finish = super().start(operation)

        def later() -> None:
            time.sleep(0.3)
            finish()

        writer = threading.Thread(target=later)
        self.writers.append(writer)
        writer.start()
        return writer.join


def test_no_operation_runs_on_after_an_error() -> None:
    """An index out of range ends the run between the start of a sum and its wait."""
    shared = ThreadEngine.of_size(2)[0].shared
    engines = [Slow(rank, 2, shared) for rank in range(2)]
    groups = [td.Group(engine) for engine in engines]

    def summed(x: Any, index: Any) -> Any:
        doubled, taken = x * 2, tnp.take(tnp.sin(x), index, 0)
        return taken + td.all_reduce(doubled, "sum", groups[0])

    x = np.ones(4, np.float32)
    library = tw.compile(summed, (x, np.zeros(4, np.int64)))
    lines = library.ir("host").splitlines()
    start, check, wait = (
        next(k for k, line in enumerate(lines) if word in line)
        for word in ("ccl_start", "host.check", "ccl_wait")
    )
    assert start < check < wait

    def run(rank: int) -> Any:
        session = library.session()
        td.connect(session, groups[rank])
        with pytest.raises(OutOfRangeError):
            session(x, np.array([0, 1, 2, 9]))
        running = [writer.is_alive() for writer in engines[rank].writers]
        return running, session(x, np.zeros(4, np.int64))

    for running, result in together(run, 2):
        assert running == [False]
        np.testing.assert_allclose(result, np.sin(1) + 4, rtol=1e-6)
