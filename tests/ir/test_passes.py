"""Pipelines of passes: order, names, timing, dumps, disabled passes, and checks that find a wrong pass."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.dialects import func, graph
from tilewright.dialects.graph.elementwise import BINARY, UNARY
from tilewright.errors import InternalError
from tilewright.ir import passes
from tilewright.ir.builder import Builder
from tilewright.ir.cleanup import cse, dce
from tilewright.ir.core import Module
from tilewright.ir.parser import parse
from tilewright.ir.passes import (
    Checker,
    CheckOptions,
    Pipeline,
    pass_name,
    random_inputs,
    run_function,
    timing_report,
)
from tilewright.ir.symbolic import smax, symbol
from tilewright.ir.types import TensorType, boolean, f32, i64
from tilewright.passes.tensor.lower_to_tensor import lower_to_tensor

N = symbol("n", 2, 100)


def model() -> Module:
    """A function with the results tanh(x) + exp(x) and x, and with a second exp(x) that has no use."""
    module = Module()
    f = func.Func(sym_name="main", arg_names=("x",), result_names=("y", "z"))
    module.body.append(f)
    x = f.body.add_arg(TensorType(f32, (N, 4)), "x")
    b = Builder(f.body)
    y = b(BINARY["add"](b(UNARY["tanh"](x)), b(UNARY["exp"](x))))
    b(UNARY["exp"](x))
    b.insert(func.Return([y, x]))
    return module


def first(module: Module, name: str) -> Any:
    return next(op for op in module.walk() if op.name == name)


def drop_tanh(module: Module) -> None:
    first(module, "graph.tanh").replace_by(first(module, "graph.tanh").x)


def break_types(module: Module) -> None:
    first(module, "graph.tanh").results[0].type = TensorType(f32, (1,))


def test_passes_run_in_order_and_print_as_a_list() -> None:
    seen: list[str] = []

    def first_pass(module: Module) -> None:
        seen.append("first")

    def second_pass(module: Module) -> int:
        seen.append("second")
        return 3

    pipeline = Pipeline([first_pass, Pipeline([second_pass, functools.partial(dce)], "inner"), second_pass])
    module = model()
    assert pipeline.run(module) is module
    assert seen == ["first", "second", "second"]
    assert str(pipeline) == "first-pass\ninner\n  second-pass\n  dce\nsecond-pass"
    assert pipeline.names() == ["first-pass", "inner/second-pass", "inner/dce", "second-pass"]
    assert pass_name(functools.partial(lower_to_tensor)) == "lower-to-tensor"


def test_disabled_passes_are_left_out() -> None:
    for disabled, removed in [((), 1), (("dce",), 0), (("inner/dce",), 0), (("inner",), 0), (("other",), 1)]:
        module = model()
        before = sum(1 for _ in module.walk())
        Pipeline([Pipeline([dce], "inner")]).run(module, disabled=disabled)
        assert before - sum(1 for _ in module.walk()) == removed


def test_timing_adds_up_and_prints() -> None:
    timing: dict[str, float] = {"import": 1.0}
    pipeline = Pipeline([dce, Pipeline([cse, dce], "inner"), dce])
    pipeline.run(model(), timing=timing)
    pipeline.run(model(), timing=timing)
    assert set(timing) == {"import", "dce", "inner/cse", "inner/dce"}
    assert all(s > 0 for s in timing.values())
    lines = timing_report({"import": 1.0, "inner/cse": 2.0, "inner/dce": 1.0}).splitlines()
    assert [line.split() for line in lines] == [
        ["import", "1.0000", "s", "25.0%"],
        ["inner", "3.0000", "s", "75.0%"],
        ["cse", "2.0000", "s", "50.0%"],
        ["dce", "1.0000", "s", "25.0%"],
        ["total", "4.0000", "s", "100.0%"],
    ]
    assert lines[2].startswith("  cse")


def test_dumps_to_a_folder(tmp_path: Path) -> None:
    Pipeline([dce, lower_to_tensor]).run(model(), dump_before={"dce"}, dump_after="all", dump_to=tmp_path)
    Pipeline([cse]).run(model(), dump_after="all", dump_to=tmp_path)
    found = sorted(p.name for p in tmp_path.iterdir())
    assert found == [
        "000_before_dce.tw",
        "001_after_dce.tw",
        "002_after_lower-to-tensor.tw",
        "003_after_cse.tw",
    ]
    counts = [sum(1 for _ in parse((tmp_path / name).read_text()).walk()) for name in found]
    assert counts[0] == counts[1] + 1


def test_dumps_to_a_stream() -> None:
    stream = io.StringIO()
    Pipeline([dce, cse]).run(model(), dump_after={"cse"}, dump_to=stream)
    assert stream.getvalue().startswith("// ---- after cse\nbuiltin.module {")
    assert "after dce" not in stream.getvalue()
    parse(stream.getvalue())
    with pytest.raises(ValueError, match="need dump_to"):
        Pipeline([dce]).run(model(), dump_after="all")


def test_a_pass_that_fails_is_named() -> None:
    def fails(module: Module) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError) as caught:
        Pipeline([Pipeline([fails], "inner")]).run(model())
    assert "in pass 'inner/fails'" in caught.value.__notes__


def test_a_broken_module_is_found() -> None:
    Pipeline([break_types]).run(model())
    with pytest.raises(
        InternalError, match="pass 'break-types' produced an invalid module: 'graph.tanh': results have types"
    ):
        Pipeline([dce, break_types]).run(model(), verify_each=True)


def test_check_mode_accepts_correct_passes() -> None:
    Pipeline([cse, dce, lower_to_tensor, cse, dce]).run(model(), check=CheckOptions())


def test_a_checker_goes_on_where_another_pipeline_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each module between two passes is interpreted once, even if the passes run in several pipelines with
    one checker.
    """
    counted: list[str] = []
    monkeypatch.setattr(passes, "run_function", lambda *args: counted.append("run") or run_function(*args))
    module, options = model(), CheckOptions(draws=1)
    checker = Checker(module, options)
    for step in (cse, lower_to_tensor, dce):
        Pipeline([step]).run(module, check=checker)
    assert len(counted) == 4


def test_check_names_the_pass_and_the_output(tmp_path: Path) -> None:
    folder = tmp_path / "check"
    with pytest.raises(
        InternalError,
        match=r"pass 'drop-tanh' changes output 'y': 8 of 8 elements differ, by up to [\d.e+-]+",
    ) as caught:
        Pipeline([cse, drop_tanh, dce]).run(
            model(), check=CheckOptions(dump_to=folder, atol=1e-12, rtol=1e-12)
        )
    assert "x: float32(2, 4)" in str(caught.value)
    assert str(folder) in str(caught.value)
    before, after = (parse((folder / f"{when}_drop-tanh.tw").read_text()) for when in ("before", "after"))
    first(before, "graph.tanh")
    with pytest.raises(StopIteration):
        first(after, "graph.tanh")


def test_check_sees_changed_results() -> None:
    def returns_less(module: Module) -> None:
        end = first(module, "func.return")
        end.set_operands(end.operands[:1])

    def transposes(module: Module) -> None:
        end = first(module, "func.return")
        end.set_operand(0, Builder.before(end)(graph.Transpose(end.operands[0], permutation=(1, 0))))

    with pytest.raises(InternalError, match="'returns-less' returns 1 results instead of 2"):
        Pipeline([returns_less]).run(model(), check=CheckOptions())
    with pytest.raises(InternalError, match=r"changes output 'y' from float32\(2, 4\) to float32\(4, 2\)"):
        Pipeline([transposes]).run(model(), check=CheckOptions())


def test_an_error_at_the_lower_bound_only_is_caught() -> None:
    def wrong_for_two_rows(module: Module) -> None:
        """Add max(3 - n, 0), which is 1 for two rows and 0 for more."""
        y = first(module, "graph.add")
        b = Builder.after(y)
        error = b(graph.Cast(b(graph.Symbolic(values=(smax(3 - N, 0),))), dtype=f32))
        first(module, "func.return").set_operand(0, b(BINARY["add"](y.results[0], error)))

    with pytest.raises(InternalError, match="wrong-for-two-rows"):
        Pipeline([wrong_for_two_rows]).run(model(), check=CheckOptions(draws=1))


def test_random_inputs_keep_to_bounds_and_ranges() -> None:
    k = symbol("k", 8, 64, multiple_of=8)
    i = symbol("i", 0, N - 1)
    module = Module()
    f = func.Func(sym_name="main", arg_names=("ids", "mask", "x"))
    module.body.append(f)
    f.body.add_arg(TensorType(i64, (N, k)), "ids")
    f.body.add_arg(TensorType(boolean, (i,)), "mask")
    f.body.add_arg(TensorType(f32, (N - 2,)), "x")
    f.body.append(func.Return(()))
    draws = random_inputs(module, CheckOptions(draws=20, ranges={"ids": (5, 9)}, max_dim=20))
    shapes = {d["ids"].shape for d in draws}
    assert draws[0]["ids"].shape == (2, 8)
    assert draws[0]["mask"].shape == (0,)
    assert len(shapes) > 5
    for d in draws:
        n, width = d["ids"].shape
        assert 2 <= n <= 20
        assert width in (8, 16)
        assert len(d["mask"]) < n
        assert d["x"].shape == (n - 2,)
        assert d["ids"].min() >= 5
        assert d["ids"].max() <= 9
        assert d["mask"].dtype == bool
    assert {int(v) for d in draws for v in np.unique(d["ids"])} == {5, 6, 7, 8, 9}


def test_run_function_at_the_host_level() -> None:
    from tilewright.dialects import host
    from tilewright.ir.types import BufferType

    module = Module()
    f = func.Func(sym_name="main", arg_names=("x", "y"), result_names=("y",))
    module.body.append(f)
    x, y = (f.body.add_arg(BufferType(f32, (N, 2))) for _ in range(2))
    f.body.append(host.Copy(x, y))
    f.body.append(func.Return(()))
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    (result,) = run_function(module, "main", {"x": data})
    np.testing.assert_array_equal(result, data)
