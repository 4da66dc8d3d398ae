"""Functions compiled by the schedule rules of GPUs, run by the interpreter, one thread after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tilewright.dialects import loop
from tilewright.driver.frontend_registry import import_model
from tilewright.ir.core import Module
from tilewright.ir.debug import STRICT_SCHEDULES, VARIABLE
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.target_info import GPU_SPLITS, Gpu, TargetInfo, ThreadAxis
from tilewright.lowering.pipeline import Lowered, LoweringOptions, lower
from tilewright.passes.registry import bound_passes
from tilewright.schedule.kernel_schedule import KernelSchedule
from tilewright.targets.gpu.rules import RULES

SMALL = Gpu(max_threads=1024, shared_bytes=48 * 1024, multiprocessors=2)
"""A device of so few multiprocessors that small kernels fill it: rules choose for them the forms of large
kernels.
"""


def target(gpu: Gpu = SMALL) -> TargetInfo:
    """The description of a target with a GPU."""
    return TargetInfo(
        name="toy-gpu",
        vector_bits=0,
        gpu=gpu,
        cache_line=0,
        memory_spaces=("global", "shared", "register", "local"),
        thread_axes=(
            ThreadAxis("block.x"),
            ThreadAxis("block.y", gpu.grid_limits[1]),
            ThreadAxis("block.z", gpu.grid_limits[2]),
            ThreadAxis("thread.x", gpu.max_threads),
        ),
        row_group_bytes=gpu.shared_bytes,
        reductions=GPU_SPLITS,
    )


@contextmanager
def strict() -> Iterator[None]:
    """A rule that does not fit a kernel is an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, STRICT_SCHEDULES)
        yield


class Program:
    """A function compiled by the rules, with the result of its operators' NumPy definitions at hand."""

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        dims: Mapping[str, Any] | None = None,
        gpu: Gpu = SMALL,
        schedules: Sequence[KernelSchedule] = (),
    ) -> None:
        """Compile `function` for inputs like `inputs`; `dims` as for `tilewright.compile`."""
        self.options = LoweringOptions(panel=None, rules=RULES, info=target(gpu))
        graph = import_model(function, tuple(inputs), None, dims)
        self.graph = graph.clone()
        for step in bound_passes("graph", self.options.context()):
            step(graph)
        with strict():
            self.lowered: Lowered = lower(graph, self.options, lambda step, m: step(m), schedules=schedules)
        self.module: Module = self.lowered.module

    @property
    def kernels(self) -> list[loop.Kernel]:
        """The scheduled kernels."""
        return list(self.module.functions(loop.Kernel))

    def wanted(self, *inputs: Any) -> list[Any]:
        """The results by the operators' definitions."""
        return list(Interpreter(self.graph.clone()).run("main", [np.asarray(x) for x in inputs]))

    def run(self, *inputs: Any) -> list[Any]:
        """The results of the scheduled kernels, one thread after another."""
        outputs = [np.empty(y.shape, y.dtype) for y in self.wanted(*inputs)]
        Interpreter(self.module).run("main", [*(np.array(x) for x in inputs), *outputs])
        return outputs

    def check(self, *inputs: Any, rtol: float = 1e-5, atol: float = 1e-5) -> None:
        """Compare the results of the scheduled kernels with the operators' definitions."""
        for found, wanted in zip(self.run(*inputs), self.wanted(*inputs), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


def checked(function: Callable[..., Any], *inputs: Any, rtol: float = 1e-5, **options: Any) -> Program:
    """Compile a function for its inputs, and compare its results with the operators' definitions."""
    program = Program(function, inputs, **options)
    program.check(*inputs, rtol=rtol)
    return program


def count(kernel: loop.Kernel, kind: type) -> int:
    """The number of statements of a class in a kernel."""
    return sum(isinstance(op, kind) for op in kernel.walk())


def spaces(kernel: loop.Kernel) -> list[str]:
    """The memory spaces of a kernel's buffers, sorted."""
    return sorted(op.buffer.space for op in kernel.walk() if isinstance(op, loop.Alloc))


def threads(kernel: loop.Kernel) -> int:
    """The threads of a block of a kernel."""
    found = [op.extent for op in kernel.walk() if isinstance(op, loop.For) and op.kind == "thread.x"]
    return max((n for n in found if isinstance(n, int)), default=1)


def blocks(kernel: loop.Kernel) -> Any:
    """The extent of a kernel's loop over blocks; 1 without one."""
    found = [op.extent for op in kernel.walk() if isinstance(op, loop.For) and op.kind == "block.x"]
    return found[0] if found else 1


__all__ = ["Program", "blocks", "checked", "count", "spaces", "strict", "target", "threads"]
