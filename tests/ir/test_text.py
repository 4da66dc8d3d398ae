"""Printing and parsing: round trips at every level in both forms, other readers of the generic form, and
errors with line and column.
"""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.dialects import func, graph, loop
from tilewright.dialects.scalar import cast_array
from tilewright.ir.builder import Builder
from tilewright.ir.core import (
    Attr,
    Block,
    Constant,
    Effect,
    IRError,
    Module,
    Operation,
    Region,
    Value,
    operation,
)
from tilewright.ir.equality import first_difference, modules_equal
from tilewright.ir.location import Location
from tilewright.ir.parser import ParseError, parse, parse_op
from tilewright.ir.printer import print_op, resources_of
from tilewright.ir.symbolic import smin, symbol
from tilewright.ir.types import BufferType, DType, TensorType, Type, bf16, boolean, f32, i8, i64, token

from .random_modules import random_graph, random_module

FORMS = pytest.mark.parametrize("generic", [False, True], ids=["pretty", "generic"])
LEVELS = pytest.mark.parametrize("level", ["graph", "tensor", "loop"])


@operation
class Holder(Operation):
    """An operation that has any attribute value and binds any symbols."""

    name = "texttest.holder"
    effects = Effect.CONTROL
    num_regions = 1
    binds = ("axes",)
    axes: Attr = ()
    value: Attr = None

    def infer_types(self) -> tuple[Type, ...]:
        return ()


def module_of(*ops: Operation) -> Module:
    module = Module()
    for op in ops:
        module.body.append(op)
    return module


def round_trip(module: Module, generic: bool) -> Module:
    text = print_op(module, generic=generic, locations=True, resources=True)
    again = parse(text)
    assert first_difference(module, again, locations=True) is None, text
    assert print_op(again, generic=generic, locations=True, resources=True) == text
    return again


@FORMS
@LEVELS
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_random_modules_come_back_equal(level: str, generic: bool, seed: int) -> None:
    round_trip(random_module(level, seed), generic)


@FORMS
@pytest.mark.parametrize("seed", range(4))
def test_host_programs_and_scheduled_kernels_come_back_equal(seed: int, generic: bool) -> None:
    from tilewright.lowering.pipeline import lower
    from tilewright.targets.registry import resolve

    lowered = lower(random_graph(seed), resolve("cpu:x86-64-v3").lowering, lambda step, module: step(module))
    round_trip(lowered.module, generic)


@LEVELS
def test_both_forms_read_to_the_same_module(level: str) -> None:
    module = random_module(level, 5)
    constants = resources_of(module)
    pretty, generic = (parse(print_op(module, generic=g), constants) for g in (False, True))
    assert modules_equal(pretty, generic)


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(2**63, 2**64 - 1),
        st.floats(),
        st.text(max_size=12),
        st.sampled_from(
            [f32, i8, boolean, token, TensorType(bf16, (3, 4), (1, 0)), BufferType(f32, (), "local")]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    max_leaves=6,
)


@FORMS
@settings(max_examples=300, deadline=None)
@given(value=values)
def test_attribute_values_come_back_exactly(value: Any, generic: bool) -> None:
    module = module_of(Holder(value=value))
    again = parse(print_op(module, generic=generic)).body.first
    assert again is not None
    assert modules_equal(module.body.first, again), print_op(module, generic=generic)  # type: ignore[arg-type]


@FORMS
@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        "float64",
        "float16",
        "int8",
        "uint64",
        "bool",
        "float8_e4m3fn",
        "float8_e8m0fnu",
        "float4_e2m1fn",
        "int4",
        "uint2",
    ],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0, 3), (40, 2)])
def test_constants_come_back_bit_for_bit(dtype: str, shape: tuple[int, ...], generic: bool) -> None:
    array = cast_array(np.random.default_rng(0).standard_normal(shape) * 100, DType.named(dtype))
    again = parse(
        print_op(module_of(Holder(value=Constant(array, "a.b-c"))), generic=generic, resources=True)
    )
    found = again.body.first.attributes["value"]  # type: ignore[union-attr]
    assert found.array.dtype == array.dtype
    assert found.array.shape == shape
    assert found.array.tobytes() == array.tobytes()
    assert found.name == "a.b-c"


@FORMS
def test_special_floats_and_bfloat16_in_constants(generic: bool) -> None:
    array = np.array([math.inf, -math.inf, math.nan, -0.0, 1e-45, 0.1, 3.4028235e38], np.float32)
    for x in (array, array[:-1].astype(bf16.numpy), array[:-1].astype(np.float16)):
        again = parse(print_op(module_of(Holder(value=Constant(x))), generic=generic))
        assert again.body.first.attributes["value"].array.tobytes() == x.tobytes()  # type: ignore[union-attr]


def test_a_large_splat_stays_one_element() -> None:
    module = module_of(Holder(value=Constant(np.broadcast_to(np.float32(2), (1000, 1000)))))
    text = print_op(module)
    assert "dense<2.0> : tensor<1000x1000xf32>" in text
    found = parse(text).body.first.attributes["value"]  # type: ignore[union-attr]
    assert found.array.strides == (0, 0)


def test_large_constants_go_by_reference() -> None:
    module = random_graph(3, 30)
    constants = resources_of(module)
    assert constants
    text = print_op(module)
    again = parse(text, constants)
    kept = [op.attributes["value"] for op in again.walk() if isinstance(op, graph.Constant)]
    assert any(any(c is k for k in kept) for c in constants.values())
    assert print_op(again) == text
    key = next(iter(constants))
    with pytest.raises(
        ParseError, match=rf"constant '{key}' are not in this text: print with resources=True"
    ):
        parse(text)


def test_the_text_does_not_depend_on_what_was_built_before() -> None:
    # The text is part of the key under which compiled models are cached.
    assert print_op(random_graph(7, 30)) == print_op(random_graph(7, 30))


@FORMS
def test_symbols_keep_bounds_and_identity(generic: bool) -> None:
    n = symbol("n", 1, 512)
    seq = symbol("seq", 0, None, multiple_of=8)
    inner = symbol("k", 0, n - 1)
    any_value = symbol("v0", None, None)
    f = func.Func(sym_name="f", arg_names=("a", "b"))
    f.body.add_arg(TensorType(f32, (n * seq + 1, smin(seq, 32), 4)), "a")
    f.body.add_arg(TensorType(f32, (n // 2, 2), (1, 0)), "b")
    f.body.append(func.Return(()))
    again = round_trip(module_of(f, Holder(value=(inner + any_value, n % 3, -n, 7))), generic)
    args = again.symbol("f").body.args
    assert args[0].type is f.body.args[0].type
    assert args[1].type is f.body.args[1].type


@FORMS
def test_symbols_of_one_name_are_distinguished(generic: bool) -> None:
    n8, n16 = symbol("n", 1, 8), symbol("n", 1, 16)
    i_outer, i_inner, stale = symbol("i", 0, n8 - 1), symbol("i", 0, 3), symbol("i", 0, 99)
    deep = Holder(axes=(i_inner,), value=(i_inner, i_outer * 2, stale, n16))
    around = Holder(axes=(i_outer,), value=(i_outer + n8, BufferType(f32, (i_outer, stale), "local")))
    around.body.append(deep)
    again = round_trip(module_of(around), generic)
    inside = again.body.first.body.first  # type: ignore[union-attr]
    assert inside is not None
    assert inside.attributes["value"] == (i_inner, i_outer * 2, stale, n16)
    assert inside.attributes["axes"] == (i_inner,)


@FORMS
def test_symbols_called_like_types(generic: bool) -> None:
    # Index symbols are numbered, and one of them, `i8`, has the name of a type.
    i8_symbol = symbol("i8", 0, 3)
    op = Holder(axes=(symbol("i1", 0, 1), i8_symbol), value=(i8_symbol, i8, i8_symbol + 1, (f32, boolean)))
    again = round_trip(module_of(op), generic)
    found = again.body.first.attributes["value"]  # type: ignore[union-attr]
    assert found[0] is i8_symbol
    assert found[1] is i8


@FORMS
def test_names_are_kept_and_made_unique(generic: bool) -> None:
    f = func.Func(sym_name="main", arg_names=("a", "b", "c"))
    for hint in ("x", "x", "3 x/y"):
        f.body.add_arg(TensorType(f32, (2,)), hint)
    f.body.append(func.Return(f.body.args))
    text = print_op(module_of(f), generic=generic)
    assert "%x: " in text
    assert "%x_1: " in text
    assert "%_3_x_y: " in text
    again = parse(text)
    assert [a.hint for a in again.symbol("main").body.args] == ["x", "x_1", "_3_x_y"]


@FORMS
def test_blocks_and_locations(generic: bool) -> None:
    op = Holder(location=Location("a/b", "dir/m.py", 12, (Location("c"), Location(file="d.py", line=1))))
    op.regions[0] = Region((Block((f32,), ("a",)), Block((i64,), ("b",))))
    op.regions[0].parent = op
    round_trip(module_of(op), generic)


def test_pretty_is_for_people() -> None:
    n = symbol("batch", 1, 8)
    f = func.Func(sym_name="main", arg_names=("x",), result_names=("y",))
    x = f.body.add_arg(TensorType(f32, (n, 4)), "x")
    b = Builder(f.body)
    y = b(graph.Softmax(x, axis=-1))
    y.hint = "y"
    b.insert(func.Return([y]))
    assert (
        print_op(module_of(f))
        == """\
builtin.module {
  tw.symbols batch in 1..8
  func.func @main {arg_names = ["x"], result_names = ["y"]} (%x: tensor<?x4xf32, "batch, 4">) {
    %y = graph.softmax %x : tensor<?x4xf32, "batch, 4">
    func.return %y
  }
}"""
    )


def test_a_loop_reads_as_a_loop() -> None:
    op = loop.For((), iv=symbol("i", 0, symbol("n", 1, 8) - 1), kind="parallel")
    assert 'loop.for i in 0..n - 1 {kind = "parallel"} {' in print_op(module_of(op))


def test_one_operation_alone() -> None:
    kernel = random_module("loop", 4).body.first
    assert kernel is not None
    assert modules_equal(parse_op(print_op(kernel)), kernel)
    with pytest.raises(ParseError, match=r"expected a module, found 'loop.kernel' \(use parse_op"):
        parse(print_op(kernel))


def test_repr_of_a_value_s_operation_and_of_a_broken_one() -> None:
    module = random_graph(1)
    op = next(op for op in module.walk() if op.results and op.operands)
    assert "tw.symbols" not in repr(op)
    assert repr(op).startswith("%")
    broken = Holder(value=object())
    assert repr(broken) == "<texttest.holder>"
    with pytest.raises(IRError, match=r"'texttest.holder': attribute 'value': .* is not an attribute value"):
        print_op(broken)


def test_xdsl_reads_the_generic_form() -> None:
    from xdsl.context import Context
    from xdsl.dialects import get_all_dialects
    from xdsl.parser import Parser

    for level in ("graph", "tensor", "loop"):
        for seed in range(4):
            context = Context(allow_unregistered=True)
            for name, factory in get_all_dialects().items():
                context.register_dialect(name, factory)
            module = random_module(level, seed)
            text = print_op(module, generic=True, resources=True)
            foreign = Parser(context, text).parse_module()
            foreign.verify()
            ours = sum(1 for _ in module.walk())
            declarations = text.count('"tw.symbols"')
            assert sum(1 for _ in foreign.walk()) == ours + declarations


def test_text_printed_by_xdsl_is_read() -> None:
    import io

    from xdsl.context import Context
    from xdsl.dialects.builtin import Builtin
    from xdsl.parser import Parser
    from xdsl.printer import Printer

    context = Context(allow_unregistered=True)
    context.load_dialect(Builtin)
    module = random_module("loop", 2)
    stream = io.StringIO()
    Printer(stream, print_generic_format=True).print_op(
        Parser(context, print_op(module, generic=True)).parse_module()
    )
    assert modules_equal(parse(stream.getvalue()), module)


GOOD = """\
builtin.module {
  // A comment.
  tw.symbols n in 1..8
  func.func @main {arg_names = ["x"]} (%x: tensor<?x4xf32, "n, 4">) {
    %y = graph.softmax %x {axis = -1} : tensor<?x4xf32, "n, 4">
    func.return %y
  }
}
"""


def test_good_text() -> None:
    assert parse(GOOD).symbol("main").body.first.attributes["axis"] == -1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "message"),
    [
        ("%x {axis", "%z {axis", 5, 24, "unknown value %z"),
        (
            "graph.softmax",
            "graph.sofmax",
            5,
            10,
            "unknown operation 'graph.sofmax'; operations of dialect 'graph': graph.abs",
        ),
        ("graph.softmax", "grph.softmax", 5, 10, "no dialect 'grph' is known"),
        ("graph.softmax", "softmax", 5, 10, "an operation's name is 'dialect.operation'"),
        ("axis = -1", "axs = -1", 5, 5, "'graph.softmax' has no attribute 'axs'; known: axis"),
        ("axis = -1", "axis = ", 5, 35, "expected an attribute's value, found '}'"),
        ("axis = -1", "axis = m + 1", 5, 35, r"unknown symbol 'm' \(known: n\)"),
        ("axis = -1}", "axis = -1", 5, 38, "expected '}' or ',' after an attribute, found ':'"),
        ("%y = graph", "%x = graph", 5, 5, "%x is already defined"),
        ("%y = graph", "%y, %w = graph", 5, 5, "has 1 result types for 2 result names"),
        (
            '%x {axis = -1} : tensor<?x4xf32, "n, 4">',
            "%x : tensor<?x4xf32>",
            5,
            29,
            "does not say what its dynamic dimensions are",
        ),
        (
            '%x {axis = -1} : tensor<?x4xf32, "n, 4">',
            '%x : tensor<?x4xf32, "k, 4">',
            5,
            29,
            "unknown symbol 'k'",
        ),
        ('%x {axis = -1} : tensor<?x4xf32, "n, 4">', '%x : tensor<?x5xf32, "n, 4">', 5, 29, "differ"),
        ("%x {axis = -1}", "%x, %x {axis = -1}", 5, 24, r"takes 1 operands \(x\), found 2"),
        ("n in 1..8", "n in 1.8", 3, 19, "expected an integer, found '1.8'"),
        ("n in 1..8", "for in 1..8", 3, 14, "is not a name for a symbolic dimension"),
        ("    func.return %y\n  }\n}", "    func.return %y\n", 6, 19, "found the end of the text"),
        ('@main {arg_names = ["x"]}', "", 4, 3, "'func.func' needs attribute 'sym_name'"),
    ],
)
def test_errors_name_line_and_column(old: str, new: str, line: int, column: int, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ParseError, match=message) as caught:
        parse(GOOD.replace(old, new))
    assert (caught.value.line, caught.value.column) == (line, column), str(caught.value)
    assert str(caught.value).startswith(f"line {line}, column {column}: ")


def test_errors_in_the_generic_form() -> None:
    text = print_op(parse(GOOD), generic=True)
    with pytest.raises(ParseError, match=r'operand 0 has type tensor<\?x4xf32, "n, 4">, here f32 is said'):
        parse(
            text.replace(
                '(%x) <{axis = -1 : i64}> : (tensor<?x4xf32, "n, 4">)', "(%x) <{axis = -1 : i64}> : (f32)"
            )
        )
    with pytest.raises(ParseError, match="expected '{' before a region, found 'tensor"):
        parse(text.replace("<{axis = -1 : i64}> :", "<{axis = -1 : i64}>"))


def test_dialects_are_imported_when_they_are_met() -> None:
    code = (
        "from tilewright.ir.parser import parse\n"
        "import sys\n"
        "assert not any(m.startswith('tilewright.dialects') for m in sys.modules)\n"
        "print(parse(sys.stdin.read()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=GOOD, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "graph.softmax" in done.stdout


def test_equality_sees_every_difference() -> None:
    def build(
        axis: Any = -1, swap: bool = False, hint: str = "x", dtype: Any = f32, name: str = "main"
    ) -> Module:
        f = func.Func(sym_name=name, arg_names=("x", "y"))
        x, y = (f.body.add_arg(TensorType(dtype, (2, 2)), hint) for _ in range(2))
        b = Builder(f.body)
        z: Value = b(graph.Matmul(*((y, x) if swap else (x, y))))
        softmax = graph.Softmax(z, axis=-1)
        softmax.attributes["axis"] = axis  # -1.0 as well, which the operator would refuse
        b.insert(func.Return([b(softmax)]))
        return module_of(f)

    base = build()
    assert modules_equal(base, build(hint="other"))
    for other, what in [
        (build(axis=1), "attribute 'axis' is -1 against 1"),
        (build(axis=-1.0), "attribute 'axis' is -1 against -1.0"),
        (build(swap=True), "operand 0 differs"),
        (build(dtype=bf16), "block arguments"),
        (build(name="f"), "attribute 'sym_name'"),
    ]:
        difference = first_difference(base, other)
        assert difference is not None
        assert what in difference
