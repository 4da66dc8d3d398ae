"""Schedule primitives are methods that tools can read, and functions of another package may be primitives
too.
"""

from __future__ import annotations

import inspect

import pytest

from tilewright.ir.target_info import TargetInfo, ThreadAxis
from tilewright.schedule import PRIMITIVES, Schedule, ScheduleError, primitive, trace_from_json, trace_to_json

from .kernels import KERNELS


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_every_primitive_is_a_method_with_signature_and_docstring(name: str) -> None:
    method = getattr(Schedule, name)
    parameters = list(inspect.signature(method).parameters.values())
    assert parameters[0].name == "self"
    assert all(p.annotation is not inspect.Parameter.empty for p in parameters[1:])
    assert inspect.getdoc(method)


def test_a_function_as_a_primitive() -> None:
    @primitive
    def halve(s: Schedule, name: str) -> tuple[str, str]:
        return s.split(name, 2)

    try:
        s = Schedule(KERNELS["matmul"][0]())
        first = s.loops(s.blocks()[-1].sym_name)[0]
        outer, inner = halve(s, first)
        assert [step.name for step in s.trace] == ["halve"]
        assert {outer, inner} <= set(s.loops(s.blocks()[-1].sym_name))
        again = Schedule(KERNELS["matmul"][0]()).replay(trace_from_json(trace_to_json(s.trace)))
        assert again.loops(again.blocks()[-1].sym_name) == s.loops(s.blocks()[-1].sym_name)
        with pytest.raises(ScheduleError, match="halve: name must be str, got 3"):
            halve(s, 3)  # type: ignore[arg-type]
    finally:
        del PRIMITIVES["halve"]


def test_a_thread_loop_longer_than_the_target_allows() -> None:
    info = TargetInfo(name="small", thread_axes=(ThreadAxis("thread.x", 2),))
    s = Schedule(KERNELS["matmul"][0](), info)
    first = s.loops(s.blocks()[-1].sym_name)[0]
    with pytest.raises(ScheduleError, match=r"bind: .* thread\.x of this target at most 2; split it first"):
        s.bind(first, "thread.x")
    s.bind(s.split(first, 2)[1], "thread.x")
