"""Bound calls give the results of ordinary calls in fixed memory, and mistakes are found when they are
bound.
"""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from build import expected

from tilewright.errors import ArtifactError, ShapeError, TilewrightError
from tilewright.runtime import tensors
from tilewright.runtime.library import Library


def arguments(batch: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(batch)
    return generator.random((batch, 8), np.float32), generator.random(batch, np.float32)


def check(out: Any, x: np.ndarray, z: np.ndarray) -> None:
    for found, wanted in zip(out, expected(np.asarray(x), np.asarray(z)), strict=True):
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)


def test_reads_its_inputs_anew_and_fills_the_same_memory(affine: Path) -> None:
    library = Library(affine)
    x, z = arguments(5)
    call = library.bind(x, z=z)
    assert call.inputs[0] is x and call.inputs[1] is z
    first = call()
    check(first, x, z)
    x[:] += 1
    assert call() is first is call.out
    check(first, x, z)


def test_given_outputs(affine: Path) -> None:
    x, z = arguments(4)
    out = np.empty((4, 8), np.float32), np.empty(8, np.float32)
    call = Library(affine).bind(x, z, out=out)
    assert call() is out
    check(out, x, z)


def test_sizes_in_turns_with_ordinary_calls(affine: Path) -> None:
    library = Library(affine, num_threads=2)
    given = {batch: arguments(batch) for batch in (1, 4096, 7)}
    calls = {batch: library.bind(*tensors) for batch, tensors in given.items()}
    for batch in [1, 4096, 7, 4096, 1, 7]:
        check(calls[batch](), *given[batch])
        check(
            library(*arguments(batch + 1 if batch < 4096 else 2)),
            *arguments(batch + 1 if batch < 4096 else 2),
        )


def test_torch_tensors(affine: Path) -> None:
    torch = pytest.importorskip("torch")
    x, z = (torch.from_numpy(a.copy()) for a in arguments(6))
    call = Library(affine).bind(x, z)
    assert type(call()[0]) is torch.Tensor
    x.mul_(2)
    check(call(), x, z)


def test_keeps_alive_what_it_runs_on(affine: Path) -> None:
    x, z = arguments(1000)
    library = Library(affine, num_threads=2)
    call = library.bind(x.copy(), z.copy())
    del library
    gc.collect()
    rubbish = [np.full((1000, 8), np.nan, np.float32) for _ in range(50)]
    check(call(), x, z)
    assert len(rubbish) == 50


def test_mistakes_are_found_at_once(affine: Path) -> None:
    library = Library(affine)
    x, z = arguments(6)
    pairs = np.empty(12, np.float32)
    with pytest.raises(ShapeError, match="only a contiguous tensor of float32"):
        library.bind(np.repeat(x, 2, axis=0)[::2], z)
    with pytest.raises(ShapeError, match="'z': only a contiguous tensor"):
        library.bind(x, z.tolist())
    with pytest.raises(ShapeError, match="expected float32, got float64"):
        library.bind(x.astype(np.float64), z, out=(np.empty_like(x), pairs))
    with pytest.raises(ShapeError, match="'batch' is 6 from"):
        library.bind(x, z[:5].copy(), out=(np.empty_like(x), pairs))
    with pytest.raises(ShapeError, match="output 'y' has size 3 in dimension 0, expected 6"):
        library.bind(x, z, out=(np.empty((3, 8), np.float32), pairs))
    with pytest.raises(ShapeError, match="output 'y': 'out' overlaps"):
        library.bind(x, z, out=(x, pairs))
    with pytest.raises(ShapeError, match="output 'pairs': 'out' overlaps"):
        both = np.empty(60, np.float32)
        library.bind(x, z, out=(both[:48].reshape(6, 8), both[47:59]))
    with pytest.raises(ShapeError, match="missing input 'z'"):
        library.bind(x)


def test_a_closed_library_refuses(affine: Path) -> None:
    library = Library(affine)
    call = library.bind(*arguments(3))
    library.close()
    with pytest.raises(ArtifactError, match="has been closed"):
        call()


def test_other_threads_may_run_it_one_at_a_time(affine: Path) -> None:
    x, z = arguments(4096)
    call = Library(affine, num_threads=1).bind(x, z)
    ends: list[str] = []

    def work() -> None:
        for _ in range(300):
            try:
                call()
                ends.append("")
            except TilewrightError as error:
                ends.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ends) == 900 and "" in ends
    assert set(ends) <= {"", "the context is in use by another thread: make one context for each thread"}
    check(call(), x, z)


@pytest.mark.parametrize("given", [True, False])
def test_webassembly_binds_too(affine_wasm: Path, given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binding runs the model once, which finds mistakes and makes the results."""
    pytest.importorskip("wasmtime")
    from tilewright.runtime.wasm import WasmLibrary

    runs: list[Any] = []
    execute = WasmLibrary._execute
    monkeypatch.setattr(
        WasmLibrary, "_execute", lambda *arguments: runs.append(arguments) or execute(*arguments)
    )
    x, z = arguments(5)
    with WasmLibrary(affine_wasm) as library:
        call = library.bind(
            x, z, out=(np.empty((5, 8), np.float32), np.empty(10, np.float32)) if given else None
        )
        assert len(runs) == 1
        check(call.out, x, z)
        x += 1
        check(call(), x, z)
    assert len(runs) == 2


@pytest.mark.parametrize("known", [True, False])
def test_addresses(affine: Path, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of arrays are right with and without knowledge of the layout of NumPy's array objects."""
    assert tensors._data_offset() == tensors._DATA_OFFSET
    if not known:
        monkeypatch.setattr(tensors, "_DATA_OFFSET", None)
    x, z = arguments(6)
    values = [x, x[2:], z[:0], np.array(3, np.float32), np.zeros(3, tensors.dtype_named("bfloat16"))]
    where = [0] * len(values)
    tensors.NUMPY.write_addresses(where, values)
    assert where == [value.ctypes.data for value in values]
    library = Library(affine)
    for _ in range(3):
        check(library(x, z), x, z)
