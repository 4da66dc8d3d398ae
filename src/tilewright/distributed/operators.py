"""The dialect ``ccl``: collective operations as graph operators.

Every process runs the same program. An operator starts its operation and waits for it; between both,
the pass `start_early` places other work. Compiled code calls the group's engine through the handle, an
operand: one u64 with the address of a C structure (c/group.h).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import NotImplementedType
from typing import Any

import numpy as np

from ..dialects.graph.base import Adjoint, AsynchronousOp, GraphOp, tensor_type
from ..dialects.graph.control_flow import Check
from ..dialects.graph.operands import need_choice
from ..dialects.graph.term import Term
from ..dialects.kernels import Apply
from ..errors import GradientError
from ..ir.builder import Builder
from ..ir.core import Attr, IRError, Operand, Value, operation
from ..ir.interpreter import Array
from ..ir.symbolic import Dim, Expr
from ..ir.types import DType, TensorType, Type, i64, u64
from ..kernels.c import c_kernel
from ..kernels.kernel import Kernel
from .engine import MAGIC, REDUCTIONS, Kind
from .groups import group_at

C_HEADER = f"""
#define TW_GROUP_MAGIC {MAGIC:#x}u
{(Path(__file__).parent / "c" / "group.h").read_text()}
static const tw_group* group_of(const uint64_t* handle) {{
  const tw_group* group = (const tw_group*)(uintptr_t)handle[0];
  return group && group->magic == TW_GROUP_MAGIC ? group : 0;
}}
enum {{ UNCONNECTED = 2, OTHER_VERSION = 3 }};
"""

_START = """
void {name}(int64_t n, const uint64_t* restrict handle, {source} {c}* restrict y,
            int64_t* restrict status, int64_t kind, int64_t reduction, int64_t peer) {{
  const tw_group* group = group_of(handle);
  status[0] = handle[0] ? OTHER_VERSION : UNCONNECTED;
  if (group)
    status[0] = group->start(group, kind, {code}, {bits}, reduction, peer, {x}, y, {parts} * n, {ratio} * n);
}}
"""
_WAIT = """
void {name}(int64_t n, const uint64_t* restrict handle, const int64_t* restrict started, {source}
            {c}* restrict y, int64_t* restrict status) {{
  const tw_group* group = group_of(handle);
  status[0] = started[0] || !group ? started[0] : group->wait(group, y);
}}
"""
_RANK = """
void ccl_rank(const uint64_t* restrict handle, int64_t* restrict rank) {
  const tw_group* group = group_of(handle);
  rank[0] = group ? group->rank : -1;
}
"""
UNCONNECTED = (
    "a collective operation has no group of processes: call tilewright.distributed.connect(library) first"
)
OTHER_VERSION = (
    "a collective operation was compiled by another version of Tilewright than the one that connects it: "
    "compile the library again"
)
FAILED = (
    "a collective operation failed: a process of the group has ended, or does not answer. The error of the "
    "group says more"
)


def _label(dtype: DType) -> tuple[str, int]:
    """The C type of an element, and DLPack's code."""
    codes = {"int": 0, "uint": 1, "float": 2}
    code = 4 if dtype.name == "bf16" else codes.get(dtype.kind, -1)
    if code < 0 or dtype.bits < 8 or (dtype.is_float and dtype.name not in ("bf16", "f16", "f32", "f64")):
        raise IRError(f"elements of {dtype.label} cannot be sent to other processes")
    if dtype.name in ("f32", "f64"):
        return ("float" if dtype.bits == 32 else "double"), code
    return f"{'' if dtype.kind == 'int' else 'u'}int{dtype.bits}_t", code


def _only_compiled(*_: Any, **__: Any) -> Any:
    raise GradientError("the parts of a collective operation run in compiled code only")


@cache
def start_kernel(dtype: DType, ratio: int, parts: int, in_place: bool) -> Kernel:
    """The kernel that starts an operation whose result has `ratio` elements for `parts` of its operand's, or
    whose result replaces the operand (`in_place`).
    """
    c, code = _label(dtype)
    name = f"ccl_start_{dtype.name}_{ratio}_{parts}{'_in_place' * in_place}"
    text = _START.format(
        name=name,
        c=c,
        code=code,
        bits=dtype.bits,
        ratio=ratio,
        parts=parts,
        source="" if in_place else f"const {c}* restrict x,",
        x="y" if in_place else "x",
    )
    return c_kernel(
        name,
        source=C_HEADER + text,
        inputs={"handle": u64[1], ("y" if in_place else "x"): dtype[f"{parts}*n"]},
        outputs={"y": dtype[f"{ratio}*n"], "status": i64[1]},
        scalars={"kind": 0, "reduction": 0, "peer": 0},
        reference=_only_compiled,
    )


@cache
def wait_kernel(dtype: DType, ratio: int, parts: int, in_place: bool) -> Kernel:
    """The kernel that waits for a result. It takes the operand of the start too, whose memory is read until
    then.
    """
    c, _ = _label(dtype)
    name = f"ccl_wait_{dtype.name}_{ratio}_{parts}{'_in_place' * in_place}"
    source = "" if in_place else f"const {c}* restrict x,"
    held = {} if in_place else {"x": dtype[f"{parts}*n"]}
    return c_kernel(
        name,
        source=C_HEADER + _WAIT.format(name=name, c=c, source=source),
        inputs={"handle": u64[1], "started": i64[1], **held, "y": dtype[f"{ratio}*n"]},
        outputs={"y": dtype[f"{ratio}*n"], "status": i64[1]},
        reference=_only_compiled,
    )


@cache
def rank_kernel() -> Kernel:
    """The kernel that reads the number of this process."""
    return c_kernel(
        "ccl_rank",
        source=C_HEADER + _RANK,
        inputs={"handle": u64[1]},
        outputs={"rank": i64[1]},
        reference=_only_compiled,
    )


def _apply(b: Builder, kernel: Kernel, operands: Sequence[Value], *numbers: int) -> tuple[Value, ...]:
    op = Apply(list(operands), kernel=kernel.name, digest=kernel.digest, scalars=numbers)
    return tuple(b.insert(op).results)


class Collective(AsynchronousOp):
    """A collective operation on `x` of the group with the handle `group` (one u64)."""

    x: Operand
    group: Operand
    kind: Any = None

    @property
    def peer(self) -> int:
        """The number beside the data: a root or a distance."""
        return 0

    @property
    def how(self) -> str:
        """The reduction."""
        return "sum"

    def shape_of_result(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The shape of the result for an operand of `shape`."""
        return shape

    def infer_types(self) -> Sequence[Type]:
        x, group = tensor_type(self.x), tensor_type(self.group)
        if group is not TensorType(u64, (1,)):
            raise IRError(f"the handle of a group is one u64, not {group}", self)
        if "reduction" in self.attributes:
            need_choice(self, "reduction", REDUCTIONS)
        try:
            _label(x.dtype)
        except IRError as error:
            raise IRError(str(error), self) from None
        return (TensorType(x.dtype, self.shape_of_result(x.shape)),)

    def reference(self, x: Array, group: Array) -> Any:
        shape = tuple(x for x in self.shape_of_result(x.shape) if isinstance(x, int))
        return group_at(int(group[0])).run(self.kind, x, shape, reduction=self.how, peer=self.peer)

    @property
    def ratio(self) -> tuple[int, int]:
        """Relative sizes of result and operand."""
        return 1, 1

    in_place: Any = False
    """Whether the engine may write the result over the operand."""

    def start(self, b: Builder) -> tuple[Value, ...]:
        """Build the start of the operation; return its flat result, which is being written, a status, and the
        flat operand, where it is read until the end.
        """
        x = tensor_type(self.x)
        flat = Term(b, self.x).reshape((x.size,)).value
        numbers = (int(self.kind), REDUCTIONS.index(self.how), self.peer)
        kernel = start_kernel(x.dtype, *self.ratio, self.in_place)
        y, status = _apply(b, kernel, (self.group, flat), *numbers)
        return (y, status) if self.in_place else (y, status, flat)

    def wait(self, b: Builder, *started: Value) -> Value:
        """Build the wait for a started operation; return its result."""
        y, status, *held = started
        kernel = wait_kernel(tensor_type(self.x).dtype, *self.ratio, self.in_place)
        done, after = _apply(b, kernel, (self.group, status, *held, y))
        code = Term(b, after).reshape(())
        for number, message in ((2, UNCONNECTED), (3, OTHER_VERSION)):
            b.insert(Check(code.equals(number).unary("not").value, message=message))
        b.insert(Check(code.equals(0).value, message=FAILED))
        return Term(b, done).reshape(self.result.type.shape).value

    def like(self, at: Adjoint, cls: type[GraphOp], **attributes: Any) -> Term:
        """Another collective operation of the same group on the gradient of the result."""
        return at.cotangent.of(at.b(cls(at.cotangent.value, self.group, **attributes)))


@operation
class AllReduce(Collective):
    """The reduction of all processes' `x`, the same in every process."""

    name = "ccl.all_reduce"
    reduction: Attr = "sum"
    kind = Kind.ALL_REDUCE
    in_place = True

    @property
    def how(self) -> str:
        return str(self.reduction)

    def gradient(self, at: Adjoint) -> Sequence[Term | None] | NotImplementedType:
        if self.reduction != "sum":
            return NotImplemented
        return self.like(at, AllReduce, reduction="sum"), None


@operation
class AllGather(Collective):
    """The `x` of all `size` processes, joined along the first dimension in the order of their ranks."""

    name = "ccl.all_gather"
    size: Attr
    kind = Kind.ALL_GATHER

    def shape_of_result(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        if not shape:
            raise IRError("needs at least one dimension to join", self)
        return (shape[0] * self.size, *shape[1:])

    @property
    def ratio(self) -> tuple[int, int]:
        return int(self.size), 1

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        return self.like(at, ReduceScatter, size=self.size, reduction="sum"), None


@operation
class ReduceScatter(Collective):
    """This process's part of the reduction of all processes' `x`, cut along the first dimension into `size`
    parts.
    """

    name = "ccl.reduce_scatter"
    size: Attr
    reduction: Attr = "sum"
    kind = Kind.REDUCE_SCATTER

    @property
    def how(self) -> str:
        return str(self.reduction)

    def shape_of_result(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        if not shape or isinstance(shape[0], Expr) or shape[0] % self.size:
            raise IRError(f"the first dimension of {shape} has no {self.size} equal parts", self)
        return (shape[0] // self.size, *shape[1:])

    @property
    def ratio(self) -> tuple[int, int]:
        return 1, int(self.size)

    def gradient(self, at: Adjoint) -> Sequence[Term | None] | NotImplementedType:
        if self.reduction != "sum":
            return NotImplemented
        return self.like(at, AllGather, size=self.size), None


@operation
class Broadcast(Collective):
    """The `x` of the process `root`, in every process."""

    name = "ccl.broadcast"
    root: Attr = 0
    kind = Kind.BROADCAST
    in_place = True

    @property
    def peer(self) -> int:
        return int(self.root)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        total = self.like(at, AllReduce, reduction="sum")
        here = at.cotangent.of(at.b(Rank(self.group))).equals(self.root)
        return here.select(total, 0), None


@operation
class AllToAll(Collective):
    """`x`, cut along the first dimension into one block for each of `size` processes: block k goes to process
    k. The result joins the blocks that came, in the order of their ranks.
    """

    name = "ccl.all_to_all"
    size: Attr
    kind = Kind.ALL_TO_ALL

    def shape_of_result(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        if not shape or isinstance(shape[0], Expr) or shape[0] % self.size:
            raise IRError(f"the first dimension of {shape} has no {self.size} equal blocks", self)
        return shape

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        return self.like(at, AllToAll, size=self.size), None


@operation
class Shift(Collective):
    """The `x` of the process `distance` ranks before this one, counted in a circle: a send and a receive."""

    name = "ccl.shift"
    distance: Attr = 1
    kind = Kind.SHIFT

    @property
    def peer(self) -> int:
        return int(self.distance)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        return self.like(at, Shift, distance=-self.distance), None


@operation
class Rank(GraphOp):
    """The number of this process in the group, an i64 scalar."""

    name = "ccl.rank"
    group: Operand

    def infer_types(self) -> Sequence[Type]:
        return (TensorType(i64, ()),)

    def reference(self, group: Array) -> Any:
        return np.asarray(group_at(int(group[0])).rank, np.int64)

    def decompose(self, b: Builder) -> Value:
        (rank,) = _apply(b, rank_kernel(), (self.group,))
        return Term(b, rank).reshape(()).value


__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Broadcast",
    "Collective",
    "Rank",
    "ReduceScatter",
    "Shift",
]
