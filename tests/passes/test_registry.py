"""The list of passes, and passes that users register: their positions, errors, reports, check mode and entry
points.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import graph
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module
from tilewright.ir.passes import pass_name
from tilewright.ir.target_info import Gpu, TargetInfo
from tilewright.ir.types import DType, bf16
from tilewright.lowering.pipeline import tensor_passes
from tilewright.passes import PassContext, all_passes, passes_in, register_pass, registry, unregister_pass
from tilewright.passes.info import Condition
from tilewright.targets.registry import resolve

from .graph.graphs import build

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(autouse=True)
def unregistered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", [])
    yield


def first(module: Module) -> None:
    """Do nothing. Say no more."""


def second(module: Module) -> None:
    pass


def negate(module: Module) -> None:
    """Replace relu(x) by -x, which is wrong."""
    for op in [op for op in module.walk() if isinstance(op, graph.Relu)]:
        op.replace_by(Builder.before(op)(graph.Neg(op.x)))


def model() -> Module:
    return build({"x": X.shape}, lambda b, x: b(graph.Relu(x)))


def names(level: str | None = None) -> list[str]:
    return [info.name for info in all_passes(level)]  # type: ignore[arg-type]


# -- The compiler's own passes -------------------------------------------------------------------------------


def test_each_name_is_one_pass_with_a_description() -> None:
    by_name: dict[str, set[tuple[object, int, bool]]] = {}
    for info in all_passes():
        by_name.setdefault(info.name, set()).add((info.function, info.min_opt, info.required))
        assert info.name == pass_name(info.function) and info.description[:1].isupper()
        assert not info.required or info.min_opt == 0
    assert all(len(descriptions) == 1 for descriptions in by_name.values())
    levels = [info.level for info in all_passes()]
    assert levels == sorted(levels) and names() == names("graph") + names("tensor")


def test_passes_depend_on_the_target_and_the_precision() -> None:
    cpu, webgpu = resolve("cpu").lowering, resolve("webgpu").lowering
    run = {
        name: [pass_name(step) for step in tensor_passes(o)] for name, o in (("cpu", cpu), ("gpu", webgpu))
    }
    assert "pack-operands" in run["cpu"] and "pack-operands" not in run["gpu"]
    assert "expand-argsort" in run["gpu"] and "expand-argsort" not in run["cpu"]
    assert run["cpu"][-2:] == ["write-in-place", "copy-changed"] and "write-in-place" in run["gpu"]
    assert run["cpu"].count("hoist-invariants") == 2 and run["gpu"].count("hoist-invariants") == 1
    lowered = [pass_name(step) for step in tensor_passes(cpu, bf16)]
    assert set(lowered) - set(run["cpu"]) == {"lower-precision"}
    assert [info.name for info in passes_in(webgpu.context(), "tensor")] == run["gpu"]


def test_passes_of_gpus() -> None:
    """Blocks of a kernel do not wait for each other; operands of contractions are not packed."""
    own = {info.name for info in passes_in(PassContext(TargetInfo(gpu=Gpu())), "tensor")}
    plain = {info.name for info in passes_in(PassContext(), "tensor")}
    for_gpus = {"expand-argsort", "mark-contractions", "round-factors", "split-cumulative", "split-keys"}
    assert own - plain == for_gpus | {"pack-constants"}


def test_passes_of_a_context_and_a_level_of_optimization() -> None:
    fewest = [info.name for info in passes_in(PassContext(), opt=0)]
    assert "simplify" in fewest and "choose-layout" not in fewest and "recognize" not in fewest
    plain = [info.name for info in passes_in(PassContext(), opt=2)]
    assert set(fewest) < set(plain) and "choose-layout" in plain
    assert "lower-precision" not in plain and "pack-operands" not in plain


# -- Places --------------------------------------------------------------------------------------------------


def test_after_the_last_and_before_the_first_place() -> None:
    register_pass(first, level="graph", after="cse")
    register_pass(second, level="graph", before="simplify")
    order = names("graph")
    assert order[order.index("first") - 1 :][:3] == ["cse", "first", "dce"]
    assert order.index("second") + 1 == order.index("simplify")
    assert names("tensor")[0] == "lower-to-tensor"


def test_several_passes_after_one_run_in_the_order_of_registration() -> None:
    register_pass(second, level="graph", after="simplify")
    register_pass(first, level="graph", after="simplify")
    register_pass(first, level="graph", before="second", name="third")
    order = names("graph")
    place = order.index("third")
    assert order[place - 1 : place + 4] == ["simplify", "third", "second", "first", "cse"]


def test_registering_again_replaces() -> None:
    register_pass(first, level="graph", after="cse")
    register_pass(first, level="graph", before="dce", min_opt=3)
    assert names("graph").count("first") == 1
    (info,) = (info for info in all_passes() if info.name == "first")
    assert (info.min_opt, info.description) == (3, "Do nothing")
    unregister_pass("first")
    assert "first" not in names()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"level": "loop", "after": "cse"},
            "pass 'first': there is no level 'loop'; the levels are graph, tensor",
        ),
        ({"level": "graph"}, "pass 'first': give one of after= and before="),
        ({"level": "graph", "after": "cse", "before": "dce"}, "give one of after= and before="),
        (
            {"level": "graph", "after": "simplfy"},
            "no pass 'simplfy' .did you mean 'simplify'.*its passes are drop-derivative-marks, cse, ",
        ),
        (
            {"level": "tensor", "before": "hoist"},
            "'hoist' is a pass of the graph level, not of the tensor level",
        ),
        (
            {"level": "graph", "after": "cse", "name": "dce"},
            "pass 'dce' of .*first: .*cleanup.dce has this name",
        ),
        ({"level": "graph", "after": "cse", "name": "Not good"}, "cannot be called 'Not good'"),
        ({"level": "graph", "after": "cse", "min_opt": 4}, "min_opt=4; give a level of optimization, 0 to 3"),
        (
            {"level": "graph", "after": "cse", "arguments": ("isa",)},
            "no field 'isa'; its fields are info, precision, ",
        ),
    ],
)
def test_wrong_registrations(options: dict[str, object], message: str) -> None:
    with pytest.raises(tw.CompileError, match=message):
        register_pass(first, **options)  # type: ignore[arg-type]
    assert "first" not in names()


def test_names_are_taken_once() -> None:
    register_pass(first, level="graph", after="cse")
    with pytest.raises(tw.CompileError, match="test_registry.first has this name already"):
        register_pass(second, level="graph", after="cse", name="first")
    register_pass(second, level="graph", after="first")
    with pytest.raises(tw.CompileError, match="second are placed before or after it; remove these first"):
        unregister_pass("first")
    with pytest.raises(tw.CompileError, match="no pass 'third' is registered; registered: first, second"):
        unregister_pass("third")


# -- In the compiler -----------------------------------------------------------------------------------------


def test_reports_metadata_and_levels_name_registered_passes(tmp_path: Path) -> None:
    register_pass(first, level="tensor", after="lower-to-tensor", min_opt=2)
    library = tw.compile(model(), cache=False, dump=tmp_path)
    assert "first" in library.report.passes and "first" in library.metadata["passes"]
    assert library.report.pass_seconds["first"] >= 0
    assert any(file.name.endswith("after_first.tw") for file in tmp_path.iterdir())
    assert "first" in tw.compile(model(), cache=False, opt="O1").report.left_out
    assert "first" in tw.compile(model(), cache=False, disable=["first"]).report.left_out


def test_check_mode_names_a_registered_pass_that_is_wrong() -> None:
    register_pass(negate, level="graph", after="simplify")
    np.testing.assert_array_equal(tw.compile(model(), cache=False)(X), -X)
    with pytest.raises(tw.TilewrightError, match="pass 'negate' changes output") as caught:
        tw.compile(model(), check=True)
    line = negate.__code__.co_firstlineno
    assert f"The pass 'negate' is defined in {__file__}:{line}, outside of Tilewright." in str(caught.value)
    assert "bug in Tilewright" not in str(caught.value)
    folder = Path(str(caught.value).partition("before and after: ")[2].partition("\n")[0])
    np.testing.assert_array_equal(
        tw.compile(folder / "before_negate.tw", disable=["negate"], cache=False)(X), np.maximum(X, 0)
    )
    np.testing.assert_array_equal(tw.compile(model(), disable=["negate"])(X), np.maximum(X, 0))


def test_exceptions_of_registered_passes_are_not_the_compilers() -> None:
    def failing(module: Module) -> None:
        raise KeyError("nothing")

    register_pass(failing, level="graph", after="cse")
    with pytest.raises(
        tw.CompileError, match=r"registered pass 'failing' .*failing. raises KeyError: 'nothing'"
    ):
        tw.compile(model(), cache=False)


def test_passes_may_read_the_context() -> None:
    seen: list[tuple[DType | None, bool]] = []

    def look(module: Module, precision: DType | None, row_groups: bool) -> None:
        seen.append((precision, row_groups))

    register_pass(look, level="graph", after="dce", arguments=("precision", "row_groups"))
    register_pass(
        look,
        level="tensor",
        after="lower-to-tensor",
        name="look-again",
        arguments=("precision", "row_groups"),
        condition=Condition.LOWER_PRECISION,
    )
    assert "look-again" not in tw.compile(model(), cache=False).report.passes
    assert "look-again" in tw.compile(model(), cache=False, precision="bf16").report.passes
    assert seen == [(None, True), (bf16, True), (bf16, True)]


# -- Entry points --------------------------------------------------------------------------------------------


def package(folder: Path, code: str, value: str = "my_passes:register") -> None:
    """Create an installed package with an entry point in a folder of the module path."""
    (folder / "my_passes.py").write_text(code)
    description = folder / "my_passes-1.0.dist-info"
    description.mkdir()
    (description / "METADATA").write_text("Metadata-Version: 2.1\nName: my-passes\nVersion: 1.0\n")
    (description / "entry_points.txt").write_text(f"[tilewright.passes]\nmine = {value}\n")


CODE = """
from tilewright.passes import register_pass

def nothing(module):
    "Do nothing."

def register():
    register_pass(nothing, level="graph", before="dce")
"""


def run(folder: Path, program: str) -> str:
    text = f"import sys; sys.path.insert(0, {str(folder)!r})\nimport tilewright as tw\n{program}"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return done.stdout


def test_packages_register_passes(tmp_path: Path) -> None:
    package(tmp_path, CODE)
    program = "assert 'my_passes' not in sys.modules\nimport numpy as np\nx = np.zeros(3, np.float32)\n"
    program += "for k in range(2):\n  library = tw.compile(lambda x: x + 1, (x,), cache=False)\n"
    assert run(tmp_path, program + "print(*library.report.passes)").split().count("nothing") == 1


@pytest.mark.parametrize(
    ("code", "value", "message"),
    [
        (
            CODE.replace('"dce"', '"dec"'),
            "my_passes:register",
            "registering its passes failed .*no pass 'dec'",
        ),
        (CODE, "my_passes:__name__", "names a str; name a function without parameters"),
        ("import nonsense_that_is_not_there", "my_passes:register", "cannot be loaded .*nonsense"),
    ],
)
def test_packages_that_fail_are_named(tmp_path: Path, code: str, value: str, message: str) -> None:
    package(tmp_path, code, value)
    program = "try:\n  tw.compile(lambda x: x)\nexcept tw.CompileError as error:\n  print(error)"
    printed = run(tmp_path, program)
    assert printed.startswith("package my-passes 1.0, entry point 'mine' of group 'tilewright.passes'")
    assert re.search(message, printed)
