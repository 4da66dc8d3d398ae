"""Operations in the style of a user's module, without postponed evaluation of annotations."""

import tilewright.ir.core as ir
from tilewright.ir.core import Attr, Effect, Operand, Operation, OptionalOperand, VariadicOperand, operation


@operation
class Fuse(Operation):
    name = "usertest.fuse"
    effects = Effect.PURE
    x: Operand
    others: VariadicOperand
    scale: OptionalOperand
    axis: Attr
    mode: Attr = "sum"
    count: int  # an ordinary annotation, which declares no part of the operation

    def infer_types(self):
        return (self.x.type,)


@operation
class Qualified(Operation):
    name = "usertest.qualified"
    effects = Effect.PURE
    x: ir.Operand
    k: ir.Attr = 0

    def infer_types(self):
        return (self.x.type,)
