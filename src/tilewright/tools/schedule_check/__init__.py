"""Checks a schedule: the scheduled kernel and the naive one compute the same in the interpreter, on random
inputs of small sizes, in any order of the iterations whose order is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dialects import loop, scalar
from ...driver.origins import compiled_here
from ...errors import CompileError, ScheduleMismatchError
from ...ir.condition import Condition
from ...ir.core import IRError
from ...ir.substitution import evaluate
from ...kernels.check import TOLERANCE, random_array
from ...lowering.groups_to_kernels import kernel_names
from ...lowering.kernel_forms import Form, forms, unscheduled
from ...schedule import ScheduleError, finalize
from ...schedule.kernel_schedule import KernelSchedule, refuse_unfit
from .orders import Array, Order, run
from .sizes import dynamic_sizes, lengths_to_try, parts, shortened

if TYPE_CHECKING:
    from ...runtime.model import CompiledModel

_PARTIAL = {"sqrt", "rsqrt", "log", "log1p", "log2", "pow", "acos", "asin", "acosh", "atanh", "reciprocal"}
"""Functions that have no value for some numbers; kernels with them get positive inputs."""
_LARGEST_INDEX = 8


@dataclass(frozen=True)
class ScheduleCheck:
    """A comparison by `check_schedule` that found a schedule equal for a kernel at one set of sizes.

    Attributes:
        kernel: The kernel's name.
        sizes: The values of its dynamic sizes.
        shortened: The shorter lengths of axes of constant length, by their lengths in the model: ``{768:
            128}``. All axes of one length are shortened alike. Empty: the kernel has its own sizes.
        elements: The number of elements of its outputs.
        orders: The number of orders of iterations: the plain one, and random ones.
        seed: The seed of inputs and orders.
    """

    kernel: str
    sizes: Mapping[str, int]
    shortened: Mapping[int, int]
    elements: int
    orders: int
    seed: int

    def __str__(self) -> str:
        return (
            f"{self.kernel}: {self.elements} elements are equal in {self.orders} orders of seed {self.seed}"
            f"{_with(self.sizes, self.shortened)}"
        )


def check_schedule(
    library: CompiledModel,
    schedule: KernelSchedule,
    *,
    sizes: Sequence[Mapping[str, int]] | None = None,
    orders: int = 4,
    limit: int = 40_000,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
) -> list[ScheduleCheck]:
    """Compare the kernels that a schedule makes with the naive ones, in the interpreter, on random inputs.

    The iterations of loops on threads, of loops over a GPU's workgroups and invocations, and of lanes also
    run in random orders: one after another, and all of them statement by statement. Nothing is compiled or
    timed. The check is a test, not a proof: it covers the sizes, inputs and orders that it reports. Sums may
    be added in another order, so floats need only be close.

    Sizes are small, as the interpreter runs about 20000 points a second. Dynamic ones are chosen around the
    parts that the schedule splits loops into. Where axes of constant length have too many points, the kernel
    is made again with shorter axes (at least a whole part where loops are split, and the tail), on which the
    same function runs, or the primitives that pinned knobs have given for the model's sizes.

    Args:
        library: The model, as `tilewright.compile` returned it.
        schedule: The schedule of one kernel, or of several that fit its pattern.
        sizes: The values of dynamic sizes, by name, for each run. The default chooses up to three.
        orders: The number of orders, of which the first is the plain one.
        limit: The most points that the runs of a naive kernel have together.
        seed: The seed of inputs and orders.
        rtol: Relative tolerance of floats; the default depends on the output's type: 1e-4 for float32.
        atol: Absolute tolerance, as a share of the output's largest magnitude; the default is as for `rtol`.

    Returns:
        The comparisons, one for each kernel and each set of sizes.

    Raises:
        ScheduleMismatchError: A scheduled kernel computes something else, or accesses an element outside of
            a buffer. The message names the output, the element, the block that computes it, and the order.
        CompileError: The schedule fits no kernel or is refused, the library was loaded from a file, `sizes`
            does not fit, or a kernel has more than `limit` points at all sizes that fit.
    """
    if not isinstance(schedule, KernelSchedule):
        raise CompileError(
            f"check_schedule: schedule is of type {type(schedule).__name__}: give what tw.pin, "
            "tw.schedule_kernel or tw.load_schedules returns"
        )
    if orders < 1 or limit < 1:
        raise CompileError(f"check_schedule: orders={orders} and limit={limit} must be at least 1")
    kernels = list(_forms_of(library))  # parts of a model may have kernels of one name
    if not any(schedule.fits(name) for name, _ in kernels):
        refuse_unfit([schedule], {0: ""}, (name for name, _ in kernels))
    results: list[ScheduleCheck] = []
    tolerance = rtol, atol
    for name, form in kernels:
        if schedule.fits(name):
            kernel = _Kernel(form, schedule)
            for trial in kernel.trials(sizes, limit):
                results.append(trial.check(orders, seed, tolerance))
    return results


def _forms_of(library: CompiledModel) -> Iterator[tuple[str, Form]]:
    """The names of a library's kernels, and the form in which a schedule of a user's is applied to each."""
    for compilation in compiled_here(library):
        info, rules = compilation.target.info, compilation.target.lowering.rules
        for group, name in kernel_names(compilation.grouped()).items():
            yield name, next(forms(group, name, info, rules))


@dataclass(frozen=True)
class _Trial:
    """A naive kernel and the scheduled one, at sizes to run them with."""

    naive: loop.Kernel
    scheduled: loop.Kernel
    sizes: Mapping[str, int]
    shortened: Mapping[int, int]

    def check(self, orders: int, seed: int, tolerance: tuple[float | None, float | None]) -> ScheduleCheck:
        """Compare the kernels.

        Raises:
            ScheduleMismatchError: They differ.
        """
        given = arrays_for(self.naive, self.sizes, np.random.default_rng(seed))
        expected = run(self.naive, given, self.sizes)
        for number in range(orders):
            order = Order(number, seed)
            try:
                actual = run(self.scheduled, given, self.sizes, order)
            except IRError as error:
                raise ScheduleMismatchError(
                    f"the schedule of kernel {self.naive.sym_name!r} is wrong: {error}, "
                    f"{order}{_with(self.sizes, self.shortened)}"
                ) from error
            for position, (found, wanted) in enumerate(zip(actual, expected, strict=True)):
                self._compare(position, found, wanted, order, tolerance)
        elements = sum(x.size for x in expected)
        return ScheduleCheck(
            self.naive.sym_name, dict(self.sizes), dict(self.shortened), elements, orders, seed
        )

    def _compare(
        self,
        position: int,
        found: Array,
        wanted: Array,
        order: Order,
        tolerance: tuple[float | None, float | None],
    ) -> None:
        if wanted.dtype.kind in "biu":
            differs = found != wanted
        else:
            usual = TOLERANCE[wanted.dtype.itemsize]
            rtol, atol = (usual if t is None else t for t in tolerance)
            a, b = found.astype(np.float64), wanted.astype(np.float64)
            size = np.abs(np.where(np.isfinite(b), b, 0)).max(initial=1.0)
            differs = ~np.isclose(a, b, rtol=rtol, atol=atol * size, equal_nan=True)
        if not differs.any():
            return
        index = tuple(int(i) for i in np.argwhere(differs)[0])
        buffer = self.naive.body.args[len(self.naive.body.args) - self.naive.num_outputs + position]
        blocks = _writers(buffer)
        raise ScheduleMismatchError(
            f"the schedule of kernel {self.naive.sym_name!r} is wrong: out{position}"
            f"[{', '.join(map(str, index))}], which {' and '.join(f'block {b!r}' for b in blocks)} computes, "
            f"is {found[index]!s} and should be {wanted[index]!s}; {int(differs.sum())} of {differs.size} "
            f"elements differ, {order}{_with(self.sizes, self.shortened)}",
            output=position,
            element=index,
            blocks=blocks,
            order=order.number,
        )


class _Kernel:
    """A kernel of the model and the schedule for it."""

    def __init__(self, form: Form, own: KernelSchedule) -> None:
        """Apply the schedule at the model's sizes.

        Raises:
            CompileError: It does not fit.
        """
        self.form, self.own = form, own
        self.naive = unscheduled(form.group, form.name)
        try:
            self.condition = Condition("", ()) if own.when == "" else own.condition(self.naive.dims)
            schedule = form.with_own(own)
            self.trace = tuple(schedule.trace)
            self.scheduled = finalize(schedule)
        except ScheduleError as error:
            raise CompileError(f"the schedule of kernel {form.name!r} does not fit: {error}") from error
        except ValueError as error:
            raise CompileError(f"the schedule of kernel {form.name!r}: {error}") from error

    def trials(self, sizes: Sequence[Mapping[str, int]] | None, limit: int) -> list[_Trial]:
        """The kernels to run: with its own lengths if they are short enough, else with the longest of the
        shorter ones at which the schedule fits.

        Raises:
            CompileError: There are none with at most `limit` points, or `sizes` do not fit.
        """
        found = parts(self.naive, self.trace)
        at = (
            self._given(sizes)
            if sizes is not None
            else dynamic_sizes(self.naive, found, self.condition.guards)
        )
        refusal = ""
        # The greatest of the sizes that nobody asked for are left out if they have too many points.
        for count in range(len(at), 0 if sizes is None else len(at) - 1, -1):
            for shorter in lengths_to_try(self.naive, found, at[:count], limit):
                naive = shortened(self.naive, shorter) if shorter else self.naive
                if naive is None:
                    continue
                try:
                    scheduled = self._again(naive) if shorter else self.scheduled
                except (ScheduleError, CompileError) as error:
                    refusal = f"; with axes {_lengths(shorter)} it is refused: {error}"
                    continue
                return [_Trial(naive, scheduled, one, shorter) for one in at[:count]]
        raise CompileError(
            f"check_schedule: kernel {self.form.name!r} has more than {limit} points at all sizes at which "
            f"it can be run with this schedule{refusal}. Raise limit (a second is about 20000 points), "
            "split the loops into smaller parts, or compile the model with smaller tensors"
        )

    def _again(self, naive: loop.Kernel) -> loop.Kernel:
        """The scheduled kernel with other lengths: what the model's rule chose is applied, not chosen
        anew."""
        own = self.own
        if own.function is None:
            own = KernelSchedule(own.kernel, {}, self.trace)
        clone = naive.clone()
        assert isinstance(clone, loop.Kernel)
        return finalize(self.form.with_own(own, clone))

    def _given(self, given: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
        """The sizes that were asked for, without those that this kernel does not have."""
        naive = self.naive
        chosen: list[dict[str, int]] = []
        for sizes in given:
            if missing := [s.name for s in naive.dims if s.name not in sizes]:
                raise CompileError(
                    f"check_schedule: kernel {self.form.name!r} has the dynamic sizes "
                    f"{', '.join(s.name for s in naive.dims)}; sizes lacks {missing[0]!r}"
                )
            one = {s.name: int(sizes[s.name]) for s in naive.dims}
            for s in naive.dims:
                high = s.upper if isinstance(s.upper, int) else None
                if one[s.name] < (s.lower or 0) or (high is not None and one[s.name] > high):
                    raise CompileError(
                        f"check_schedule: {s.name} = {one[s.name]} is outside of its bounds "
                        f"{s.lower}..{'' if high is None else high}"
                    )
            if any(evaluate(g, one) < 0 for g in self.condition.guards):
                raise CompileError(
                    f"check_schedule: the schedule's condition {self.own.when!r} excludes {one}"
                )
            if one not in chosen:
                chosen.append(one)
        return chosen


def arrays_for(kernel: loop.Kernel, sizes: Mapping[str, int], rng: np.random.Generator) -> list[Array]:
    """Random inputs of a naive kernel, and its outputs' memory, full of random numbers.

    Integers are small enough to be indices of the kernel's tables.
    """
    top = _LARGEST_INDEX
    positive = False
    for op in kernel.walk():
        if isinstance(op, (loop.Load, loop.Store, loop.Accumulate)) and op.dynamic:
            top = min([top, *(int(evaluate(n, sizes)) for n in op.buffer.type.shape)])
        positive |= isinstance(op, (scalar.Unary, scalar.Binary)) and op.name.split(".")[1] in _PARTIAL
    arrays: list[Array] = []
    for argument in kernel.body.args:
        dtype = argument.type.dtype.numpy
        shape = [int(evaluate(n, sizes)) for n in argument.type.shape]
        x = random_array(rng, dtype, shape)
        if dtype.kind in "iu":
            x = np.minimum(x, max(0, top - 1)).astype(dtype)
        elif positive and dtype.kind != "b":
            x = (0.25 + 0.75 * rng.random(shape)).astype(dtype)
        arrays.append(x)
    return arrays


def _writers(buffer: Any) -> tuple[str, ...]:
    """The names of the blocks that write a buffer."""
    blocks: list[str] = []
    for op in buffer.users:
        block = op.parent_op
        while block is not None and not isinstance(block, loop.Block):
            block = block.parent_op
        if block is not None and not isinstance(op, loop.Load):
            blocks.append(block.sym_name)
    return tuple(dict.fromkeys(blocks))


def _lengths(shorter: Mapping[int, int]) -> str:
    return ", ".join(f"{n} -> {length}" for n, length in shorter.items())


def _with(sizes: Mapping[str, int], shorter: Mapping[int, int]) -> str:
    """The sizes of a run, as the end of a sentence."""
    texts = [f"{name} = {value}" for name, value in sizes.items()]
    texts += [f"axes {_lengths(shorter)}"] if shorter else []
    return f", with {', '.join(texts)}" if texts else ""


__all__ = ["ScheduleCheck", "check_schedule"]
