"""Bufferizes: turns a function of tensor groups into a host program that launches kernels on buffers.

The input are functions over tensors that consist of constants, groups, views, concatenations and loops, and
for each group the kernels that compute it. The arguments of a host function are the model's inputs followed
by its outputs, as buffers. Each result is computed in the buffer where the caller wants it (destination
passing); the body of a scan writes its slices into the stacked results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..dialects import func, graph, host, loop, tensor
from ..dialects.places import place_of
from ..ir import notes
from ..ir.builder import Builder
from ..ir.core import Block, IRError, Module, Operation, Region, Value
from ..ir.run_time_symbols import defined_inside, mentions
from ..ir.symbolic import Dim
from ..ir.types import BufferType, TensorType
from ..passes.tensor.write_in_place import computed, updates_in_place


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
        if (memory := _memory(source)) in targets and memory is not target and source not in aside:
            aside[source] = builder(host.Alloc(buffer=source.type))
            builder.insert(host.Copy(source, aside[source]))
    for source, target in pairs:
        builder.insert(host.Copy(aside.get(source, source), target))


def _memory(value: Value) -> Value:
    while isinstance(op := value.defining_op, host.View):
        value = op.source
    return value


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
    results: list[Value],
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
        for call in calls:
            if isinstance(call, str):
                builder.insert(host.Launch(known, kernel=call, num_outputs=len(group.results)))
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
            builder.insert(host.Launch(arguments, kernel=call.kernel, num_outputs=kernel.num_outputs))

    def _loop(self, builder: Builder, scan: tensor.Scan) -> None:
        """Write the loop of a scan.

        A carried value that is also a slice of a stacked result is passed on as that slice. Any other is
        written to one of two buffers in turn, while the step reads the one that the previous step wrote (at
        first, the initial value).
        """
        buffers = self.buffers
        count = len(scan.initial)
        ends = list(scan.body.terminator.operands)
        carried, slices = ends[:count], ends[count:]
        stacked = scan.results[count:]
        for result in stacked:
            if result not in buffers:
                buffers[result] = builder(host.Alloc(buffer=_buffer(result.type)))
        alternating = [k for k, v in enumerate(carried) if v not in slices or computed(v, scan.body) is None]
        first = [_view(builder, buffers[x], x.type) for x in scan.initial]
        spare = {k: [builder(host.Alloc(buffer=first[k].type)) for _ in range(2)] for k in alternating}
        begin = [*first, *(b for pair in spare.values() for b in pair)]
        body = Region([Block([v.type for v in begin])])
        op = host.For(begin, step=scan.step, regions=[body], location=scan.location)
        builder.insert(op)
        args = op.body.args
        buffers.update(zip(scan.body.args, args[:count], strict=True))
        buffers_of = {k: (args[count + 2 * n], args[count + 2 * n + 1]) for n, k in enumerate(alternating)}

        inside = Builder(op.body, location=scan.location)
        places: list[Value] = []
        for value, result, place in zip(slices, stacked, scan.places, strict=True):
            memory = buffers[result]
            size = value.type.size
            places.append(inside(host.View(memory, shape=value.type.shape, offset=place * size)))
        wanted = [*slices, *(carried[k] for k in alternating)]
        targets = [*places, *(buffers_of[k][0] for k in alternating)]
        copied = _place_results(inside, scan.body, wanted, targets, buffers)
        self.block(inside, scan.body)
        for index in copied:
            inside.insert(host.Copy(buffers[wanted[index]], targets[index]))
        handed = [
            buffers_of[k][0] if k in buffers_of else _view(inside, buffers[v], scan.initial[k].type)
            for k, v in enumerate(carried)
        ]
        inside.insert(
            host.Yield([*handed, *(b for written, other in buffers_of.values() for b in (other, written))])
        )
        buffers.update(zip(scan.results[:count], op.results[:count], strict=True))

    def _while(self, builder: Builder, op: tensor.While) -> None:
        """Write the loop of a while: carried values alternate between two buffers, slices are appended to a
        growing block.
        """
        buffers = self.buffers
        count = len(op.initial)
        condition, *ends = op.body.terminator.operands
        carried, slices = ends[:count], ends[count:]
        first = [_view(builder, buffers[x], x.type) for x in op.initial]
        spare = [[builder(host.Alloc(buffer=x.type)) for _ in range(2)] for x in first]
        begin = [*first, *(b for pair in spare for b in pair)]
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
        buffers.update(zip(op.body.args, args[:count], strict=True))
        buffer_pairs = [(args[count + 2 * k], args[count + 2 * k + 1]) for k in range(count)]

        inside = Builder(loop_.body, location=op.location)
        slots = [self._new_slot() for _ in slices]
        places: list[Value] = []
        for value, slot in zip(slices, slots, strict=True):
            type_ = BufferType(value.type.dtype, (op.step + 1, *value.type.shape))
            block = inside(host.Alloc(buffer=type_, slot=slot, keep=True))
            places.append(inside(host.View(block, shape=value.type.shape, offset=op.step * value.type.size)))
        wanted = [*slices, *carried]
        targets = [*places, *(written for written, _ in buffer_pairs)]
        copied = _place_results(inside, op.body, wanted, targets, buffers)
        self.block(inside, op.body)
        for index in copied:
            inside.insert(host.Copy(buffers[wanted[index]], targets[index]))
        written = [w for w, _ in buffer_pairs]
        inside.insert(
            host.Yield([buffers[condition], *written, *(b for w, other in buffer_pairs for b in (other, w))])
        )
        buffers.update(zip(op.results[:count], loop_.results[:count], strict=True))
        for result, slot in zip(op.results[count:], slots, strict=True):
            buffers[result] = builder(host.Alloc(buffer=_buffer(result.type), slot=slot, keep=True))

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
            wanted = list(source.block.terminator.operands)
            copied = _place_results(inside, source.block, wanted, targets, self.buffers)
            self.block(inside, source.block)
            for index in copied:
                inside.insert(host.Copy(self.buffers[wanted[index]], targets[index]))
