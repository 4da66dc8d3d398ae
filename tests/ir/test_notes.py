"""Notes are declared once with a type, checked by the verifier, and copied where a pass rebuilds an
operation.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import tilewright
from tilewright.dialects import graph, host, kernels, loop, scalar, simd, tensor
from tilewright.dialects.func import Func, Return
from tilewright.ir import notes
from tilewright.ir.builder import Builder
from tilewright.ir.cleanup import cse
from tilewright.ir.core import IRError, Module, Operation, registered_operations
from tilewright.ir.types import TensorType, f32
from tilewright.ir.verifier import verify

DIALECTS = (graph, host, kernels, loop, scalar, simd, tensor)  # the imports register all operations


def module_with(key: str, value: Any) -> Module:
    module = Module()
    function = Func(sym_name="main", arg_names=("x",), result_names=("y",))
    module.body.append(function)
    x = function.body.add_arg(TensorType(f32, (2, 3)))
    b = Builder(function.body)
    op = b.insert(graph.Transpose(x, permutation=(1, 0)))
    b.insert(Return(op.results))
    op.attributes[key] = value
    return module


def test_a_declared_note_passes_the_verifier() -> None:
    verify(module_with("tw.layout_fixed", True))


def test_undeclared_notes_are_refused() -> None:
    with pytest.raises(
        IRError,
        match=r"undeclared note 'tw.layuot_fixed'; declared: .*tw.layout_fixed",
    ):
        verify(module_with("tw.layuot_fixed", True))


def test_values_of_other_types_are_refused() -> None:
    with pytest.raises(
        IRError, match=r"'graph.transpose': the note 'tw.layout_fixed' is 1, not a value of type bool"
    ):
        verify(module_with("tw.layout_fixed", 1))


def test_operations_that_a_note_is_not_for_are_refused() -> None:
    with pytest.raises(IRError, match=r"cannot carry the note 'tw.row_axes', which is for tensor.group"):
        verify(module_with("tw.row_axes", 2))


@pytest.mark.parametrize("note", notes.declared().values(), ids=lambda n: n.key)
def test_every_declaration_refuses_another_type(note: notes.Note[Any]) -> None:
    assert not note.accepts(object()) and not note.accepts(None)


def test_notes_of_a_foreign_prefix_stay_unchecked_until_one_is_declared() -> None:
    module = module_with("notetest.hint", "anything")
    verify(module)
    hint = notes.Note("notetest.hint", notes.is_int, "int", on=("graph.transpose",))
    with pytest.raises(IRError, match="the note 'notetest.hint' is 'anything', not a value of type int"):
        verify(module)
    hint.set(next(op for op in module.walk() if isinstance(op, graph.Transpose)), 3)
    verify(module)
    with pytest.raises(ValueError, match="'notetest.hint' is already declared"):
        notes.Note("notetest.hint", notes.is_int, "int", on=())
    with pytest.raises(ValueError, match="needs a prefix and a dot"):
        notes.Note("hint", notes.is_int, "int", on=())


def test_access() -> None:
    op: Operation = scalar.Constant(value=1.0, dtype=f32)
    assert (
        notes.ORIGIN.get(op) is None and notes.ORIGIN.get(op, "map") == "map" and not notes.ORIGIN.present(op)
    )
    with pytest.raises(IRError, match="carries no note 'tw.origin'"):
        notes.ORIGIN.of(op)
    notes.ORIGIN.set(op, "softmax")
    assert notes.ORIGIN.of(op) == "softmax" and dict(notes.notes_of(op)) == {"tw.origin": "softmax"}
    notes.ORIGIN.remove(op)
    notes.ORIGIN.remove(op)
    assert not notes.ORIGIN.present(op)


def test_rebuilding_keeps_what_is_declared_as_kept() -> None:
    old, new = (scalar.Constant(value=1.0, dtype=f32) for _ in range(2))
    notes.ORIGIN.set(old, "softmax")
    notes.CONCAT_AXIS.set(old, 1)
    notes.INITIALIZED.set(old, True)
    old.attributes["foreign.note"] = 1
    notes.copy(old, new, without=(notes.CONCAT_AXIS,))
    assert dict(notes.notes_of(new)) == {"tw.origin": "softmax", "foreign.note": 1}


def test_notes_do_not_tell_computations_apart() -> None:
    module = module_with("tw.layout_fixed", True)
    body = module.symbol("main").body
    first = body.first
    assert first is not None
    twin = Builder.before(first).insert(graph.Transpose(body.args[0], permutation=(1, 0)))
    body.terminator.set_operands([twin.result, first.results[0]])
    assert cse(module) == 1


def test_every_note_is_explained_and_names_real_operations() -> None:
    tree = ast.parse(inspect.getsource(notes))
    explained = {
        after.value.value
        for before, after in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(before, ast.Assign) and isinstance(before.value, ast.Call)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }
    assert len(explained) == sum(key.startswith("tw.") for key in notes.declared())
    for note in notes.declared().values():
        assert set(note.on) <= set(registered_operations()), note


def test_no_other_file_spells_a_key() -> None:
    package = Path(inspect.getfile(tilewright)).parent
    for path in package.rglob("*.py"):
        if path.name != "notes.py":
            for key in re.findall(r'"(tw\.[a-z_]+)"', path.read_text()):
                assert key not in notes.declared(), (
                    f"{path.relative_to(package)} contains {key!r}: use tilewright.ir.notes"
                )
