"""The classes of the IR: operations, uses, blocks, cloning, builders, locations, types and constants."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest

import tilewright.ir.core as ir
from tilewright.dialects import func, graph
from tilewright.dialects.graph.elementwise import BINARY, UNARY
from tilewright.ir.builder import Builder
from tilewright.ir.core import (
    Attr,
    Block,
    Constant,
    Effect,
    IRError,
    Module,
    Operation,
    Value,
    operation,
    registered_operations,
)
from tilewright.ir.equality import modules_equal
from tilewright.ir.location import UNKNOWN, Location, fuse_locations
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import BufferType, DType, TensorType, bf16, boolean, f32, i64, token

from . import user_ops
from .random_modules import random_module

T = TensorType(f32, (2, 3))


def values(count: int, type: Any = T) -> list[Value]:
    return list(Block([type] * count).args)


def test_annotations_written_either_way() -> None:
    x, y, z = values(3)
    op = user_ops.Fuse(x, (y, z), None, axis=1)
    assert (op.x, op.others, op.scale, op.axis, op.mode) == (x, (y, z), None, 1, "sum")
    assert list(user_ops.Fuse._attr_fields) == ["axis", "mode"]
    assert user_ops.Fuse(x, (), y, axis=0).scale is y
    assert user_ops.Qualified(x, k=3).k == 3

    class Postponed(Operation):
        name = "usertest.postponed"
        effects = Effect.PURE
        x: ir.Operand
        k: ir.Attr = 1

    assert Postponed._operand_fields == (("x", "one"),)
    assert Postponed._attr_fields == {"k": 1}


def test_an_operation_must_say_its_name_and_effects() -> None:
    class Nameless(Operation):
        effects = Effect.PURE

    class Effectless(Operation):
        name = "usertest.effectless"

    class Taken(Operation):
        name = "graph.softmax"
        effects = Effect.PURE

    with pytest.raises(TypeError, match="Nameless has no 'name'"):
        operation(Nameless)
    with pytest.raises(TypeError, match=r"usertest.effectless: declare 'effects'"):
        operation(Effectless)
    with pytest.raises(TypeError, match="'graph.softmax' is already defined by tilewright.dialects"):
        operation(Taken)
    assert registered_operations()["graph.softmax"] is graph.Softmax


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: graph.Matmul(x), r"'graph.matmul': takes 2 operands \(a, b\), got 1"),
        (lambda x: user_ops.Fuse(x, ()), "'usertest.fuse': attribute 'axis' is missing"),
        (lambda x: user_ops.Fuse(x, (), axis=1, axes=2), "has no attribute 'axes'; known: axis, mode"),
        (lambda x: user_ops.Fuse(x, (), None, x, axis=1), "takes at most 3 operands, got 4"),
        (lambda x: user_ops.Fuse(axis=1), "needs operand 'x'"),
        (
            lambda x: graph.Matmul(x, x, location=Location("enc/MatMul", "m.py", 3)),
            r"differ \(at enc/MatMul \(m.py:3\)\)",
        ),
    ],
)
def test_wrong_parts_are_named(build: Any, message: str) -> None:
    (x,) = values(1)
    with pytest.raises(IRError, match=message):
        build(x)
    assert not x.has_uses  # a failed construction leaves no uses


def test_use_lists_follow_every_change() -> None:
    x, y, z = values(3)
    op = BINARY["add"](x, x)
    assert list(x.uses) == [(op, 0), (op, 1)]
    assert x.users == [op]
    op.set_operand(1, y)
    assert (x.has_one_use, y.has_one_use) == (True, True)
    x.replace_by(z)
    assert not x.has_uses
    assert list(op.operands) == [z, y]
    with pytest.raises(IRError, match="cannot be erased: its result is used by 'graph.exp'"):
        use = UNARY["exp"](op.result)
        op.erase()
    use.erase()
    op.erase()
    assert not z.has_uses
    assert not y.has_uses


def test_random_edits_keep_blocks_and_uses_consistent() -> None:
    r = random.Random(0)
    block = Block([T])
    model: list[Operation] = []
    for _ in range(600):
        step = r.random()
        if step < 0.5 or not model:
            at = r.randrange(len(model) + 1)
            available: list[Value] = [block.args[0], *(op.results[0] for op in model[:at])]
            op = BINARY["add"](r.choice(available), r.choice(available))
            block.insert_before(model[at] if at < len(model) else None, op)
            model.insert(at, op)
        elif step < 0.8:
            op = r.choice(model)
            op.replace_by(op.operands[0])
            model.remove(op)
        else:
            op = model.pop()
            if op.results[0].has_uses:
                model.append(op)
            else:
                op.detach()
                op.drop_all()
        assert list(block.ops) == model
        assert block.last is (model[-1] if model else None)
        assert len(block) == len(model)
    for op in model:
        for k, v in enumerate(op.operands):
            assert (op, k) in list(v.uses)
        assert all(user.parent is block for user in op.results[0].users)


def test_inserting_an_operation_where_it_stands() -> None:
    block = Block([T])
    a, b = (block.append(UNARY["neg"](block.args[0])) for _ in range(2))
    block.insert_before(a, a)
    block.insert_after(b, b)
    block.insert_after(a, a)
    assert list(block.ops) == [a, b]


def test_removing_while_iterating() -> None:
    block = Block([T])
    for _ in range(5):
        block.append(UNARY["neg"](block.args[0]))
    seen = 0
    for op in block.ops:
        op.erase()
        seen += 1
    assert seen == 5
    assert block.first is None


@pytest.mark.parametrize("level", ["graph", "tensor", "loop"])
def test_clones_are_equal_and_independent(level: str) -> None:
    module = random_module(level, 3)
    copy = module.clone()
    assert modules_equal(module, copy)
    ours = set(module.walk())
    for op in copy.walk():
        assert op not in ours
        for v in op.operands:
            assert v.defining_op is None or v.defining_op not in ours
    before = str(module)
    for op in list(copy.walk())[::-1]:
        if op is not copy and not any(r.has_uses for r in op.results):
            op.erase()
    assert str(module) == before


def test_walk_is_pre_order_and_parents_are_known() -> None:
    module = random_module("loop", 1)
    seen: set[Operation] = set()
    for op in module.walk():
        assert op.parent_op is None or op.parent_op in seen
        seen.add(op)


def test_module_is_a_symbol_table() -> None:
    module = random_module("graph", 0)
    assert isinstance(module.symbol("main"), func.Func)
    assert module.functions(func.Func) == [module.symbol("main")]
    with pytest.raises(KeyError, match="no function or kernel 'f'"):
        module.symbol("f")


def test_builder_places_and_locations() -> None:
    block = Block([T])
    here = Location("here")
    b = Builder(block, location=here)
    first = b(UNARY["neg"](block.args[0]))
    last = b(UNARY["exp"](first))
    with b.at(Location("inner")):
        b(UNARY["tanh"](last))
    Builder.before(last.defining_op)(UNARY["abs"](first))
    Builder.after(last.defining_op)(UNARY["sqrt"](last))
    assert [op.name.partition(".")[2] for op in block.ops] == ["neg", "abs", "exp", "sqrt", "tanh"]
    assert [str(op.location) for op in block.ops] == ["here", "here", "here", "here", "inner"]
    with pytest.raises(IRError, match="stands in no block"):
        Builder.before(UNARY["neg"](first))


def test_operand_groups_after_setting_operands() -> None:
    a, b, c = values(3)
    op = user_ops.Fuse(a, (b,), c, axis=0)
    op.set_operands([c, a, b], (1, 2, 0))
    assert (op.x, op.others, op.scale) == (c, (a, b), None)


def test_block_arguments_can_be_erased_when_unused() -> None:
    block = Block([T, T, T])
    a, b, c = block.args
    UNARY["neg"](c)
    block.erase_arg(a)
    assert [x.index for x in block.args] == [0, 1]
    with pytest.raises(IRError, match="used block argument"):
        block.erase_arg(c)
    assert block.args == [b, c]


def test_results_by_number() -> None:
    op = func.Return(())
    with pytest.raises(IRError, match="has 0 results, not one"):
        _ = op.result


def test_types_are_interned_and_survive_pickling() -> None:
    n = symbol("n", 1, 8)
    for t in (T, TensorType(bf16, (n, 4), (1, 0)), BufferType(f32, (n + 1,), "local"), token, f32, boolean):
        assert pickle.loads(pickle.dumps(t)) is t
    assert TensorType(f32, [2, 3]) is T
    assert TensorType(f32, (2, 3), (0, 1)) is T
    assert TensorType(f32, (2, 3), (1, 0)) is not T
    assert TensorType(f32, (n,)) is not TensorType(f32, (symbol("n", 1, 9),))
    with pytest.raises(ValueError, match="not a permutation"):
        TensorType(f32, (2, 3), (0, 0))


def test_dtypes() -> None:
    assert DType.named("float32") is f32
    assert DType.of(np.zeros(1, bool)) is boolean
    assert DType.of(bf16.numpy) is bf16
    assert i64.numpy == np.int64
    with pytest.raises(ValueError, match="unknown dtype 'complex64'; known: i1"):
        DType.of(np.complex64)


def test_constants_compare_by_content() -> None:
    a = np.arange(6, dtype=np.float32)
    assert Constant(a, "x") == Constant(a.copy(), "y")
    assert Constant(a) != Constant(a.astype(np.float64))
    assert Constant(a) != Constant(a.reshape(2, 3))
    assert Constant(a).digest() == Constant(a[::-1][::-1]).digest()
    assert Constant(np.broadcast_to(np.float32(1), (500, 500))).is_splat
    assert not Constant(a).is_splat
    assert not Constant(np.zeros((0,), np.float32)).is_splat
    assert Constant(a).array is a  # the array is not copied


def test_locations() -> None:
    a, b = Location("a"), Location("b", "f.py", 2)
    assert str(fuse_locations(UNKNOWN, a, b)) == "a"
    assert fuse_locations(a, b).fused == (b,)
    assert fuse_locations(fuse_locations(a, b), b, a) == fuse_locations(a, b)
    assert fuse_locations() is UNKNOWN
    assert str(b) == "b (f.py:2)"
    assert str(UNKNOWN) == "unknown place"


def test_errors_print_the_operation_and_the_place() -> None:
    error = IRError("is wrong", func.Return((), location=Location("layer.1")))
    assert str(error) == "'func.return': is wrong (at layer.1)"
    assert error.op is not None


def test_an_empty_module_prints() -> None:
    assert str(Module()) == "builtin.module {\n}"
    assert Attr is Any
