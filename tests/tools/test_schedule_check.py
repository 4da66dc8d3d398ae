"""`tw.check_schedule` accepts right schedules at useful sizes, and shows where wrong ones fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.caches import new_cache

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.dialects import loop
from tilewright.errors import CompileError
from tilewright.ir.symbolic import symbol
from tilewright.schedule import Schedule, finalize
from tilewright.schedule.kernel_schedule import KernelSchedule
from tilewright.tools.schedule_check import ScheduleCheck, arrays_for
from tilewright.tools.schedule_check.orders import Order, run
from tilewright.tools.schedule_check.sizes import dynamic_sizes, lengths_to_try, parts, points, shortened

from ..schedule.kernels import KERNELS

RNG = np.random.default_rng(0)
X, W = (RNG.standard_normal(shape, dtype=np.float32) for shape in ((70, 96), (96, 80)))


def dense(x: tw.Tensor) -> tw.Tensor:
    return tnp.maximum(x @ tnp.asarray(W), 0)


@pytest.fixture(scope="module")
def library() -> Any:
    return tw.compile(dense, (X,))


def schedule(body: Callable[[Schedule], object], name: str = "matmul_relu", **options: Any) -> KernelSchedule:
    return tw.schedule_kernel(name, **options)(lambda s: (body(s), None)[1])


def tiled(s: Schedule) -> None:
    i, j = s.loops("relu")
    i_outer, i_inner = s.split(i, 12)
    j_outer, j_inner = s.split(j, 16)
    s.reorder(i_outer, j_outer, i_inner, j_inner)
    at = s.fuse(i_outer, j_outer)
    s.parallel(at)
    s.compute_at("matmul", at)
    s.vectorize(j_inner)


def test_a_right_schedule_is_checked_with_a_second_part_and_the_tail_of_each_split_loop(library: Any) -> None:
    (found,) = tw.check_schedule(library, schedule(tiled))
    assert found == ScheduleCheck("matmul_relu", {}, {70: 22, 80: 32, 96: 16}, 22 * 32, 4, 0)
    assert str(found) == (
        "matmul_relu: 704 elements are equal in 4 orders of seed 0, with axes 70 -> 22, 80 -> 32, 96 -> 16"
    )


def test_a_kernel_that_is_small_is_checked_as_it_is() -> None:
    (found,) = tw.check_schedule(tw.compile(dense, (X[:3],)), schedule(tiled), orders=1)
    assert not found.shortened
    assert found.elements == 3 * 80


def test_the_rules_schedules_of_all_kernels_are_right() -> None:
    def block(x: tw.Tensor) -> tw.Tensor:
        y = dense(x)
        return tw.nn.functional.softmax(y, axis=-1).sum(0) + tnp.sort(y[:3], axis=-1)[0]

    library = tw.compile(block, (X,))
    found = tw.check_schedule(library, tw.pin("*"))
    assert [one.kernel for one in found] == list(library.kernels)


def test_pinned_knobs_are_applied_as_the_model_has_them(library: Any) -> None:
    (found,) = tw.check_schedule(library, tw.pin("matmul_relu", rows=24))
    assert found.shortened[70] == 24 + 70 % 24


def test_dynamic_sizes_are_chosen_around_the_parts() -> None:
    library = tw.compile(dense, (X,), dims={"x": {0: "3<=rows<=1000"}})
    found = tw.check_schedule(library, schedule(tiled), limit=10_000)
    assert [one.sizes["rows"] for one in found] == [3, 4, 13]
    assert all("rows = " in str(one) for one in found)
    found = tw.check_schedule(library, schedule(tiled, when="rows >= 13"), limit=10_000)
    assert min(one.sizes["rows"] for one in found) >= 13
    (one,) = tw.check_schedule(library, schedule(tiled), sizes=[{"rows": 25}], limit=10_000)
    assert one.sizes == {"rows": 25}


def test_the_library_may_come_from_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    new_cache(monkeypatch, tmp_path)
    tw.compile(dense, (X,))
    library = tw.compile(dense, (X,))
    assert library.report.cached
    assert tw.check_schedule(library, schedule(tiled))


def last_column_left_out(s: Schedule) -> None:
    f = s.loop(s.loops("relu")[1])
    f.iv = symbol(f.iv.name, 0, f.iv.upper - 1)


def other_row(s: Schedule) -> None:
    block = s.block("relu")
    block.bindings = (0, *block.bindings[1:])


def beyond_the_end(s: Schedule) -> None:
    block = s.block("relu")
    block.bindings = (block.bindings[0] + 1, *block.bindings[1:])


WRONG: dict[str, tuple[Callable[[Schedule], None], str]] = {
    "elements stay unwritten": (
        last_column_left_out,
        r"the schedule of kernel 'matmul_relu' is wrong: out0\[0, 15\], which block 'relu' computes, is "
        r"\S+ and should be \S+; 22 of 352 elements differ, in order, with axes",
    ),
    "elements are written with those of another row": (
        other_row,
        r"out0\[1, 0\], which block 'relu' computes, .* in order",
    ),
    "an access outside of a buffer": (beyond_the_end, r"is wrong: .*addresses element \(22, 0\).* in order"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_schedule_is_refused_with_the_element_and_the_block(library: Any, case: str) -> None:
    """The functions change the kernel by themselves: no primitive computes anything wrong."""
    wrong, message = WRONG[case]

    def body(s: Schedule) -> None:
        wrong(s)
        s.split(s.loops("relu")[0], 12)

    with pytest.raises(tw.ScheduleMismatchError, match=message) as e:
        tw.check_schedule(library, schedule(body))
    assert e.value.order == 0


def threads_add(s: Schedule) -> None:
    s.reorder("matmul_r0", "matmul_i0", "matmul_i1")
    s.decompose_reduction("matmul", "matmul_r0")
    s.loop("matmul_r0").kind = loop.LoopKind.PARALLEL


def test_a_race_that_the_analysis_does_not_see_is_shown_by_an_order(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = sys.modules[finalize.__module__]
    monkeypatch.setattr(end, "check_races", lambda kernel: None)
    monkeypatch.setattr(end, "check_threads", lambda kernel, info: None)
    message = (
        r"out0\[\d+, \d+\], which block 'relu' computes, .* in random order 1 of seed 5, statement by "
        r"statement: parallel loop 'matmul_r0' as \d+, \d+, .*"
    )
    with pytest.raises(tw.ScheduleMismatchError, match=message) as e:
        tw.check_schedule(library, schedule(threads_add), seed=5)
    assert (e.value.output, e.value.blocks, e.value.order) == (0, ("relu",), 1)
    tw.check_schedule(library, schedule(threads_add), seed=5, orders=1)  # in order, nothing is wrong


def test_iterations_one_after_another_show_a_value_left_by_an_earlier_one() -> None:
    """Steps of time in a random order, which each read the step before."""
    s = Schedule(KERNELS["decaying"][0]())
    naive = KERNELS["decaying"][0]()
    kernel = finalize(s)
    arrays = arrays_for(naive, {"n": 5}, np.random.default_rng(0))
    expected = run(naive, arrays, {"n": 5})
    for f in [op for op in kernel.walk() if isinstance(op, loop.For) and op.iv.name == "step"]:
        f.kind = loop.LoopKind.PARALLEL
    for number, right in ((0, True), (1, False), (2, False)):
        found = run(kernel, arrays, {"n": 5}, Order(number))
        same = all(np.allclose(a, b, rtol=1e-4) for a, b in zip(found, expected, strict=True))
        assert same == right, number


@pytest.mark.parametrize("name", KERNELS)
def test_finished_kernels_compute_the_same_in_every_order(name: str) -> None:
    naive = KERNELS[name][0]()
    s = Schedule(KERNELS[name][0]())
    kernel = finalize(s)
    arrays = arrays_for(naive, {"n": 4}, np.random.default_rng(0))
    expected = run(naive, arrays, {"n": 4})
    for number in range(3):
        for found, wanted in zip(run(kernel, arrays, {"n": 4}, Order(number)), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_shorter_kernels_compute_their_formula() -> None:
    naive = KERNELS["matmul"][0]()
    small = shortened(naive, {8: 3, 6: 2})
    assert small is not None
    arrays = arrays_for(small, {"n": 4}, np.random.default_rng(0))
    a, b, bias = arrays[:3]
    assert [x.shape for x in arrays] == [(4, 2), (2, 3), (3,), (4, 3)]
    np.testing.assert_allclose(run(small, arrays, {"n": 4})[0], np.maximum(a @ b + bias, 0), rtol=1e-5)


def test_lengths_have_the_tail_of_the_model() -> None:
    kernel = KERNELS["matmul"][0]()
    s = Schedule(KERNELS["matmul"][0]())
    s.tile("b1_i0", "b1_i1", 4, 3)
    found = parts(kernel, s.trace)
    assert found == {kernel.dims[0]: 4, 8: 3}
    limit = 200
    at = dynamic_sizes(kernel, found, ())
    assert at == [{"n": 1}, {"n": 2}, {"n": 5}]
    tried = list(lengths_to_try(kernel, found, at, limit))
    assert tried[0] == {6: 2, 8: 5}
    assert all(sum(points(kernel, sizes, shorter) for sizes in at) <= limit for shorter in tried)
    assert next(lengths_to_try(kernel, found, at, 1000)) == {}


BAD: dict[str, tuple[Callable[[Any], object], str]] = {
    "no kernel": (lambda lib: tw.check_schedule(lib, tw.pin("conv")), "no kernel is called 'conv'"),
    "no schedule": (lambda lib: tw.check_schedule(lib, "matmul"), "schedule is of type str: give what"),
    "an unknown knob": (lambda lib: tw.check_schedule(lib, tw.pin("*", rowz=1)), "there is no choice 'rowz'"),
    "a refused step": (
        lambda lib: tw.check_schedule(lib, schedule(lambda s: s.parallel("matmul_r0"))),
        "the schedule of kernel 'matmul_relu' does not fit: parallel: loop 'matmul_r0' is not outermost",
    ),
    "no order": (lambda lib: tw.check_schedule(lib, tw.pin("*"), orders=0), "orders=0 .* at least 1"),
    "too few points": (
        lambda lib: tw.check_schedule(lib, schedule(tiled), limit=100),
        "kernel 'matmul_relu' has more than 100 points at all sizes .* Raise limit",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_checked_is_an_error_that_says_why(library: Any, case: str) -> None:
    call, message = BAD[case]
    with pytest.raises(CompileError, match=message):
        call(library)


def test_a_loaded_library_has_no_kernels_to_check(library: Any, tmp_path: Path) -> None:
    library.save(tmp_path / "model.so")
    with pytest.raises(CompileError, match="loaded from a file holds no IR"):
        tw.check_schedule(tw.load(tmp_path / "model.so"), tw.pin("*"))


def test_sizes_that_do_not_fit() -> None:
    library = tw.compile(dense, (X,), dims={"x": {0: "3<=rows<=1000"}})
    for sizes, message in (
        ({"columns": 4}, "has the dynamic sizes rows; sizes lacks 'rows'"),
        ({"rows": 2}, r"rows = 2 is outside of its bounds 3\.\.1000"),
    ):
        with pytest.raises(CompileError, match=message):
            tw.check_schedule(library, schedule(tiled), sizes=[sizes])
