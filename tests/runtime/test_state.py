"""The state that a library keeps between calls, with a handwritten model."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from build import W, build, expected

from tilewright.errors import ArtifactError, ShapeError
from tilewright.runtime.library import Library

X, Z = np.ones((2, 8), np.float32), np.zeros(2, np.float32)


@pytest.fixture(params=["native", "wasm"])
def library(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "native":
        return Library(build(tmp_path / "model.so", states=True))
    pytest.importorskip("wasmtime")
    from tilewright.runtime.wasm import WasmLibrary

    return WasmLibrary(build(tmp_path / "model.wasm", wasm=True, states=True))


def test_states_are_read_replaced_and_reset(library: Any) -> None:
    assert (
        list(library.state) == ["calls", "last"]
        and repr(library.state) == "ModelState(calls: int32[], last: float32[2, 4])"
    )
    assert library.state["calls"] == 0
    np.testing.assert_array_equal(library.state["last"], W.reshape(2, 4))
    library(X, Z)
    library(X, Z)
    before = library.state["calls"]
    library(X, Z)
    assert before == 2 and library.state["calls"] == 3  # A value that was read is a copy.
    np.testing.assert_array_equal(library.state["last"], expected(X, Z)[0][:1].reshape(2, 4))
    library.state["calls"] = 41
    library(X, Z)
    assert library.state["calls"] == 42
    library.state.reset()
    assert library.state["calls"] == 0
    np.testing.assert_array_equal(library.state["last"], W.reshape(2, 4))


def test_wrong_states_are_refused(library: Any) -> None:
    with pytest.raises(KeyError, match="no state 'count'; its states are calls, last"):
        library.state["count"]
    with pytest.raises(ShapeError, match=r"state 'last' is float32\[2, 4\], got float32\[4, 2\]"):
        library.state["last"] = np.zeros((4, 2), np.float32)
    with pytest.raises(ShapeError, match=r"state 'calls' is int32\[\], got float64\[\]"):
        library.state["calls"] = np.array(1.5)
    library.close()
    with pytest.raises(ArtifactError, match="closed"):
        library.state["calls"]


def test_functions_share_states(library: Any) -> None:
    assert list(library.functions) == ["main", "recall"] and library.functions["main"] is library
    recall = library.functions["recall"]
    np.testing.assert_array_equal(recall(), W.reshape(2, 4) * W[0])
    y, _ = library(X, Z)
    np.testing.assert_array_equal(library.recall(), y[:1].reshape(2, 4) * W[0])
    recall.state["last"] = np.full((2, 4), 4, np.float32)
    assert (recall() == 2).all() and library.state["calls"] == recall.state["calls"] == 1
    assert repr(recall) == "LibraryFunction('recall', )" and recall.outputs[0].name == "last"
    with pytest.raises(ShapeError, match="the model has 0 inputs"):
        recall(X)
    with pytest.raises(AttributeError, match="no attribute or function 'remember'"):
        library.remember  # noqa: B018
    recall.close()
    with pytest.raises(ArtifactError, match="closed"):
        library(X, Z)


def test_a_bound_function_reads_what_others_write(tmp_path: Path) -> None:
    library = Library(build(tmp_path / "model.so", states=True))
    bound = library.functions["recall"].bind()
    y, _ = library(X, Z)
    np.testing.assert_array_equal(bound(), y[:1].reshape(2, 4) * W[0])
    with pytest.raises(ArtifactError, match="closed"):
        library.close()
        bound()


def test_all_threads_share_what_is_kept(tmp_path: Path) -> None:
    library = Library(build(tmp_path / "model.so", states=True))
    threads = [threading.Thread(target=lambda: [library(X, Z) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert library.state["calls"] == 200


def test_a_session_keeps_its_own(tmp_path: Path) -> None:
    library = Library(build(tmp_path / "model.so", states=True))
    library(X, Z)
    other = library.session()
    other(X, Z)
    other(X, Z)
    assert (library.state["calls"], other.state["calls"]) == (1, 2)
    assert other.save(tmp_path / "copy.so").exists()
