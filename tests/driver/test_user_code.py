"""The cache's keys include the user's code: a model is compiled again if an operator, importer, pass or
target of the user changes.
"""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.caches import new_cache

import tilewright as tw
from tilewright.dialects import func, graph
from tilewright.driver import user_code
from tilewright.driver.foreign_code import foreign_code
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module, registered_operations
from tilewright.ir.types import TensorType, f32
from tilewright.passes import register_pass, unregister_pass

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)

OPERATOR = """
import {name}_helper
from tilewright.dialects.graph import GraphOp
from tilewright.ir.core import Operand, operation
from tilewright.ir.types import TensorType

@operation
class Scaled(GraphOp):
    name = "{name}.scaled"
    x: Operand

    def infer_types(self):
        return (self.x.type,)

    def reference(self, x):
        return x * {name}_helper.factor()

    def lower(self, t, x):
        return t.compute(x.shape, lambda *i: x[i] * {name}_helper.factor())
"""
PASS = """
import pass_a_helper
from tilewright.dialects import graph
from tilewright.ir.builder import Builder
from tilewright.passes import register_pass

def replace_relu(module):
    for op in [op for op in module.walk() if isinstance(op, graph.Relu)]:
        op.replace_by(Builder.before(op)(getattr(graph, pass_a_helper.OPERATOR)(op.x)))

register_pass(replace_relu, level="graph", before="cse")
"""
LATE = {"the module": "    import pass_a_helper\n", "a name": "    from pass_a_helper import OPERATOR\n"}
"""Imports in the function instead."""
IMPORTER = """
from tilewright.dialects import graph
from tilewright.frontends.onnx.registry import importer

@importer("Odd", domain="{name}")
def odd(node):
    return node.emit(graph.{operator}(node.value(0)))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    new_cache(monkeypatch, tmp_path / "cache")
    monkeypatch.syspath_prepend(tmp_path)
    # bytecode is matched by the file's time, which may not change between quick edits
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def read(folder: Path, name: str, text: str) -> Any:
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    known = sys.modules.get(name)
    return importlib.import_module(name) if known is None else importlib.reload(known)


def one_operator(op: Any) -> Module:
    module = Module()
    main = func.Func(sym_name="main", arg_names=("x",), result_names=("y",))
    module.body.append(main)
    b = Builder(main.body)
    b.insert(func.Return([b(op(main.body.add_arg(TensorType(f32, X.shape))))]))
    return module


def compiled(model: Any, cached: bool) -> np.ndarray[Any, Any]:
    library = tw.compile(model)
    assert library.report.cached == cached
    return np.asarray(library(X))


def test_an_operator_whose_helper_changes(folder: Path) -> None:
    helper = "def factor():\n    return CONSTANT\nCONSTANT = {}\n"
    read(folder, "ops_a_helper", helper.format(3.0))
    module = one_operator(read(folder, "ops_a", OPERATOR.format(name="ops_a")).Scaled)
    try:
        np.testing.assert_allclose(compiled(module, False), X * 3)
        np.testing.assert_allclose(compiled(module, True), X * 3)
        read(folder, "ops_a_helper", helper.format(5.0))
        np.testing.assert_allclose(compiled(module, False), X * 5)
        read(folder, "ops_a_helper", helper.format(3.0) + "def unrelated(): pass\n")
        np.testing.assert_allclose(compiled(module, True), X * 3)
    finally:
        del registered_operations()["ops_a.scaled"]


def test_an_importer_that_changes(folder: Path) -> None:
    import onnx
    from onnx import helper as h

    from tilewright.frontends.onnx.registry import importers

    shape = [h.make_tensor_value_info(n, onnx.TensorProto.FLOAT, X.shape) for n in "xy"]
    node = h.make_node("Odd", ["x"], ["y"], domain="ops_b")
    opsets = [h.make_opsetid("", 17), h.make_opsetid("ops_b", 1)]
    model = h.make_model(h.make_graph([node], "g", shape[:1], shape[1:]), opset_imports=opsets, ir_version=9)
    (folder / "models").mkdir()
    path = folder / "models" / "odd.onnx"
    onnx.save(model, path)
    try:
        read(folder, "ops_b", IMPORTER.format(name="ops_b", operator="Relu"))
        for cached in (False, True):
            np.testing.assert_array_equal(compiled(path, cached), np.maximum(X, 0))
        read(folder, "ops_b", IMPORTER.format(name="ops_b", operator="Neg"))
        np.testing.assert_array_equal(compiled(path, False), -X)
    finally:
        del importers()["ops_b", "Odd"]


def test_a_pass_that_changes() -> None:
    def passing(operator: str) -> Any:
        def replace_relu(module: Module) -> None:
            for op in [op for op in module.walk() if isinstance(op, graph.Relu)]:
                op.replace_by(Builder.before(op)(getattr(graph, operator)(op.x)))

        return replace_relu

    module = one_operator(graph.Relu)
    np.testing.assert_array_equal(compiled(module, False), np.maximum(X, 0))
    try:
        for operator, expected in (("Neg", -X), ("Abs", np.abs(X))):
            register_pass(passing(operator), level="graph", before="cse")
            for cached in (False, True):
                np.testing.assert_array_equal(compiled(module, cached), expected)
        # A pass's position and its levels of optimization are also part of the key.
        register_pass(passing("Abs"), level="graph", before="simplify")
        assert not tw.compile(module).report.cached and tw.compile(module).report.cached
        register_pass(passing("Abs"), level="graph", before="simplify", min_opt=1)
        assert not tw.compile(module).report.cached
    finally:
        unregister_pass("replace-relu")
    np.testing.assert_array_equal(compiled(module, True), np.maximum(X, 0))


@pytest.mark.parametrize("late", ["", *LATE.values()], ids=["", *LATE])
def test_a_pass_of_a_file_whose_helper_changes(folder: Path, late: str) -> None:
    text = PASS
    if late:
        text = text.replace("import pass_a_helper\n", "").replace("(module):\n", f"(module):\n{late}")
    text = text.replace("pass_a_helper.OPERATOR", "OPERATOR") if "from" in late else text
    module = one_operator(graph.Relu)
    try:
        for operator, expected in (("Neg", -X), ("Abs", np.abs(X)), ("Neg", -X)):
            read(folder, "pass_a_helper", f"OPERATOR = {operator!r}\n")
            read(folder, "pass_a", text)
            np.testing.assert_array_equal(np.asarray(tw.compile(module)(X)), expected)
        np.testing.assert_array_equal(compiled(module, True), expected)
    finally:
        unregister_pass("replace-relu")


def test_a_target_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.targets import registry
    from tilewright.targets.cpu.isa import isa_named
    from tilewright.targets.cpu.target import CpuTarget

    def a_target(llvm_opt_level: int) -> Any:
        class Mine(CpuTarget):
            def build(
                self, lowered: Any, plan: Any, metadata: Any, progress: Any, threads: Any, _: int = 2
            ) -> Any:
                return super().build(lowered, plan, metadata, progress, threads, llvm_opt_level)

        return Mine("cpu", isa_named("cpu"), True)

    module = one_operator(graph.Relu)
    for llvm_opt_level, cached in ((1, False), (1, True), (2, False), (1, True)):
        chosen = a_target(llvm_opt_level)
        monkeypatch.setattr(registry, "resolve", lambda name, chosen=chosen: chosen)
        np.testing.assert_array_equal(compiled(module, cached), np.maximum(X, 0))


def test_compilations_that_use_unreadable_objects_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.frontends.onnx.registry import importers

    lock = threading.Lock()
    monkeypatch.setitem(importers(), ("ops_c", "Odd"), lambda node: lock.locked())
    library = tw.compile(one_operator(graph.Relu))
    again = tw.compile(one_operator(graph.Relu))
    assert not library.report.cached and not again.report.cached
    assert "'lock' in" in again.report.uncached and "whose contents cannot be determined" in str(again.report)


def test_fingerprints() -> None:
    """Fingerprints of functions are equal if their code and everything it reads are equal, even in separate
    objects, and differ otherwise.
    """

    def importer(table: Any, factor: float = 2.0) -> Any:
        def function(node: Any, *, rest: tuple[int, ...] = (1, 2)) -> Any:
            return [table[k] for k in rest], factor, np.float32

        return function

    def contents(value: Any) -> str:
        return user_code._Walk({__name__.partition(".")[0]}).text(value, "value")

    base = importer({1: "a", 2: "b"})
    assert contents(base) == contents(importer({1: "a", 2: "b"}))
    others = [
        importer({1: "a", 2: "c"}),
        importer({1: "a", 2: "b"}, 3.0),
        importer({1: np.arange(3)}),
        importer([1, 2]),
    ]
    assert len({contents(x) for x in (base, *others)}) == len(others) + 1
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    assert contents(importer(cyclic)) != contents(base)
    with pytest.raises(user_code.UnknownContents, match="generator"):
        contents(importer(k for k in range(3)))


@dataclass
class Description:
    function: Any


def test_every_search_sees_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In modules, classes and tables, also where the table or the description stays the same object."""
    module: Any = ModuleType("tilewright.passes.made_by_a_test")
    own = type("Own", (), {"__module__": module.__name__, "method": len})
    description = Description(len)
    vars(module).update(table={"a": len}, items=[len, 1], Own=own, plain={"a": 1}, one=description, last=len)
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def found() -> list[str]:
        return [place for place, value in foreign_code() if value in (mine, description)]

    def mine() -> None: ...

    def rename_last() -> None:
        module.renamed = vars(module).pop("last")

    assert found() == found() == []
    for change, expected in (
        (lambda: module.table.update(a=mine), ["table['a']"]),
        (lambda: module.table.update({"b": module.table.pop("a")}), ["table['b']"]),
        (module.table.clear, []),
        (lambda: module.items.append(mine), ["items[2]"]),
        (lambda: module.items.pop(0), ["items[1]"]),
        (module.items.clear, []),
        (lambda: setattr(own, "method", mine), ["Own.method"]),
        (lambda: setattr(own, "method", len), []),
        (lambda: module.plain.update(a=mine), ["plain['a']"]),
        (lambda: module.plain.update(a=1), []),
        (lambda: setattr(description, "function", mine), ["one"]),
        (lambda: setattr(description, "function", len), []),
        (lambda: setattr(module, "last", mine), ["last"]),
        (rename_last, ["renamed"]),
        (lambda: setattr(module, "renamed", functools.partial(mine)), []),
    ):
        change()
        assert found() == found() == expected, expected
    assert [place for place, value in foreign_code() if isinstance(value, functools.partial)] == ["renamed"]


class Callable:
    """An object in place of a function."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


@pytest.mark.parametrize(
    "around",
    [property, functools.cached_property, staticmethod, classmethod, functools.partial,
     functools.partialmethod, functools.cache, Callable],
)  # fmt: skip
def test_functions_inside_of_other_objects(around: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a method of this package's; equal code counts as equal, other code does not."""
    from tilewright.targets.llvm.isa import Isa

    def made(number: int) -> Any:
        def function(*_: object) -> int:
            return number

        return around(function)

    found = []
    for number in (1, 2, 1):
        monkeypatch.setattr(Isa, "narrow", made(number))
        found.append(user_code.fingerprint())
    assert found[0] == found[2] != found[1] and all(found)


def test_nothing_of_this_package_counts_as_the_users() -> None:
    """Importing and using the package alone gives an empty fingerprint of user code: the version of the
    package is in the keys already.
    """
    program = (
        "import tilewright as tw, numpy as np\n"
        "from tilewright.driver import user_code\n"
        "from tilewright.driver.foreign_code import foreign_code\n"
        "import tilewright.frontends.onnx, tilewright.frontends.torch, tilewright.frontends.stablehlo, "
        "tilewright.nn, tilewright.numpy\n"
        "tw.compile(lambda x: x + 1, (np.zeros(3, np.float32),), cache=False)\n"
        "print(list(foreign_code()), repr(user_code.fingerprint()))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[] ''"
