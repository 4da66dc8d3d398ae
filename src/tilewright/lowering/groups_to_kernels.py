"""From groups to scheduled kernels: equal groups share one kernel, so the twelfth layer of a network costs nothing.

A schedule rule may find that its form does not fit a kernel. The next slower one is taken then (`_scheduled`): the last of them leaves the loops as they are,
which is right for any kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..dialects import loop, scalar, tensor
from ..dialects.tensor import extent
from ..ir.cleanup import operation_key
from ..ir.core import Block, BlockArgument, Module, Operation, Value
from ..ir.location import Location, fuse_locations
from ..ir.symbolic import Dim, smax, smin, substitute
from ..ir.types import TensorType
from ..schedule import Schedule, ScheduleError, finalize
from ..transforms.index_maps import product
from ..transforms.roles import CONTRACTION, Roles
from .in_place import OVERWRITES, in_place_pairs
from .memory_plan import IN_PLACE
from .tensor_to_loop import kernel_of_group

ScheduleRule = Callable[[loop.Kernel, str, int], Schedule]
"""(kernel, kind of group, shared leading axes) -> the kernel's schedule, not yet finalized.

Raises `ScheduleError` where the form for that kind does not fit the kernel.
"""
PLAIN = "plain"
"""The kind of kernels of which nothing is known: a rule may vectorize their innermost loops, at most."""
STRICT = "TILEWRIGHT_STRICT_SCHEDULES"
"""Environment variable that makes it an error when a kernel takes a slower form than its kind's."""


@dataclass
class KernelInfo:
    """What is known of a kernel beside its code. `flops` and `bytes` are those of one launch; `origins` the operators it came from; `slower` says why
    the kernel has a slower form than its kind's, if it has."""

    name: str
    kind: str
    trace: str
    flops: Dim
    bytes: Dim
    origins: tuple[str, ...]
    slower: str = ""
    launches: int = 0
    location: Location = field(default_factory=Location)


def groups_to_kernels(module: Module, rule: ScheduleRule) -> tuple[dict[tensor.Group, str], dict[str, KernelInfo]]:
    """Add a finalized kernel to the module for every group; returns the kernel of each group and what is known of them."""
    kernels: dict[Any, KernelInfo] = {}
    names: dict[tensor.Group, str] = {}
    taken: set[str] = set()
    for block in tensor.blocks_of_computations(module):
        for op in block.ops:
            if not isinstance(op, tensor.Group):
                continue
            key = group_key(op)
            info = kernels.get(key)
            if info is None:
                name = _name(op, taken)
                kernel, trace, slower = _scheduled(op, name, rule)
                module.body.append(kernel)
                info = kernels[key] = KernelInfo(
                    name, op.kind, trace, group_flops(op), group_bytes(op), _origins(op), slower
                )
            info.launches += 1
            info.location = fuse_locations(info.location, *(m.location for m in op.body.ops))
            names[op] = info.name
    return names, {info.name: info for info in kernels.values()}


def _scheduled(group: tensor.Group, name: str, rule: ScheduleRule) -> tuple[loop.Kernel, str, str]:
    """The finalized kernel of a group in the fastest form that fits, its trace, and why the fastest of all does not ("" if it does)."""
    slower = ""
    for kind, rows in _kinds(group):
        try:
            return *_finalized(rule(_unscheduled(group, name), kind, rows)), slower
        except ScheduleError as error:
            if os.environ.get(STRICT):
                raise
            slower = slower or str(error)
    return *_finalized(Schedule(_unscheduled(group, name))), slower


def _unscheduled(group: tensor.Group, name: str) -> loop.Kernel:
    kernel = kernel_of_group(group, name)
    if pairs := in_place_pairs(group):
        kernel.attributes[IN_PLACE] = pairs
    return kernel


def _finalized(schedule: Schedule) -> tuple[loop.Kernel, str]:
    trace = schedule.show()
    return finalize(schedule), trace


def _kinds(group: tensor.Group) -> list[tuple[str, int]]:
    """Kinds under which a group can be scheduled, with the axes its members share then, the fastest first."""
    kinds = [(group.kind, int(group.attributes.get("tw.rows", 0)))]
    if group.kind == "contraction":  # an epilogue reads what the sum wrote at the same point
        kinds.append(("rows", min(len(r.type.shape) for r in group.body.terminator.operands)))
    return [*kinds, (PLAIN, 0)]


def group_key(group: tensor.Group) -> Any:
    """A key under which two groups are the same computation on inputs of the same types."""
    numbering: dict[Value, int] = {}
    for arg in group.body.args:
        numbering[arg] = len(numbering)
    body = []
    for op in group.body.ops:
        body.append((operation_key(op, numbering), op.attributes.get(CONTRACTION)))
        for result in op.results:
            numbering[result] = len(numbering)
    places = [tensor.place_of(r) for r in group.results]
    slices = tuple(p and (p.offset, p.run, p.full) for p in places)
    notes = group.attributes.get("tw.rows"), group.attributes.get(OVERWRITES)
    return group.kind, *notes, tuple(a.type for a in group.body.args), tuple(body), slices


def _origins(group: tensor.Group) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(m.attributes["tw.origin"]) for m in group.walk() if "tw.origin" in m.attributes))


def _name(group: tensor.Group, taken: set[str]) -> str:
    """``matmul_gelu``: the operators a kernel stands for, made unique."""
    parts = _origins(group) or ("map",)
    base = "_".join(dict.fromkeys("".join(c if c.isalnum() else "_" for c in p) for p in parts[:4]))
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    taken.add(name)
    return name


def group_flops(group: tensor.Group) -> Dim:
    """Arithmetic operations of a group; a function such as ``exp`` counts as one."""
    total: Dim = 0
    for m in _computations(group):
        reduce_axes = getattr(m, "reduce_axes", ())
        around = m.parent_op
        points = (extent(around.step) if isinstance(around, tensor.Scan) else 1) * product(
            extent(a) for a in (*m.axes, *(() if group.kind == "prefix" else reduce_axes))
        )
        if not isinstance(points, int):  # a reduce axis may be bounded by a parallel one: count the longest
            points = substitute(points, {a: a.upper for a in m.axes})
        per_point = sum(
            isinstance(x, (scalar.Unary, scalar.Binary, scalar.Select))
            and (x.result.type.is_float or CONTRACTION in m.attributes)
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
    """Bytes a group moves to and from memory: each input read and each output written once; of a table that is looked up in,
    only as many elements as there are lookups; of what a loop around it reads from outside, one step's share."""
    computations = _computations(group)
    overwritten = group.attributes.get(OVERWRITES)
    if overwritten is None:
        total = _bytes(list(group.results))
    else:  # all of it stays but what is scattered
        points = product(extent(a) for m in computations for a in m.axes)
        total = points * group.operands[overwritten].type.dtype.itemsize
    reads = _reads_by_source(computations)
    for number, (arg, value) in enumerate(zip(group.body.args, group.operands, strict=True)):
        if number != overwritten:
            total = total + _touched(arg, reads.get(arg, [])) // _steps(group, value)
    return total


def _steps(op: Operation, value: Value) -> Dim:
    """Over how many steps of the loops around `op` what it reads of `value` is spread.

    A tensor from outside a loop is read in slices, or the same in every step and then kept in a cache: either way it comes from memory once.
    """
    steps: Dim = 1
    home = value.block if isinstance(value, BlockArgument) else value.defining_op.parent if value.defining_op else None
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
    found: dict[Value, Reads] = {}
    for m in computations:
        for read in m.reads:
            found.setdefault(read.source, []).append((m, read))
    return found


def _touched(value: Value, reads: Reads) -> Dim:
    whole = value.type.size
    if reads and all(r.dynamic for _, r in reads):
        lookups: Dim = 0
        for m, _ in reads:
            roles = Roles.of(m)
            if roles is not None and roles.grouped:  # each row looks up a matrix
                lookups = lookups + product((*(extent(m.axes[p]) for p in roles.m), *value.type.shape[1:]))
            else:
                lookups = lookups + product(extent(a) for a in m.axes)
        whole = smin(whole, lookups)
    return whole * value.type.dtype.itemsize


def moved_bytes(block: Block) -> tuple[int, Dim]:
    """(kernels, bytes) of a block's computations or groups, each as a kernel of its own; those in a loop count once as kernels."""
    count = 0
    total: Dim = 0
    for op in block.ops:
        if isinstance(op, tensor.Nested):
            # How often a `while` runs, and which branch an `if` takes, is not known: once, and both.
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
