"""Libraries of several functions that share weights and states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects.func import Func
from tilewright.errors import CompileError, ShapeError
from tilewright.frontends.trace import TraceError
from tilewright.ir.core import Module

PAGES, HEADS, WIDTH, SLOTS = 6, 2, 8, 16


class Step(tw.nn.Module):
    """A layer whose weights are too large to be compared by their contents."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tw.nn.Embedding(600, 128)
        self.up, self.gate = tw.nn.Linear(128, 640), tw.nn.Linear(128, 640)
        self.down = tw.nn.Linear(640, 128)

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens)
        return x + self.down(tw.nn.functional.silu(self.gate(x)) * self.up(x))


@pytest.fixture(scope="module")
def step() -> Step:
    tw.nn.seed(0)
    return Step()


def functions_of(step: Step) -> dict[str, Any]:
    return {
        "prefill": (step, (np.zeros((1, 24), np.int64),), {"tokens": {1: "n<=32"}}),
        "decode": (step, (np.zeros((4, 1), np.int64),), {"tokens": {0: "batch<=4"}}),
        "embed": (lambda tokens: step.table(tokens).mean(0), (np.zeros(3, np.int64),)),
    }


@pytest.fixture(scope="module")
def library(step: Step) -> Any:
    return tw.compile(functions_of(step), cache=False)


def test_functions_agree_with_the_model_and_share_its_weights(
    step: Step, library: Any, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    for loaded in (library, tw.load(library.save(tmp_path / "model.so"))):
        assert list(loaded.functions) == ["prefill", "decode", "embed"]
        for name, shape in (("prefill", (1, 17)), ("decode", (3, 1)), ("prefill", (1, 32))):
            tokens = random.integers(0, 600, shape)
            np.testing.assert_allclose(loaded.functions[name](tokens), step(tokens).numpy(), atol=2e-5)
        tokens = random.integers(0, 600, 3)
        np.testing.assert_allclose(loaded.embed(tokens), step.table(tokens).numpy().mean(0), atol=1e-5)
    parameters = sum(p.numpy().nbytes for p in step.parameters())
    assert parameters <= library.metadata["memory"]["weights_bytes"] < 1.1 * parameters


def test_metadata_tell_of_each_function(library: Any) -> None:
    functions = library.metadata["functions"]
    assert functions["prefill"]["symbols"] == {"n": [1, 32]} and functions["decode"]["symbols"] == {
        "batch": [1, 4]
    }
    assert functions["decode"]["inputs"][0]["shape"] == ["batch", 1]
    assert functions["embed"]["memory"]["arena_bytes"] < functions["prefill"]["memory"]["arena_bytes"]
    assert library.metadata["memory"]["arena_bytes"] == functions["prefill"]["memory"]["arena_bytes"]
    assert "functions" not in library.decode.metadata and library.decode.metadata["symbols"] == {
        "batch": [1, 4]
    }


def test_a_profile_covers_one_function(library: Any) -> None:
    rows = {
        name: {row.name for row in library.functions[name].profile(np.zeros(shape, np.int64), repeat=2)}
        for name, shape in (("prefill", (1, 9)), ("decode", (2, 1)), ("embed", (3,)))
    }
    assert rows["embed"] and not rows["embed"] & rows["prefill"]
    assert len(set().union(*rows.values())) == len(library.metadata["kernels"])


def test_a_library_without_main_is_not_called_itself(step: Step) -> None:
    library: Any = tw.compile(functions_of(step), cache=False)  # No function has been called.
    for call in (library, library.bind):
        with pytest.raises(
            ShapeError, match="no function 'main'; its functions are 'prefill', 'decode', 'embed'"
        ):
            call(np.zeros((1, 3), np.int64))
    with pytest.raises(ShapeError, match="'tokens' has size 33 in dimension 1: 'n' must be between 1 and 32"):
        library.prefill(np.zeros((1, 33), np.int64))


def test_passes_are_checked_in_all_functions(step: Step) -> None:
    from tilewright.ir.passes import Checker, CheckOptions, InternalError

    module = Module()
    for name, model in (("first", lambda x: x + 1), ("second", lambda x: x * 2)):
        from tilewright.frontends.trace import import_function

        function = import_function(model, (np.zeros(3, np.float32),), None, None).symbol("main")
        function.detach()
        function.attributes["sym_name"] = name
        module.body.append(function)
    checker = Checker(module, CheckOptions(None))
    second = module.symbol("second")
    assert isinstance(second, Func)
    second.body.terminator.set_operand(0, second.body.args[0])
    with pytest.raises(InternalError, match="changes output 'output'"):
        checker.after(module, "wrong")


# -- States --------------------------------------------------------------------------------------------------


def cache_functions(dtype: Any, pages: int = PAGES, layers: int = 2) -> tuple[tw.State, dict[str, Any]]:
    """A state [layer, page, head, width, slot] in the layout that attention reads, and functions that append
    to it, read it and copy a page.
    """
    keys = tw.State("keys", (layers, pages, HEADS, WIDTH, SLOTS), dtype)

    def append(rows: Any, page: Any, slot: Any) -> Any:
        seen = []
        for layer in range(layers):
            keys[layer, page, :, :, slot] = rows
            read = keys[layer, page].astype("float32").mean((1, 2, 3))
            rows = (
                rows + read.astype(rows.dtype)[:, None, None]
            )  # the next layer's rows depend on the state that this layer has read
            seen.append(read)
        return tw.numpy.stack(seen)

    def read(page: Any) -> Any:
        return keys[:, page]

    def copy_page(source: Any, target: Any) -> None:
        keys[:, target] = keys[:, source]

    rows = np.zeros((3, HEADS, WIDTH), keys.dtype)
    places = np.zeros(3, np.int64)
    dims = {name: {0: "batch<=4"} for name in ("rows", "page", "slot")}
    page = np.zeros((), np.int64)
    return keys, {
        "append": (append, (rows, places, places), dims),
        "read": (read, (page,)),
        "copy_page": (copy_page, (page, page)),
    }


@pytest.mark.parametrize("target", ["cpu", "wasm32"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_functions_share_states(dtype: str, target: str) -> None:
    if target == "wasm32":
        pytest.importorskip("wasmtime")
    keys, functions = cache_functions(dtype)
    library = tw.compile(functions, target=target, cache=False)
    random = np.random.default_rng(1)
    for batch in (3, 1, 4):
        rows = random.standard_normal((batch, HEADS, WIDTH)).astype(keys.dtype)
        page, slot = random.permutation(PAGES)[:batch], random.integers(0, SLOTS, batch)
        np.testing.assert_allclose(
            library.append(rows, page, slot),
            functions["append"][0](rows, page, slot).numpy(),
            rtol=1e-2 if dtype == "bfloat16" else 1e-4,
            atol=1e-4,
        )
    source, target_page = np.array(int(page[0])), np.array(int(page[-1] + 1) % PAGES)
    assert library.copy_page(source, target_page) == ()
    functions["copy_page"][0](source, target_page)
    np.testing.assert_array_equal(library.read(target_page), library.read(source))
    kept, wanted = (x.astype(np.float32) for x in (library.state["keys"], keys.value.numpy()))
    np.testing.assert_allclose(kept, wanted, rtol=1e-2 if dtype == "bfloat16" else 1e-4, atol=1e-5)
    library.state.reset()
    assert not library.read(source).any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cache_is_written_where_it_lies(dtype: str) -> None:
    """A cache is updated in place: neither the memory of a run nor the bytes that its kernels move grow with
    the cache.
    """
    small, large = (
        tw.compile(cache_functions(dtype, pages)[1], cache=False).metadata for pages in (PAGES, 40 * PAGES)
    )
    assert small["functions"]["append"]["memory"] == large["functions"]["append"]["memory"]
    for metadata in (small, large):
        assert metadata["memory"]["weights_bytes"] < 10_000
        assert not any("copied" in entry["memory"] for entry in metadata["functions"].values())
    moved = [{k["name"]: k["bytes"] for k in metadata["kernels"]} for metadata in (small, large)]
    scatters = [name for name in moved[0] if "scatter" in name]
    assert len(scatters) >= 2
    for name in scatters:
        assert moved[0][name] == moved[1][name], name


def test_large_states_begin_with_zeros() -> None:
    size = (5 << 20) // 4 + 3  # not a multiple of the memory page
    kept = tw.State("kept", (size,))

    def add(x: Any) -> Any:
        kept.value = kept.value + x
        return kept.value[-1]

    library = tw.compile(add, (np.zeros((), np.float32),), cache=False)
    for _ in range(2):
        assert not library.state["kept"].any()
        assert library(np.float32(2)) == 2 and (library.state["kept"] == 2).all()
        library.state.reset()


def test_a_state_that_is_read_before_the_last_write_is_right() -> None:
    counter = tw.State("counter", (4,), "float32", value=[1, 2, 3, 4])

    def step(x: Any) -> Any:
        before = counter.value
        counter[0] = x
        middle = counter.value
        counter[1] = x + 1
        return before, middle, before * 10

    library = tw.compile(step, (np.zeros((), np.float32),), cache=False)
    for value in (7.0, 8.0):
        found, wanted = library(np.float32(value)), step(np.float32(value))
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(x, y.numpy())
    np.testing.assert_array_equal(library.state["counter"], [8, 9, 3, 4])
    assert library.metadata["memory"]["copied"] == ["counter"]


def test_states_that_do_not_fit_are_refused() -> None:
    def with_state(shape: tuple[int, ...], value: Any = None) -> Any:
        state = tw.State("kept", shape, value=value)

        def function(x: Any) -> Any:
            state.value = state.value + x
            return state.value

        return function, (np.zeros(shape, np.float32),)

    with pytest.raises(
        CompileError, match=r"state 'kept' is tensor<2xf32> in function 'a' and tensor<3xf32> in function 'b'"
    ):
        tw.compile({"a": with_state((2,)), "b": with_state((3,))}, cache=False)
    with pytest.raises(
        CompileError, match="state 'kept' has different initial values in functions 'a' and 'b'"
    ):
        tw.compile({"a": with_state((2,)), "b": with_state((2,), [1.0, 2.0])}, cache=False)
    with pytest.raises(CompileError, match=r"tw.jit keeps no state between calls"):
        tw.jit(with_state((2,))[0])(np.zeros(2, np.float32))
    first, second = tw.State("kept", (2,)), tw.State("kept", (2,))
    with pytest.raises(TraceError, match="two states are called 'kept'"):
        tw.compile(lambda x: first.value + second.value + x, (np.zeros(2, np.float32),), cache=False)
    with pytest.raises(TraceError, match="'kept' is a state and an argument"):
        tw.compile(lambda kept: first.value + kept, (np.zeros(2, np.float32),), cache=False)
    with pytest.raises(TypeError, match=r"state 'kept' is float32, got bfloat16"):
        first.value = np.zeros(2, ml_dtypes.bfloat16)
    with pytest.raises(ValueError, match=r"state 'kept' is \[2\], got \[3\]"):
        first.value = np.zeros(3, np.float32)

    def inside(x: Any) -> Any:
        def add(total: Any, _: Any) -> Any:
            first.value = total
            return total, total

        return tw.scan(add, x, np.zeros(3, np.float32))

    with pytest.raises(TraceError, match="is replaced inside a branch or a loop"):
        tw.compile(inside, (np.zeros(2, np.float32),), cache=False)


def test_wrong_dictionaries_of_functions_are_refused(step: Step) -> None:
    with pytest.raises(CompileError, match="takes arguments for each of them"):
        tw.compile(functions_of(step), (np.zeros(3),))
    with pytest.raises(CompileError, match="at least one function"):
        tw.compile({})
    with pytest.raises(CompileError, match="function 'de code' of the library: give an identifier"):
        tw.compile({"de code": (step, (np.zeros((1, 1), np.int64),))})
