"""Bufferizes: turns a function of tensor groups into a host program that launches kernels on buffers.

The input are functions over tensors that consist of constants, groups, views, concatenations and loops, and
for each group the kernels that compute it. The arguments of a host function are the model's inputs followed
by its outputs, as buffers. Each result is computed in the buffer where the caller wants it (destination
passing); the body of a scan writes its slices into the stacked results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..dialects import func, graph, host, loop, scalar, tensor
from ..dialects.places import place_of
from ..ir import notes
from ..ir.builder import Builder
from ..ir.core import Block, IRError, Module, Operation, OpResult, Region, Value
from ..ir.location import Location
from ..ir.run_time_symbols import defined_inside, mentions
from ..ir.symbolic import Dim
from ..ir.types import BufferType, TensorType
from ..passes.tensor.write_in_place import computed, may_make_no_step, updates_in_place
from .memory_plan import root


@dataclass(frozen=True)
class KernelCall:
    """One kernel of a group that has several.

    `arguments` are the kernel's buffers in its own order: the group's inputs count from 0, its results
    follow, and higher numbers are buffers that only the group's kernels share, of the types that the kernels
    declare.
    """

    kernel: str
    arguments: tuple[int, ...]


KernelsOf = Callable[[tensor.Group], Sequence[str | KernelCall]]
"""The kernels that compute a group, in order; a name alone means a kernel of the group's inputs, then its
results.
"""


Variants = Mapping[str, tuple[tuple[tuple[Dim, ...], str], ...]]
"""The variants of kernels, as `host.Launch` has them, by the kernel's name."""


def bufferize(module: Module, kernels_of: KernelsOf, variants: Variants | None = None) -> None:
    """Replace the tensor functions by their host programs, whose launches may choose among the `variants` of
    a kernel.

    Raises:
        IRError: a function contains an operation that is neither constant, group, view nor loop, or a kernel
            is missing.
    """
    for function in module.functions(func.Func):
        _bufferize(module, function, kernels_of)
    for op in module.walk() if variants else ():
        if isinstance(op, host.Launch):
            op.variants = (variants or {}).get(op.kernel, ())
    host.check_launches(module)


def _bufferize(module: Module, old: func.Func, kernels_of: KernelsOf) -> None:
    results = old.outputs
    names = tuple(old.result_names) or tuple(f"output{k}" for k in range(len(results)))
    inputs = tuple(old.arg_names) or tuple(f"input{k}" for k in range(len(old.body.args)))
    new = func.Func(
        sym_name=old.sym_name,
        arg_names=(*inputs, *names),
        result_names=names,
        updates=old.updates,
        states=old.states,
        location=old.location,
    )
    for key, value in old.attributes.items():
        new.attributes.setdefault(key, value)
    symbols = defined_inside(old)
    buffers: dict[Value, Value] = {a: new.body.add_arg(_buffer(a.type), a.hint) for a in old.body.args}
    targets = [new.body.add_arg(_buffer(v.type), name) for v, name in zip(results, names, strict=True)]

    builder = Builder(new.body, location=old.location)
    moved = []
    for argument, value in old.updated:
        memory = [buffers[argument]] if argument in updates_in_place(old) else []
        if not memory or _place_results(builder, old.body, [value], memory, buffers):
            moved.append((value, buffers[argument]))
    # The place of an output whose size is computed in the run is known at its end only.
    late = [k for k, v in enumerate(results) if mentions(v.type.shape, symbols)]
    early = [k for k in range(len(results)) if k not in late]
    copied = _place_results(
        builder, old.body, [results[k] for k in early], [targets[k] for k in early], buffers
    )
    _Bufferizer(module, kernels_of, buffers).block(builder, old.body)
    for index in (*(early[k] for k in copied), *late):
        builder.insert(host.Copy(buffers[results[index]], targets[index]))
    _move(builder, [(buffers[value], memory) for value, memory in moved])
    builder.insert(func.Return(()))
    module.body.insert_before(old, new)
    old.drop_all()
    old.detach()


def _move(builder: Builder, pairs: Sequence[tuple[Value, Value]]) -> None:
    """Copy the first to the second of each pair as if at once: a buffer that is overwritten before it is read
    is saved.
    """
    pairs = [(source, target) for source, target in pairs if source is not target]
    targets = {target for _, target in pairs}
    aside: dict[Value, Value] = {}
    for source, target in pairs:
        if (memory := root(source)) in targets and memory is not target and source not in aside:
            aside[source] = builder(host.Alloc(buffer=source.type))
            builder.insert(host.Copy(source, aside[source]))
    for source, target in pairs:
        builder.insert(host.Copy(aside.get(source, source), target))


def _place(group: tensor.Group) -> Location:
    """The location of a group's launches: all operators of the group, and in `fused` the operator that most
    of the work is expected of, a contraction's or else the last.

    Scalars that depend on constants and indices only are no evidence of an operator: equal ones of several
    operators are one operation.
    """
    parts = [op for op in group.body.ops if not op.terminator]
    main = next((op for op in parts if notes.CONTRACTION.present(op)), group).location
    numbers: set[int] = set()
    alike: set[Operation | None] = set()
    for op in group.walk():
        if isinstance(op, scalar.ScalarOp) and all(v.defining_op in alike for v in op.operands):
            alike.add(op)
        else:
            numbers.update(op.location.operators)
    fused = (Location(main.name, main.file, main.line, operators=main.operators),) if main.operators else ()
    return replace(group.location, fused=fused, operators=tuple(sorted(numbers)))


def _buffer(type_: TensorType) -> BufferType:
    if type_.layout is not None:
        raise IRError(f"{type_} has a layout, which must have become a transposition before buffers are made")
    return BufferType(type_.dtype, type_.shape)


def _view(builder: Builder, buffer: Value, type_: TensorType, checked: bool = False) -> Value:
    """`buffer` with the shape and element type of `type_`; a view of a view is a view of the buffer."""
    while buffer.type.shape != type_.shape or buffer.type.dtype is not type_.dtype:
        op = buffer.defining_op
        if not isinstance(op, host.View) or not op.is_whole or op.checked or checked:
            break
        buffer = op.source
    else:
        return buffer
    dtype = None if buffer.type.dtype is type_.dtype else type_.dtype
    view: Value = builder(host.View(buffer, shape=type_.shape, dtype=dtype, checked=checked))
    return view


def _place_results(
    builder: Builder,
    block: Block,
    results: Sequence[Value],
    targets: Sequence[Value],
    buffers: dict[Value, Value],
) -> list[int]:
    """Let `block` compute its results in the buffers `targets`; return the numbers of the results that must
    be copied.
    """
    copied = []
    for index, (value, target) in enumerate(zip(results, targets, strict=True)):
        chain = computed(value, block)
        if chain is not None and chain[-1] not in buffers:
            for step in chain:
                buffers.setdefault(step, _view(builder, target, step.type))
        else:
            copied.append(index)
    return copied


class _Bufferizer:
    """Writes blocks of the host program; `buffers` has the buffer of each tensor."""

    def __init__(self, module: Module, kernels_of: KernelsOf, buffers: dict[Value, Value]) -> None:
        self.module, self.kernels_of, self.buffers = module, kernels_of, buffers
        self.slots = 0

    def block(self, builder: Builder, block: Block) -> None:
        buffers = self.buffers
        for op in block.ops:
            with builder.at(op.location):
                if op.terminator:
                    break
                if isinstance(op, graph.Constant):
                    buffers[op.result] = builder(host.Constant(value=op.value))
                elif isinstance(op, tensor.Concat):
                    pass  # the producers of the parts have written them there
                elif isinstance(op, tensor.View):
                    if op.result not in buffers and op.result.has_uses and place_of(op.result) is None:
                        checked = isinstance(op, tensor.AssumeShape)
                        buffers[op.result] = _view(builder, buffers[op.x], op.result.type, checked)
                elif isinstance(op, tensor.Group):
                    self._launch(builder, op, self.kernels_of(op))
                elif isinstance(op, tensor.Scan):
                    self._loop(builder, op)
                elif isinstance(op, tensor.While):
                    self._while(builder, op)
                elif isinstance(op, tensor.If):
                    self._branches(builder, op)
                elif isinstance(op, tensor.BindSize):
                    builder.insert(host.BindSize(self.buffers[op.count], symbol=op.symbol))
                elif isinstance(op, tensor.Check):
                    builder.insert(host.Check(self.buffers[op.condition], message=op.message, error=op.error))
                else:
                    raise IRError(
                        "is not allowed between kernels; constants, groups, views, loops and branches are",
                        op,
                    )

    def _allocate(self, builder: Builder, op: Operation) -> None:
        """Allocate buffers for results without one; a part of a concatenation has its place in the buffer of
        the whole.
        """
        for result in op.results:
            place = place_of(result)
            whole = result if place is None else place.join.result
            if whole not in self.buffers:
                self.buffers[whole] = builder(host.Alloc(buffer=_buffer(whole.type)))
            if place is not None:
                shape = place.shape(result.type.shape)
                self.buffers[result] = _view(
                    builder, self.buffers[whole], TensorType(result.type.dtype, shape)
                )

    def _launch(self, builder: Builder, group: tensor.Group, calls: Sequence[str | KernelCall]) -> None:
        for index, number in notes.OVERWRITES.get(group, ()):
            result = group.results[index]
            if result not in self.buffers:
                self.buffers[result] = _view(builder, self.buffers[group.operands[number]], result.type)
        self._allocate(builder, group)
        known = [self.buffers[v] for v in (*group.inputs, *group.results)]
        shared: dict[int, Value] = {}
        place = _place(group)
        for call in calls:
            if isinstance(call, str):
                builder.insert(
                    host.Launch(known, kernel=call, num_outputs=len(group.results), location=place)
                )
                continue
            kernel = self.module.symbol(call.kernel)
            assert isinstance(kernel, loop.Kernel)
            arguments = []
            for number, parameter in zip(call.arguments, kernel.body.args, strict=True):
                if number < len(known):
                    arguments.append(known[number])
                    continue
                if number not in shared:
                    type_ = BufferType(parameter.type.dtype, parameter.type.shape)
                    shared[number] = builder(host.Alloc(buffer=type_))
                arguments.append(shared[number])
            builder.insert(
                host.Launch(arguments, kernel=call.kernel, num_outputs=kernel.num_outputs, location=place)
            )

    def _loop(self, builder: Builder, scan: tensor.Scan) -> None:
        """Write the loop of a scan.

        A carried value that is also a slice of a stacked result is passed on as that slice. Any other is
        written over the previous step's (`_in_place`), or to one of two buffers in turn, while the step reads
        the one that the previous step wrote (at first, the initial value).
        """
        buffers = self.buffers
        carried, slices = scan.carried, scan.slices
        stacked = scan.results[len(carried) :]
        for result in stacked:
            if result not in buffers:
                buffers[result] = builder(host.Alloc(buffer=_buffer(result.type)))
        fixed = self._in_place(builder, scan)
        passed = [k for k in range(len(carried)) if k not in fixed]
        alternating = [
            k for k in passed if carried[k] not in slices or computed(carried[k], scan.body) is None
        ]
        first = [_view(builder, buffers[scan.initial[k]], scan.initial[k].type) for k in passed]
        spare = [
            builder(host.Alloc(buffer=_buffer(scan.initial[k].type))) for k in alternating for _ in range(2)
        ]
        begin = [*first, *spare]
        body = Region([Block([v.type for v in begin])])
        op = host.For(begin, step=scan.step, regions=[body], location=scan.location)
        builder.insert(op)
        args = op.body.args
        buffers.update((scan.body.args[k], a) for k, a in zip(passed, args, strict=False))
        pairs = _pairs(args[len(passed) :])
        target = {**fixed, **{k: written for k, (written, _) in zip(alternating, pairs, strict=True)}}

        inside = Builder(op.body, location=scan.location)
        places: list[Value] = []
        for value, result, place in zip(slices, stacked, scan.places, strict=True):
            memory = buffers[result]
            size = value.type.size
            places.append(inside(host.View(memory, shape=value.type.shape, offset=place * size)))
        self._step(inside, scan.body, [*slices, *(carried[k] for k in target)], [*places, *target.values()])
        handed = [
            target[k] if k in target else _view(inside, buffers[carried[k]], first[n].type)
            for n, k in enumerate(passed)
        ]
        inside.insert(host.Yield([*handed, *_exchanged(pairs)]))
        buffers.update((scan.results[k], r) for k, r in zip(passed, op.results, strict=False))
        buffers.update((scan.results[k], place) for k, place in fixed.items())

    def _while(self, builder: Builder, op: tensor.While) -> None:
        """Write the loop of a while: carried values are written in place or alternate between two buffers, as
        in `_loop`; slices are appended to a growing block.
        """
        buffers = self.buffers
        carried = op.carried
        fixed = self._in_place(builder, op)
        passed = [k for k in range(len(carried)) if k not in fixed]
        first = [_view(builder, buffers[op.initial[k]], op.initial[k].type) for k in passed]
        spare = [builder(host.Alloc(buffer=x.type)) for x in first for _ in range(2)]
        begin = [*first, *spare]
        limit = None if op.limit is None else buffers[op.limit]
        body = Region([Block([v.type for v in begin])])
        loop_ = host.While(
            buffers[op.condition],
            limit,
            begin,
            step=op.step,
            count=op.count,
            regions=[body],
            location=op.location,
        )
        builder.insert(loop_)
        args = loop_.body.args
        buffers.update((op.body.args[k], a) for k, a in zip(passed, args, strict=False))
        pairs = _pairs(args[len(passed) :])
        written = [w for w, _ in pairs]
        target = {**fixed, **dict(zip(passed, written, strict=True))}

        inside = Builder(loop_.body, location=op.location)
        slots = [self._new_slot() for _ in op.slices]
        places: list[Value] = []
        for value, slot in zip(op.slices, slots, strict=True):
            type_ = BufferType(value.type.dtype, (op.step + 1, *value.type.shape))
            block = inside(host.Alloc(buffer=type_, slot=slot, keep=True))
            places.append(inside(host.View(block, shape=value.type.shape, offset=op.step * value.type.size)))
        self._step(inside, op.body, [*op.slices, *(carried[k] for k in target)], [*places, *target.values()])
        condition = buffers[op.body.terminator.operands[0]]
        inside.insert(host.Yield([condition, *written, *_exchanged(pairs)]))
        buffers.update((op.results[k], r) for k, r in zip(passed, loop_.results, strict=False))
        buffers.update((op.results[k], place) for k, place in fixed.items())
        for result, slot in zip(op.results[len(carried) :], slots, strict=True):
            buffers[result] = builder(host.Alloc(buffer=_buffer(result.type), slot=slot, keep=True))

    def _in_place(self, builder: Builder, op: tensor.Scan | tensor.While) -> dict[int, Value]:
        """The buffers of carried values that each step writes over the previous step's, by number. They hold
        the initial values: such a buffer is the initial value's own if nothing else reads it later, else a
        copy.
        """
        assert op.parent is not None
        found: dict[int, Value] = {}
        chosen = notes.CARRIED_IN_PLACE.get(op, ())
        first = len(op.operands) - len(op.initial)
        others = [v for k, v in enumerate(op.operands) if k - first not in chosen]
        taken = {root(self.buffers[v]) for v in others}
        for k in chosen:
            initial = op.initial[k]
            place = _view(builder, self.buffers[initial], initial.type)
            memory = root(place)
            if memory in taken or not isinstance(memory.defining_op, host.Alloc) or not _ends_at(initial, op):
                place = builder(host.Alloc(buffer=_buffer(initial.type)))
                builder.insert(host.Copy(self.buffers[initial], place))
            taken.add(memory)
            found[k] = place
        self.buffers.update((op.body.args[k], place) for k, place in found.items())
        return found

    def _step(self, inside: Builder, body: Block, wanted: Sequence[Value], targets: Sequence[Value]) -> None:
        """Write a step of a loop or a branch, which computes the values `wanted` in the buffers `targets`."""
        copied = _place_results(inside, body, wanted, targets, self.buffers)
        self.block(inside, body)
        for index in copied:
            inside.insert(host.Copy(self.buffers[wanted[index]], targets[index]))

    def _new_slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def _branches(self, builder: Builder, op: tensor.If) -> None:
        """Write both branches of an if, which write the results into the same buffers."""
        self._allocate(builder, op)
        targets = [self.buffers[r] for r in op.results]
        branch = host.If(self.buffers[op.condition], location=op.location)
        builder.insert(branch)
        for source, region in zip(op.regions, branch.regions, strict=True):
            inside = Builder(region.block, location=op.location)
            self._step(inside, source.block, source.block.terminator.operands, targets)


def _ends_at(value: Value, loop_: Operation) -> bool:
    """Whether a tensor is computed in a buffer of its own in the block of `loop_`, and read last as an
    operand of it, not by its body.
    """
    block = loop_.parent
    assert block is not None
    chain = computed(value, block)
    # The carried results of a scan may lie in its stacked ones.
    if chain is None or isinstance(chain[-1].defining_op, tensor.Concat | tensor.Scan):
        return False
    if any(place_of(v) is not None for v in chain if isinstance(v, OpResult)):
        return False
    # The readers of each version that the memory holds: an operation that overwrites it is no view.
    readers = {reader for v in chain for reader in tensor.readers(v, tensor.View)}
    if any(may_make_no_step(reader) for reader in readers - {loop_}):
        return False  # the results of that loop may lie in this memory
    before = {x for op in block.between(None, loop_) for x in op.walk()}
    return readers <= {*before, loop_}


def _pairs(buffers: Sequence[Value]) -> list[tuple[Value, Value]]:
    return list(zip(buffers[::2], buffers[1::2], strict=True))


def _exchanged(pairs: Sequence[tuple[Value, Value]]) -> list[Value]:
    """The buffers of pairs in the other order: the next step writes the one that this step reads."""
    return [b for written, other in pairs for b in (other, written)]
