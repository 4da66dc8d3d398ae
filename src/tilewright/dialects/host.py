"""The host dialect: the program that runs between kernels, on buffers with planned addresses.

A host function takes the model's input buffers (states among them), then its output buffers, and returns
nothing. It writes to the inputs that it `updates`. Its `host.alloc`s lie in one arena and its
`host.constant`s in one block of weights, at the byte `offset`s that memory planning assigns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..ir import notes
from ..ir.core import (
    Attr,
    Effect,
    IRError,
    Module,
    Operand,
    Operation,
    OptionalOperand,
    Value,
    VariadicOperand,
    operation,
)
from ..ir.interpreter import Array, Frame
from ..ir.symbolic import prove_eq, prove_le
from ..ir.types import BufferType, Type, i64
from .loop import Kernel
from .tensor import ERRORS, bind_size, check, run_while


@operation
class Constant(Operation):
    """A weight: `value` is the data, `offset` the byte offset in the block of weights (None before
    planning).
    """

    name = "host.constant"
    effects = Effect.PURE
    value: Attr
    offset: Attr = None

    def infer_types(self) -> Sequence[Type]:
        return (BufferType(self.value.dtype, self.value.shape),)

    def interpret(self, env: Frame) -> Any:
        return np.ascontiguousarray(self.value.array).reshape(self.value.shape)


@operation
class Alloc(Operation):
    """An intermediate buffer; `offset` (a `Dim`) is its byte offset in the arena (None before planning).

    A buffer whose size is computed at run time is not in the arena: it is the runtime's block number `slot`,
    allocated with the needed size when the run reaches the operation. With `keep` the block's content is
    preserved when it grows.
    """

    name = "host.alloc"
    effects = Effect.ALLOCATE
    buffer: Attr  # BufferType
    offset: Attr = None
    slot: Attr = None
    keep: Attr = False

    def infer_types(self) -> Sequence[Type]:
        return (self.buffer,)

    def verify(self) -> None:
        if not isinstance(self.buffer, BufferType) or self.buffer.space != "global":
            raise IRError("allocates a buffer in global memory", self)

    def interpret(self, env: Frame) -> Any:
        shape = tuple(int(env.evaluate(d)) for d in self.buffer.shape)
        dtype = self.buffer.dtype.numpy
        if self.slot is not None:
            return self._block(env, shape, dtype)
        if self.offset is None:
            return np.full(shape, np.nan if self.buffer.dtype.is_float else 0, dtype)
        # Planned buffers share bytes here as they will in the artifact, so that interpreting a program checks
        # its plan. The arena belongs to this run of the function: the frame's values hold it under the
        # function.
        main = self._function()
        arena = env.values.get(main)
        if arena is None:
            arena = env.values[main] = np.full(int(env.evaluate(notes.ARENA_SIZE.of(main))), 0xFF, np.uint8)
        start, count = int(env.evaluate(self.offset)), int(np.prod(shape, dtype=np.int64))
        end = start + count * dtype.itemsize
        if end > arena.size:
            raise IRError(f"ends at byte {end} of an arena of {arena.size}", self)
        return arena[start:end].view(dtype).reshape(shape)

    def _function(self) -> Operation:
        """The enclosing function, which identifies the memory of a run."""
        around = self.parent_op
        while isinstance(around, For | While | If):
            around = around.parent_op
        assert around is not None
        return around

    def _block(self, env: Frame, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        key = (self._function(), self.slot)
        block = np.full(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, 0xFF, np.uint8)
        old = env.values.get(key)
        if self.keep and old is not None:
            count = min(block.size, old.size)
            block[:count] = old[:count]
        env.values[key] = block
        return block.view(dtype).reshape(shape)


@operation
class View(Operation):
    """The same memory under another shape. A view with fewer elements begins `offset` elements from the
    start; a view with another element type covers the whole source.

    With `checked` the run compares the sizes, which are not provably equal.
    """

    name = "host.view"
    effects = Effect.PURE
    source: Operand
    shape: Attr
    offset: Attr = 0
    dtype: Attr = None
    checked: Attr = False

    @property
    def is_whole(self) -> bool:
        """Whether the view covers all of its source."""
        if self.checked:
            return True
        before, after = (t.size * t.dtype.itemsize for t in (self.source.type, self.result.type))
        return prove_eq(self.offset, 0) and prove_eq(before, after)

    def infer_types(self) -> Sequence[Type]:
        return (BufferType(self.dtype or self.source.type.dtype, self.shape, self.source.type.space),)

    def verify(self) -> None:
        end = self.offset + self.result.type.size
        if self.dtype not in (None, self.source.type.dtype) and not self.is_whole:
            raise IRError(f"{self.result.type} is not the whole of {self.source.type}", self)
        if not self.is_whole and not (prove_le(0, self.offset) and prove_le(end, self.source.type.size)):
            raise IRError(
                f"cannot prove that {self.result.type} at {self.offset} lies in {self.source.type}", self
            )

    def interpret(self, env: Frame, source: Array) -> Any:
        shape = tuple(int(env.evaluate(d)) for d in self.shape)
        view = source.view()
        view.shape = (-1,)  # unlike reshape, never copies
        if self.checked and (min(shape, default=0) < 0 or int(np.prod(shape, dtype=np.int64)) != view.size):
            raise IRError(f"{view.size} elements do not have the shape {shape}", self)
        view = view.view(self.result.type.dtype.numpy)
        start = int(env.evaluate(self.offset))
        view = view[start : start + int(np.prod(shape, dtype=np.int64))]
        view.shape = shape
        return view


@operation
class For(Operation):
    """A loop over the values of the symbol `step`. The body takes buffers, launches kernels and yields the
    buffers of the next step.

    The body's arguments start as `initial`; the results are the last step's yielded buffers. Steps exchange
    buffers without copying them.
    """

    name = "host.for"
    effects = Effect.READ | Effect.WRITE
    num_regions = 1
    binds = ("step",)
    initial: VariadicOperand
    step: Attr

    @property
    def handed_on(self) -> tuple[Value, ...]:
        """The buffers that a step passes to the next one."""
        return tuple(self.body.terminator.operands)

    def infer_types(self) -> Sequence[Type]:
        return tuple(v.type for v in self.initial)

    def verify(self) -> None:
        types = [v.type for v in self.initial]
        ends = [v.type for v in self.body.terminator.operands]
        if [a.type for a in self.body.args] != types or ends != types:
            raise IRError(
                f"begins with {types}, takes {[a.type for a in self.body.args]} and yields {ends}", self
            )

    def interpret(self, env: Frame, *initial: Array) -> Any:
        carried = list(initial)
        for k in range(int(env.evaluate(self.step.upper + 1))):
            carried = env.child({self.step.name: k}).run_block(self.body, carried)
        return carried


@operation
class While(Operation):
    """A loop with a condition: a `For` that runs while the condition's byte is not 0, at most `limit` (an i64
    in a buffer) times. The first condition is the buffer `condition`, later ones the first buffer that the
    body yields.

    The operation defines the symbol `count` as the number of steps.
    """

    name = "host.while"
    effects = Effect.READ | Effect.WRITE
    num_regions = 1
    binds = ("step",)
    defines = ("count",)
    condition: Operand
    limit: OptionalOperand
    initial: VariadicOperand
    step: Attr
    count: Attr

    @property
    def handed_on(self) -> tuple[Value, ...]:
        """The buffers that a step passes to the next one, without the condition."""
        return tuple(self.body.terminator.operands[1:])

    def infer_types(self) -> Sequence[Type]:
        return tuple(v.type for v in self.initial)

    def verify(self) -> None:
        types = [v.type for v in self.initial]
        ends = [v.type for v in self.body.terminator.operands][1:]
        if [a.type for a in self.body.args] != types or ends != types:
            raise IRError(
                f"begins with {types}, takes {[a.type for a in self.body.args]} and yields {ends}", self
            )

    def interpret(self, env: Frame, *operands: Array) -> Any:
        return run_while(
            self,
            env,
            operands,
            lambda step, carried: env.child({self.step.name: step}).run_block(self.body, carried),
        )


@operation
class If(Operation):
    """Run the first region if the byte in the buffer `condition` is not 0, else the second. The regions write
    to buffers of the enclosing function.
    """

    name = "host.if"
    effects = Effect.READ | Effect.WRITE
    num_regions = 2
    condition: Operand

    def infer_types(self) -> Sequence[Type]:
        return ()

    def interpret(self, env: Frame, condition: Array) -> Any:
        env.child({}).run_block(self.regions[0 if condition.any() else 1].block, ())
        return ()


@operation
class Check(Operation):
    """End the run with `message`, reported as `error`, if the byte in the buffer `condition` is 0."""

    name = "host.check"
    effects = Effect.READ | Effect.WRITE
    condition: Operand
    message: Attr
    error: Attr = ERRORS[0]

    def infer_types(self) -> Sequence[Type]:
        return ()

    def interpret(self, env: Frame, condition: Array) -> Any:
        return check(self, condition, self.error)


@operation
class BindSize(Operation):
    """Define `symbol` as the i64 in the buffer `count`, which must be within the symbol's bounds."""

    name = "host.bind_size"
    effects = Effect.READ | Effect.WRITE
    defines = ("symbol",)
    count: Operand
    symbol: Attr

    def infer_types(self) -> Sequence[Type]:
        return ()

    def verify(self) -> None:
        if self.count.type.dtype is not i64 or not prove_eq(self.count.type.size, 1):
            raise IRError(f"a size is one i64, not {self.count.type}", self)

    def interpret(self, env: Frame, count: Array) -> Any:
        return bind_size(self, env, count.item())


@operation
class Yield(Operation):
    """End the body of a loop with the buffers of the next step (in a `While`, the condition's buffer first),
    or end a branch without operands.
    """

    name = "host.yield"
    effects = Effect.CONTROL
    terminator = True
    buffers: VariadicOperand

    def infer_types(self) -> Sequence[Type]:
        return ()


@operation
class Launch(Operation):
    """Run the `loop.kernel` called `kernel` on buffers in the kernel's order, inputs before its `num_outputs`
    outputs.

    `variants` are kernels that may run in its place: pairs of guards and a kernel's name. The first whose
    guards, expressions over the kernel's sizes, are all >= 0 runs; `kernel` runs if there is none.

    The sizes that the kernel needs (its `dims`) are symbols of the function, found by name.
    """

    name = "host.launch"
    effects = Effect.READ | Effect.WRITE
    buffers: VariadicOperand
    kernel: Attr
    num_outputs: Attr = 1
    variants: Attr = ()

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of all kernels that the launch may run, `kernel` first."""
        return (self.kernel, *(name for _, name in self.variants))

    def chosen(self, env: Frame) -> str:
        """The kernel that runs with the sizes of `env`."""
        holding = (name for guards, name in self.variants if all(env.evaluate(e) >= 0 for e in guards))
        return next(holding, self.kernel)

    @property
    def inputs(self) -> tuple[Any, ...]:
        buffers: tuple[Any, ...] = self.buffers
        return buffers[: len(buffers) - self.num_outputs]

    @property
    def outputs(self) -> tuple[Any, ...]:
        buffers: tuple[Any, ...] = self.buffers
        return buffers[len(buffers) - self.num_outputs :]

    def infer_types(self) -> Sequence[Type]:
        return ()

    def verify(self) -> None:
        if not all(isinstance(v.type, BufferType) for v in self.buffers):
            raise IRError("takes buffers", self)
        if not 0 <= self.num_outputs <= len(self.buffers):
            raise IRError(f"{self.num_outputs} outputs among {len(self.buffers)} buffers", self)

    def interpret(self, env: Frame, *buffers: Array) -> Any:
        module = env.module
        assert isinstance(module, Module)
        name = self.chosen(env)
        try:
            kernel = module.symbol(name)
        except KeyError:
            raise IRError(f"the module has no kernel '{name}' to run", self) from None
        assert isinstance(kernel, Kernel)
        Frame(module, {s.name: env.dims[s.name] for s in kernel.dims}, {}).run_block(kernel.body, buffers)
        return ()


@operation
class Copy(Operation):
    """Copies all elements of `source` to `target`, in row-major order of both."""

    name = "host.copy"
    effects = Effect.READ | Effect.WRITE
    source: Operand
    target: Operand

    def infer_types(self) -> Sequence[Type]:
        return ()

    def verify(self) -> None:
        source, target = self.source.type, self.target.type
        if source.dtype is not target.dtype or not prove_eq(source.size, target.size):
            raise IRError(f"cannot copy {source} to {target}", self)

    def interpret(self, env: Frame, source: Array, target: Array) -> Any:
        target[...] = source.reshape(target.shape)
        return ()


def check_launches(module: Module) -> None:
    """Check every launch of a module against the kernel it names.

    Raises:
        IRError: no such kernel, or its arguments differ in number, element type or size from the buffers; or
            a variant's sizes are others than the kernel's.
    """
    kernels = {k.sym_name: k for k in module.functions(Kernel)}
    for op in module.walk():
        if isinstance(op, Launch):
            for name in op.kernels:
                _check_launch(op, name, kernels)


def _check_launch(op: Launch, name: str, kernels: Mapping[str, Kernel]) -> None:
    kernel = kernels.get(name)
    if kernel is None:
        raise IRError(f"the module has no kernel '{name}'", op)
    wanted = [a.type for a in kernel.body.args]
    if len(wanted) != len(op.buffers) or kernel.num_outputs != op.num_outputs:
        raise IRError(f"'{name}' takes {len(wanted)} buffers, {kernel.num_outputs} of them outputs", op)
    for index, (buffer, type_) in enumerate(zip(op.buffers, wanted, strict=True)):
        if buffer.type.dtype is not type_.dtype or not prove_eq(buffer.type.size, type_.size):
            raise IRError(f"buffer {index} of '{name}' is {type_}, got {buffer.type}", op)
    if kernel.dims != kernels[op.kernel].dims:
        raise IRError(f"'{name}' has the sizes {kernel.dims}, not those of '{op.kernel}'", op)
