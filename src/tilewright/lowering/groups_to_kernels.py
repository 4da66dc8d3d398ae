"""Turns groups into scheduled kernels. Equal groups share one kernel, so equal layers of a network add none.

If a schedule rule finds that its form does not fit a kernel, the next slower form is taken (`_scheduled`).
The last of them keeps the naive loops, which are right for any kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..analysis.axis_roles import Roles
from ..analysis.index_maps import product
from ..artifact.choices import Choice
from ..dialects import scalar, tensor
from ..dialects.places import place_of
from ..dialects.tensor import extent
from ..errors import CompileError
from ..ir import notes
from ..ir.cleanup import operation_key
from ..ir.condition import Condition, parse_condition
from ..ir.core import Block, BlockArgument, Module, Operation, Value
from ..ir.debug import debug_settings
from ..ir.location import Location, fuse_locations
from ..ir.substitution import substitute
from ..ir.symbolic import Dim, Expr, free_symbols, smax, smin
from ..ir.target_info import TargetInfo
from ..ir.types import TensorType
from ..schedule import Schedule, ScheduleError, Step, finalize
from ..schedule.kernel_schedule import KernelSchedule
from ..schedule.rules import ScheduleRule
from ..schedule.tuned import TUNED, TunedChoices, TunedKernels
from .kernel_forms import Form, Scheduled, forms, sizes_of, structure_of, unscheduled


@dataclass
class KernelInfo:
    """Properties of a kernel besides its code.

    `flops` and `bytes` are those of one launch, `origins` the names of the operators that it computes.
    `slower` is the reason for a slower form than the kind's, "" for the kind's own form. `choices` are the
    knobs of its schedule rule and `trace` the primitives that the rule applied. `variants` are kernels of the
    same computation: the first whose condition `when` holds runs in place of this one. `tuned` says what
    became of measured choices: "" where there are none, `TUNED` where they are used, else why not.
    """

    name: str
    kind: str
    flops: Dim
    bytes: Dim
    origins: tuple[str, ...]
    slower: str = ""
    choices: tuple[Choice, ...] = ()
    trace: tuple[Step, ...] = ()
    tuned: str = ""
    launches: int = 0
    location: Location = field(default_factory=Location)
    variants: tuple[KernelInfo, ...] = ()
    when: Condition | None = None

    @property
    def guarded(self) -> tuple[tuple[tuple[Dim, ...], str], ...]:
        """The variants as `host.Launch` has them."""
        return tuple((variant.when.guards, variant.name) for variant in self.variants if variant.when)


def groups_to_kernels(
    module: Module,
    rules: Mapping[str, ScheduleRule],
    info: TargetInfo,
    schedules: Sequence[KernelSchedule] = (),
    tuned: TunedKernels | None = None,
    *,
    measured_variants: bool = False,
) -> tuple[dict[tensor.Group, str], dict[str, KernelInfo], dict[int, str]]:
    """Add a finalized kernel to the module for every group; return the kernel's name of each group, all
    kernels' infos, and why no kernel has a schedule of the user's, by the schedule's number.

    `rules` are the target's schedule rules by kind of group, `info` is its description. The
    first of the user's `schedules` that fits a kernel's name replaces the rules. Schedules before it that
    have a condition give variants of the kernel. `tuned` has measured choices for some of the kernels without
    a schedule of the user's; those for ranges of sizes are used with `measured_variants`.

    Raises:
        CompileError: a schedule of the user's does not fit the kernel.
    """
    kernels: dict[str, KernelInfo] = {}
    names = kernel_names(module)
    own_schedules = _OwnSchedules(schedules)
    for op, name in names.items():
        kernel_info = kernels.get(name)
        if kernel_info is None:
            own = own_schedules.always(name)
            made = _scheduled(op, name, rules, info, own, tuned)
            module.body.append(made.kernel)
            kernel_info = kernels[name] = KernelInfo(
                name,
                op.kind,
                group_flops(op),
                group_bytes(op),
                _origins(op),
                made.slower,
                made.choices,
                made.trace,
                made.tuned,
            )
            variants = [
                (when, _scheduled(op, f"{name}.{number}", rules, info, own_variant))
                for number, (own_variant, when) in enumerate(
                    own_schedules.conditional(name, made.kernel.dims), 1
                )
            ]
            if own is None and not variants and tuned is not None and measured_variants:
                variants, state = _measured_variants(op, name, rules, info, tuned)
                kernel_info.tuned = state or made.tuned
            for _, variant in variants:
                module.body.append(variant.kernel)
            kernel_info.variants = tuple(
                replace(
                    kernel_info,
                    name=variant.kernel.sym_name,
                    slower=variant.slower,
                    choices=variant.choices,
                    trace=variant.trace,
                    tuned=variant.tuned,
                    when=when,
                )
                for when, variant in variants
            )
        kernel_info.launches += 1
        kernel_info.location = fuse_locations(kernel_info.location, *(m.location for m in op.body.ops))
    for kernel_info in kernels.values():
        for variant_info in kernel_info.variants:
            variant_info.launches, variant_info.location = kernel_info.launches, kernel_info.location
    return names, kernels, own_schedules.unfit(kernels)


def kernel_names(module: Module) -> dict[tensor.Group, str]:
    """The name of the kernel of each group of a module, the same for equal groups."""
    names: dict[tensor.Group, str] = {}
    known: dict[Any, str] = {}
    taken: set[str] = set()
    for block in tensor.blocks_of_computations(module):
        for op in block.ops:
            if isinstance(op, tensor.Group):
                key = group_key(op)
                if key not in known:
                    known[key] = _name(op, taken)
                names[op] = known[key]
    return names


class _OwnSchedules:
    """The user's schedules, in their order, and which of them kernels have."""

    def __init__(self, schedules: Sequence[KernelSchedule]) -> None:
        self.schedules = schedules
        self.used: set[int] = set()
        """The numbers of the conditional schedules of which kernels have variants."""
        self.unused: dict[int, str] = {}
        """Why a kernel has no variant of a conditional schedule, by the schedule's number."""

    def always(self, name: str) -> KernelSchedule | None:
        """The first schedule for the kernel `name` that has no condition."""
        return next((x for x in self.schedules if not x.when and x.fits(name)), None)

    def conditional(self, name: str, dims: Sequence[Expr]) -> list[tuple[KernelSchedule, Condition]]:
        """The schedules of the variants of the kernel `name`, whose sizes are `dims`."""
        found: list[tuple[KernelSchedule, Condition]] = []
        always = self.always(name)
        for number, own in enumerate(self.schedules):
            if not own.when or not own.fits(name):
                continue
            try:
                condition = own.condition(dims)
            except ValueError as error:
                self.unused[number] = f"kernel {name!r}: {error}"
                continue
            earlier = next((f"when={x.text!r}" for _, x in found if condition.implies(x)), None)
            if always is not None and any(x is always for x in self.schedules[:number]):
                earlier = "a schedule without a condition"
            if earlier is not None:
                self.unused[number] = (
                    f"kernel {name!r} has {earlier} before it in the list, and the first that holds counts"
                )
                continue
            self.used.add(number)
            found.append((own, condition))
        return found

    def unfit(self, names: Iterable[str]) -> dict[int, str]:
        """The numbers of the schedules that no kernel has: see `kernel_schedule.refuse_unfit`."""
        known = list(names)
        reasons: dict[int, str] = {}
        for number, own in enumerate(self.schedules):
            if not any(map(own.fits, known)):
                reasons[number] = ""
            elif own.when and number not in self.used:
                reasons[number] = self.unused[number]
        return reasons


def _scheduled(
    group: tensor.Group,
    name: str,
    rules: Mapping[str, ScheduleRule],
    info: TargetInfo,
    own: KernelSchedule | None,
    tuned: TunedKernels | None = None,
) -> Scheduled:
    """The kernel of a group in the form that the user's `own` schedule gives it, else in the fastest that
    fits, with measured choices where there are some.

    Raises:
        CompileError: the user's schedule does not fit the kernel.
    """
    slower = ""
    measured = None if own is not None or tuned is None else tuned.find(structure_of(group))
    for form in forms(group, name, info, rules):
        try:
            if own is not None:
                return _own(form, own, slower)
            if measured is not None and tuned is not None:
                return _tuned(form, measured, tuned, slower)
            return form.scheduled(slower=slower)
        except ScheduleError as error:
            if own is not None:
                kernel = f"{name.partition('.')[0]!r} when {own.when!r}" if own.when else repr(name)
                raise CompileError(f"the schedule of kernel {kernel} does not fit: {error}") from error
            if debug_settings().strict_schedules:
                raise
            slower = slower or str(error)
    return Scheduled(finalize(Schedule(unscheduled(group, name), info)), slower=slower)


def _measured_variants(
    group: tensor.Group,
    name: str,
    rules: Mapping[str, ScheduleRule],
    info: TargetInfo,
    tuned: TunedKernels,
) -> tuple[list[tuple[Condition, Scheduled]], str]:
    """The variants that measured choices for ranges of sizes give, with their conditions.

    If the choices of one no longer give the code that was measured, there are none, and the second result
    says why.
    """
    measured = tuned.find(structure_of(group))
    if measured is None or not measured.variants:
        return [], ""
    found: list[tuple[Condition, Scheduled]] = []
    names = sizes_of(group)
    for choices in measured.variants:
        text = re.sub(r"\bsize_(\d+)\b", lambda m: names[int(m[1])], choices.when)
        try:
            made = _tuned(
                next(forms(group, f"{name}.{len(found) + 1}", info, rules)), choices, tuned, slower=""
            )
        except ScheduleError as error:
            return [], f"its choices do not fit any longer: {error}; tune again"
        if made.tuned != TUNED:
            return [], made.tuned
        condition = parse_condition(text, {d.name: d for d in made.kernel.dims})
        if not condition.never_holds:
            found.append((condition, made))
    return found, ""


def _own(form: Form, own: KernelSchedule, slower: str) -> Scheduled:
    """A kernel in the form that the user's schedule gives it."""
    schedule = form.with_own(own)
    return Scheduled(finalize(schedule), tuple(schedule.choices), tuple(schedule.trace), slower)


def _tuned(form: Form, measured: TunedChoices, tuned: TunedKernels, slower: str) -> Scheduled:
    """A kernel with measured choices if they still give the code that was measured, else with the rule's
    own."""
    try:
        made = form.scheduled(measured.choices, slower)
        if tuned.digest(made.kernel) == measured.digest:
            return replace(made, tuned=TUNED)
        state = "its choices give other code than was measured; tune again"
    except ScheduleError as error:
        state = f"its choices do not fit any longer: {error}; tune again"
    return replace(form.scheduled(slower=slower), tuned=state)


def group_key(group: tensor.Group) -> Any:
    """A key that is equal for groups that are the same computation on inputs of equal types."""
    numbering: dict[Value, int] = {}
    for arg in group.body.args:
        numbering[arg] = len(numbering)
    body = []
    for op in group.body.ops:
        body.append((operation_key(op, numbering), notes.CONTRACTION.get(op)))
        for result in op.results:
            numbering[result] = len(numbering)
    places = [place_of(r) for r in group.results]
    slices = tuple(p and p.key for p in places)
    rows, overwritten = notes.ROW_AXES.get(group), notes.OVERWRITES.get(group)
    return group.kind, rows, overwritten, tuple(a.type for a in group.body.args), tuple(body), slices


def _origins(group: tensor.Group) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(notes.ORIGIN.of(m)) for m in group.walk() if notes.ORIGIN.present(m)))


def _name(group: tensor.Group, taken: set[str]) -> str:
    """A unique name for a kernel that lists its operators: ``matmul_gelu``."""
    parts = _origins(group) or ("map",)
    base = "_".join(dict.fromkeys("".join(c if c.isalnum() else "_" for c in p) for p in parts[:4]))
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    taken.add(name)
    return name


def group_flops(group: tensor.Group) -> Dim:
    """The number of arithmetic operations of a group; a function such as ``exp`` counts as one.

    Transformed tiles count with their products only: the points of a tile share the sums of its transforms.
    """
    total: Dim = 0
    for m in _computations(group):
        if group.kind == tensor.GroupKind.TILES and not notes.CONTRACTION.present(m):
            continue
        reduce_axes = getattr(m, "reduce_axes", ())
        around = m.parent_op
        points = (extent(around.step) if isinstance(around, tensor.Scan) else 1) * product(
            extent(a) for a in (*m.axes, *(() if group.kind == tensor.GroupKind.CUMULATIVE else reduce_axes))
        )
        # the extent of a reduction axis may depend on a parallel one: count the longest
        if not isinstance(points, int):
            points = substitute(points, {a: a.upper for a in m.axes})
        per_point = sum(
            isinstance(x, (scalar.Unary, scalar.Binary, scalar.Select))
            and (x.result.type.is_float or notes.CONTRACTION.present(m))
            for x in m.body.ops
        )
        total = total + points * (per_point + (1 if reduce_axes else 0))
    return total


def _bytes(values: list[Value]) -> Dim:
    total: Dim = 0
    for v in values:
        assert isinstance(v.type, TensorType)
        total = total + v.type.size * v.type.dtype.itemsize
    return total


def group_bytes(group: tensor.Group) -> Dim:
    """The number of bytes that a group moves to and from memory: each input read once, each output written
    once.

    A table that is indexed counts with as many elements as there are lookups. A tensor from outside of a loop
    counts with the share of one step.
    """
    computations = _computations(group)
    overwritten = dict(notes.OVERWRITES.get(group, ()))
    total = _bytes([r for r in group.results if r.index not in overwritten])
    for number in overwritten.values():  # only the scattered elements change
        points = product(extent(a) for m in computations for a in m.axes)
        total = total + points * group.operands[number].type.dtype.itemsize
    reads = _reads_by_source(computations)
    for number, (arg, value) in enumerate(zip(group.body.args, group.operands, strict=True)):
        if number not in overwritten.values():
            total = total + _touched(arg, reads.get(arg, [])) // _steps(group, value)
    return total


def _steps(op: Operation, value: Value) -> Dim:
    """The number of steps of the loops around `op` over which its reads of `value` are distributed.

    A tensor from outside of a loop is read in slices, or is the same in every step and stays in a cache:
    either way it is loaded from memory once.
    """
    steps: Dim = 1
    home = (
        value.block
        if isinstance(value, BlockArgument)
        else value.defining_op.parent
        if value.defining_op
        else None
    )
    place: Operation | None = op
    while place is not None and place.parent is not home:
        place = place.parent_op
        if isinstance(place, tensor.Scan):
            steps = steps * smax(1, extent(place.step))
    return steps


def _computations(group: tensor.Group) -> list[tensor.Compute | tensor.Scatter]:
    return [m for m in group.walk() if isinstance(m, (tensor.Compute, tensor.Scatter))]


Reads = list[tuple[tensor.Compute | tensor.Scatter, tensor.Read]]


def _reads_by_source(computations: Iterable[tensor.Compute | tensor.Scatter]) -> dict[Value, Reads]:
    sources: dict[Value, Reads] = {}
    for m in computations:
        for read in m.reads:
            sources.setdefault(read.source, []).append((m, read))
    return sources


def _touched(value: Value, reads: Reads) -> Dim:
    """The bytes of a tensor that these reads load, each element once."""
    whole = value.type.size
    if reads and all(r.dynamic for _, r in reads):
        lookups: Dim = 0
        for m, _ in reads:
            roles = Roles.of(m)
            if roles is not None and roles.grouped:  # each row selects a matrix
                lookups = lookups + product((*(extent(m.axes[p]) for p in roles.m), *value.type.shape[1:]))
            else:
                lookups = lookups + product(extent(a) for a in m.axes)
        whole = smin(whole, lookups)
    elif reads:
        counts = [_elements(m, r) for m, r in reads]
        if all(count is not None for count in counts):
            whole = smin(whole, sum(count for count in counts if count is not None))
    return whole * value.type.dtype.itemsize


def _elements(computation: tensor.Compute | tensor.Scatter, read: tensor.Read) -> Dim | None:
    """A bound of the number of elements that a read loads: the points of the axes in its indices. None where
    the indices depend on data, or on the step of a loop, whose bytes `_steps` distributes.
    """
    used = {symbol for index in read.indices for symbol in free_symbols(index)}
    place: Operation | None = computation
    while place is not None:
        if isinstance(place, tensor.Scan) and place.step in used:
            return None
        place = place.parent_op
    if read.dynamic:
        return None
    axes = (*computation.axes, *getattr(computation, "reduce_axes", ()))
    points = product(extent(a) for a in axes if a in used)
    # The extent of a reduction axis may depend on a parallel one: count the longest.
    return points if isinstance(points, int) else substitute(points, {a: a.upper for a in computation.axes})


def moved_bytes(block: Block) -> tuple[int, Dim]:
    """The number of kernels and of bytes of a block's computations or groups, each as a kernel of its own.

    Kernels in a loop count once.
    """
    count = 0
    total: Dim = 0
    for op in block.ops:
        if isinstance(op, tensor.Nested):
            # The number of steps of a `while` and the branch that an `if` takes are unknown: count one step
            # and both branches.
            for region in op.regions:
                inside, moved = moved_bytes(region.block)
                steps = extent(op.step) if isinstance(op, tensor.Scan) else 1
                count, total = count + inside, total + moved * steps
            continue
        if isinstance(op, tensor.Group):
            total = total + group_bytes(op)
        elif isinstance(op, (tensor.Compute, tensor.Scatter)):
            for value, reads in _reads_by_source([op]).items():
                total = total + _touched(value, reads) // _steps(op, value)
            total = total + _bytes([*op.operands, *op.results])
        else:
            continue
        count += 1
    return count, total
