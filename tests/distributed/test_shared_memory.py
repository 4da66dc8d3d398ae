"""The engine in shared memory: threads that act as processes here, real processes in test_processes.py."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.distributed import Group, GroupError, all_reduce, connect
from tilewright.distributed.engine import Kind, Operation
from tilewright.distributed.shared_memory import SharedMemoryEngine, segment
from tilewright.errors import TilewrightError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory without a name needs Linux")
Array = np.ndarray[Any, Any]
PIECE, SLOTS = 1 << 19, 16
BF16 = np.dtype(ml_dtypes.bfloat16)
TYPES = [np.dtype(t) for t in "f4 f8 f2 i1 i2 i4 i8 u1 u2 u4 u8".split()]


def engines(size: int, patience: float = 20.0) -> list[SharedMemoryEngine]:
    file = segment(size)
    return [SharedMemoryEngine(os.dup(file) if k else file, k, size, patience) for k in range(size)]


def together(size: int, run: Callable[[int], Any]) -> list[Any]:
    results: list[Any] = [None] * size

    def call(rank: int) -> None:
        try:
            results[rank] = run(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=call, args=(k,)) for k in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def exchanged(kind: Kind, sources: list[Array], elements: int, **options: Any) -> list[Array]:
    """The targets, of so many elements, of an operation on one source for each rank."""
    group = engines(len(sources))

    def run(rank: int) -> Array:
        target = np.zeros(elements, sources[0].dtype)
        group[rank].start(Operation(kind, sources[rank], target, **options))()
        return target

    found = together(len(sources), run)
    for target in found:
        if isinstance(target, Exception):
            raise target
    return found


def values(size: int, n: int, dtype: np.dtype[Any], seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return [random.integers(info.min, info.max, n, dtype, endpoint=True) for _ in range(size)]
    return [random.normal(size=n).astype(dtype) for _ in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [*TYPES, BF16], ids=str)
def test_sums_are_those_in_the_order_of_the_ranks_and_the_same_everywhere(
    size: int, dtype: np.dtype[Any]
) -> None:
    n = PIECE // dtype.itemsize + 777  # two pieces, the last of an odd size
    sources = values(size, n, dtype)
    found = exchanged(Kind.ALL_REDUCE, sources, n)
    wide = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
    total = sources[0].astype(wide)
    for source in sources[1:]:
        total = total + source.astype(wide)
    for target in found:
        np.testing.assert_array_equal(target, total.astype(dtype))


@pytest.mark.parametrize("dtype", [np.dtype("f2"), BF16], ids=str)
def test_all_numbers_of_16_bits_are_converted_exactly(dtype: np.dtype[Any]) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    other = np.roll(every, 12_345)
    found = exchanged(Kind.ALL_REDUCE, [every, other], every.size)
    with np.errstate(all="ignore"):
        expected = (every.astype(np.float32) + other.astype(np.float32)).astype(dtype)
    for target in found:
        np.testing.assert_array_equal(target.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("reduction", ["max", "min"])
@pytest.mark.parametrize("dtype", [*TYPES, BF16], ids=str)
def test_extremes(reduction: str, dtype: np.dtype[Any]) -> None:
    sources = values(3, 1000, dtype)
    if dtype.kind not in "iu":
        sources[1][7] = float("nan")
    combine = np.maximum if reduction == "max" else np.minimum
    with np.errstate(invalid="ignore"):
        expected = combine(combine(sources[0], sources[1]), sources[2])
    for target in exchanged(Kind.ALL_REDUCE, sources, 1000, reduction=reduction):
        np.testing.assert_array_equal(target.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("part", [0, 1, 5, 70_001])
def test_other_operations(size: int, part: int) -> None:
    dtype = np.dtype(np.float64)
    blocks = [x.reshape(size, part) for x in values(size, size * part, dtype)]
    whole = [b.reshape(-1) for b in blocks]
    scattered = exchanged(Kind.REDUCE_SCATTER, whole, part)
    swapped = exchanged(Kind.ALL_TO_ALL, whole, size * part)
    gathered = exchanged(Kind.ALL_GATHER, whole, size * size * part)
    sent = exchanged(Kind.BROADCAST, whole, size * part, peer=size - 1)
    for distance in (1, -1, 2 * size):
        shifted = exchanged(Kind.SHIFT, whole, size * part, peer=distance)
        for k in range(size):
            np.testing.assert_array_equal(shifted[k], whole[(k - distance) % size])
    for k in range(size):
        total = blocks[0][k]
        for block in blocks[1:]:
            total = total + block[k]
        np.testing.assert_array_equal(scattered[k], total)
        np.testing.assert_array_equal(swapped[k], np.concatenate([b[k] for b in blocks]))
        np.testing.assert_array_equal(gathered[k], np.concatenate(whole))
        np.testing.assert_array_equal(sent[k], whole[-1])


def test_operations_in_place_that_overlap_and_exceed_the_slots() -> None:
    group = engines(2)
    n = PIECE // 4 * (SLOTS // 2)
    numbers = range(5)  # two and a half times what the slots hold
    sources = {k: [np.full(n, 10 * i + k, np.float32) for i in numbers] for k in range(2)}

    def run(rank: int) -> None:
        waits = []
        for x in sources[rank]:
            waits.append(group[rank].start(Operation(Kind.ALL_REDUCE, x, x)))
            time.sleep(0.01 * rank)
        for wait in reversed(waits) if rank else waits:
            wait()

    assert together(2, run) == [None, None]
    for k in range(2):
        for i in numbers:
            assert (sources[k][i] == 20 * i + 1).all()


def test_many_small_operations_of_processes_at_different_speeds() -> None:
    group = engines(3)
    random = np.random.default_rng(0)
    pauses = random.random((3, 300)) * (random.random((3, 300)) < 0.05) * 0.01

    def run(rank: int) -> list[float]:
        found = []
        for i in range(300):
            time.sleep(pauses[rank, i])
            x = np.array([i + rank], np.float64)
            group[rank].start(Operation(Kind.ALL_REDUCE, x, x))()
            found.append(float(x[0]))
        return found

    expected = [3.0 * i + 3 for i in range(300)]
    assert together(3, run) == [expected] * 3


def test_a_segment_that_cannot_be_opened_is_an_error_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that could open theirs do not wait for the one that could not."""
    group = engines(4)

    def refused(path: str, mark: str) -> int:
        raise PermissionError("no access")

    monkeypatch.setattr("tilewright.distributed.shared_memory.opened", refused)
    found = together(4, lambda rank: group[rank].divided([[0, 1], [2], [3]]))
    for rank, error in enumerate(found):
        assert isinstance(error, GroupError) and "rank 1 cannot join a smaller group" in str(error)
        assert ("no access" in str(error)) == (rank == 1)


def test_memory_of_an_operation_that_nobody_waits_for_stays() -> None:
    """As where an interrupt comes between the start and the wait: later calls still write the result."""
    first, second = engines(2)
    target = np.zeros(4)
    alive = weakref.ref(target)
    first.start(Operation(Kind.ALL_REDUCE, np.ones(4), target))
    del target
    gc.collect()
    assert alive() is not None
    second.start(Operation(Kind.ALL_REDUCE, np.ones(4), np.zeros(4)))()
    assert first.settle() is None
    gc.collect()
    assert alive() is None


def test_different_operations_are_an_error() -> None:
    group = engines(2)

    def run(rank: int) -> None:
        x = np.zeros(3 + rank)
        group[rank].start(Operation(Kind.ALL_REDUCE, x, x))()

    for error in together(2, run):
        assert isinstance(error, GroupError) and "different operations or sizes" in str(error)


def test_a_process_that_does_not_take_part_is_not_waited_for_forever() -> None:
    (first, _) = engines(2, patience=0.5)
    x = np.zeros(3)
    start = time.monotonic()
    wait = first.start(Operation(Kind.ALL_REDUCE, x, x))
    with pytest.raises(GroupError, match=r"no process has made progress for 0.5 seconds"):
        wait()
    assert 0.4 < time.monotonic() - start < 5
    with pytest.raises(GroupError, match="no process has made progress"):  # the group is not used again
        first.start(Operation(Kind.ALL_REDUCE, x, x))


def test_an_engine_that_fails_tells_the_others_at_once() -> None:
    """Rank 0 gives up after half a second. The others have a patience of a minute: rank 1 begins after that,
    and rank 2, which sleeps meanwhile, is woken.
    """
    file = segment(3)
    group = [SharedMemoryEngine(os.dup(file) if k else file, k, 3, 0.5 if k == 0 else 60.0) for k in range(3)]
    failed = threading.Event()

    def run(rank: int) -> float:
        if rank == 1:
            assert failed.wait(30)
        start, x = time.monotonic(), np.zeros(1 << 14)  # of which each process sums a part
        message = "the engine of rank 0 has failed: " if rank else ""
        with pytest.raises(GroupError, match=f"^{message}no process has made progress"):
            group[rank].start(Operation(Kind.ALL_REDUCE, x, x))()
        failed.set()
        return time.monotonic() - start

    took = together(3, run)
    assert 0.4 < took[0] < 5 and took[1] < 5 and 0.4 < took[2] < 5, took


def test_what_a_failed_engine_has_done_before_is_used() -> None:
    """An operation of which it has written its part is completed."""
    group = engines(2, patience=0.3)
    x, y = np.ones(3), np.full(3, 2.0)
    group[0].start(Operation(Kind.ALL_REDUCE, x, x))
    with pytest.raises(GroupError, match="no process has made progress"):
        group[0].start(Operation(Kind.ALL_REDUCE, np.ones(3), np.ones(3)))()
    group[1].start(Operation(Kind.ALL_REDUCE, y, y))()
    np.testing.assert_array_equal(y, np.full(3, 3.0))


def test_types_without_arithmetic_are_refused() -> None:
    (alone,) = engines(1)
    x = np.zeros(3, np.complex64)
    with pytest.raises(GroupError, match="elements of complex64 cannot be reduced"):
        alone.start(Operation(Kind.ALL_REDUCE, x, x))


def test_the_segment_has_no_name_and_is_freed() -> None:
    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:tilewright" in line for line in maps)

    before, names = mapped(), os.listdir("/dev/shm")
    group = engines(2)
    assert mapped() == before + 2 and os.listdir("/dev/shm") == names
    del group
    assert mapped() == before


def compiled_sum(group: list[Group], n: int) -> Callable[[int, Array], Array]:
    """A function of a rank and its part that runs a compiled sum over the group."""
    library = tw.compile(lambda x: all_reduce(x * 2, "sum", group[0]) + 1, (np.zeros(n, np.float32),))

    def run(rank: int, x: Array) -> Array:
        session = library.session()
        connect(session, group[rank])
        result: Array = session(x)
        return result

    return run


@pytest.mark.parametrize("n", [5, 1 << 15])
def test_compiled_code_does_not_call_python(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    group = [Group(engine) for engine in engines(2)]
    run = compiled_sum(group, n)
    monkeypatch.setattr(Group, "begin", None)
    monkeypatch.setattr(Group, "finish", None)
    parts = values(2, n, np.dtype(np.float32))
    for found in together(2, lambda rank: run(rank, parts[rank])):
        np.testing.assert_allclose(found, 2 * (parts[0] + parts[1]) + 1, rtol=1e-6, atol=1e-5)


def test_compiled_code_reports_failures_of_the_engine() -> None:
    group = [Group(engine) for engine in engines(2, patience=0.5)]
    run = compiled_sum(group, 8)
    with pytest.raises(TilewrightError, match="a collective operation failed"):
        run(0, np.zeros(8, np.float32))
    with pytest.raises(GroupError, match=r"no process has made progress for 0.5 seconds"):
        group[0].check()
