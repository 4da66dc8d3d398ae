"""The contents of a model's page: structure, texts of levels, passes, and one file without references."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright as tw
from tests.explorer.network import Network
from tilewright.artifact.structure import read_structure
from tilewright.cli import cli
from tilewright.driver.compile import Compilation
from tilewright.driver.tuned import keys_for
from tilewright.driver.tuning_database import Database, Trial
from tilewright.errors import ArtifactError
from tilewright.explorer.document import split_functions
from tilewright.explorer.page import collect
from tilewright.explorer.recorder import Recorder
from tilewright.lowering.groups_to_kernels import kernel_names
from tilewright.lowering.kernel_forms import structure_of
from tilewright.runtime.model import CompiledModel

X = np.zeros((8, 64), np.float32)


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def library(recorder: Recorder) -> CompiledModel:
    with recorder:
        return tw.compile(Network().eval(), (X,), dims={"x": {0: "batch<=16"}})


@pytest.fixture(scope="module")
def document(library: CompiledModel, recorder: Recorder) -> dict[str, Any]:
    return collect(library, [X], "network", recorder)


def held(page: str) -> list[dict[str, Any]]:
    found = re.search(r'id="data">([^<]*)<', page)
    assert found
    documents: list[dict[str, Any]] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return documents


def test_each_operator_that_computes_belongs_to_a_launch(library: CompiledModel) -> None:
    main = read_structure(library.metadata)["main"]
    launched = {k for step in main["steps"] for k in step.get("operators", ())}
    computed = {k for k, op in enumerate(main["operators"]) if op["name"] != "constant"}
    views = {k for k in computed if main["operators"][k]["name"] in ("reshape", "transpose")}
    assert computed - views <= launched <= computed
    twice = [k for k in launched if sum(k in s.get("operators", ()) for s in main["steps"]) > 1]
    assert not twice, [main["operators"][k] for k in twice]


def test_storages_do_not_overlap_while_both_are_in_use(document: dict[str, Any]) -> None:
    storages = tw.compile(Network().eval(), (X,)).metadata
    main = read_structure(storages)["main"]["storages"]
    assert main
    for a in main:
        for b in main:
            if a is b or a["first"] > b["last"] or b["first"] > a["last"]:
                continue
            assert a["offset"] + a["bytes"] <= b["offset"] or b["offset"] + b["bytes"] <= a["offset"]


def test_kernels_have_their_texts(document: dict[str, Any]) -> None:
    assert document["kernels"]
    for kernel in document["kernels"]:
        assert {"tensor", "loop", "llvm", "asm"} <= kernel["levels"].keys(), kernel["name"]
        assert "tensor.group" in kernel["levels"]["tensor"]
        assert f"@{kernel['name']}" in kernel["levels"]["loop"]
        assert f"kernel_{kernel['name']}" in kernel["levels"]["asm"]
        assert "def own(s):" in kernel["schedule"]
    others = [k["name"] for k in document["kernels"]]
    for kernel in document["kernels"]:
        text = kernel["levels"]["asm"]
        assert not [n for n in others if n != kernel["name"] and f"\nkernel_{n}:" in text]


def test_sources_are_the_users_files(document: dict[str, Any]) -> None:
    (name,) = [n for n in document["sources"] if n.endswith("network.py")]
    assert "the line of UP" in document["sources"][name]
    named = {op["source"].rpartition(":")[0] for op in document["functions"][0]["operators"]}
    assert named - {""} <= {*document["sources"]}


def test_passes_tell_what_they_changed(recorder: Recorder) -> None:
    by_name = {record.name: record for record in recorder.passes}
    fused = by_name["fuse-elementwise"]
    assert fused.level == "tensor" and fused.changes and fused.seconds > 0
    assert any(line.startswith("-") for hunk in fused.changes for line in hunk["lines"])
    assert not by_name["winograd"].changes


def test_rewrites_are_counted_by_pattern() -> None:
    def function(x: tw.Tensor) -> tw.Tensor:
        return x / (1.0 + tw.numpy.exp(-x))

    with Recorder() as recorder:
        tw.compile(function, (np.ones((4, 3), np.float32),))
    rewrites = {name: entry for record in recorder.passes for name, entry in record.rewrites.items()}
    assert rewrites and all(entry["count"] >= len(entry["at"]) > 0 for entry in rewrites.values())


def test_texts_that_differ_in_numbers_only_are_equal() -> None:
    from tilewright.explorer.recorder import _changes

    before = ["%0 = a", "%1 = b", "%2 = c %1"]
    hunks, dropped = _changes(before, ["%0 = b", "%1 = c %0"])
    assert [x for x in hunks[0]["lines"] if not x.startswith(" ")] == ["-%0 = a"] and not dropped


def test_changes_keep_their_lines_and_long_ones_are_counted() -> None:
    from tilewright.explorer.recorder import MOST_COMPARED, _changes

    before = [f"line {k}" for k in range(100)]
    after = [*before[:50], "new", *before[50:]]
    (hunk,), dropped = _changes(before, after)
    assert hunk["lines"] == [" line 47", " line 48", " line 49", "+new", " line 50", " line 51", " line 52"]
    assert (hunk["before"], hunk["after"], dropped) == (48, 48, 0)
    many = [f"other {k}" for k in range(MOST_COMPARED + 1)]
    assert _changes(before, many) == ([], len(before) + len(many))


def test_each_pair_of_neighbouring_kernels_has_a_reason(document: dict[str, Any]) -> None:
    (function,) = document["functions"]
    steps, pairs = function["steps"], function["apart"]
    launches = [k for k, step in enumerate(steps) if step["kind"] == "launch"]
    assert {(pair["from"], pair["to"]) for pair in pairs} >= set(pairwise(launches))
    for pair in pairs:
        assert pair["from"] < pair["to"] and pair["reasons"], pair
        a, b = pair["operators"]
        assert a in steps[pair["from"]]["operators"] and b in steps[pair["to"]]["operators"]


def reasons(function: Callable[..., Any], *shapes: tuple[int, ...]) -> dict[str, str]:
    """The reasons of the rules for the only pair of kernels of a function."""
    inputs = [np.ones(shape, np.float32) for shape in shapes]
    with Recorder() as recorder:
        library = tw.compile(function, tuple(inputs))
    (pair,) = collect(library, None, "pair", recorder)["functions"][0]["apart"]
    return dict(pair["reasons"])


def test_the_reason_is_that_of_the_rule_that_refused() -> None:
    def epilogue_of_other_shape(x: tw.Tensor, w: tw.Tensor) -> tw.Tensor:
        return tw.numpy.sum(x @ w, axis=0)

    def two_readers(x: tw.Tensor, w: tw.Tensor) -> tuple[tw.Tensor, tw.Tensor]:
        y = x @ w
        return y, tw.numpy.tanh(y)

    def several(x: tw.Tensor, w: tw.Tensor) -> tw.Tensor:
        return tw.numpy.exp(x) @ w

    shapes = ((40, 50), (50, 60))
    assert "cannot be the epilogue" in reasons(epilogue_of_other_shape, *shapes)["form-groups"]
    assert "has other readers" in reasons(two_readers, *shapes)["form-groups"]
    assert "factors are read as they lie" in reasons(several, *shapes)["fuse-elementwise"]


def test_a_pattern_says_why_it_does_not_apply() -> None:
    def attention_with_shift(q: tw.Tensor, k: tw.Tensor, v: tw.Tensor) -> tw.Tensor:
        scores = tw.numpy.sin(q @ tw.numpy.swapaxes(k, -1, -2))
        return tw.nn.functional.softmax(scores, -1) @ v

    x = np.ones((2, 3, 4, 8), np.float32)
    with Recorder() as recorder:
        tw.compile(attention_with_shift, (x, x, x))
    (record,) = [record for record in recorder.passes if record.name == "recognize"]
    ((text, entry),) = record.refusals.items()
    assert text.startswith("attention: between the softmax and a product of queries and keys")
    assert entry["count"] == len(entry["at"]) == 1 and "matmul at " in entry["at"][0]


def refusals(function: Callable[..., Any], *arrays: np.ndarray) -> dict[str, list[str]]:
    """The reasons of each pass by its name, and those of pairs of kernels by the rule's."""
    with Recorder() as recorder:
        tw.compile(function, arrays)
    found: dict[str, list[str]] = {}
    for record in recorder.passes:
        found.setdefault(record.name, []).extend(record.refusals)
    for entry in recorder.apart:
        found.setdefault(entry.rule, []).append(entry.reason)
    return found


def test_products_of_one_input_say_why_they_are_not_merged() -> None:
    a, b = (np.ones((16, n), np.float32) for n in (8, 24))

    def gate(x: tw.Tensor) -> tw.Tensor:
        return tw.numpy.tanh(x @ a) * (x @ (a + 1))

    def weights_of_the_call(x: tw.Tensor, w: tw.Tensor) -> tuple[tw.Tensor, tw.Tensor]:
        return x @ w, x @ b

    x = np.ones((4, 16), np.float32)
    (reason,) = set(refusals(gate, x)["merge-matmuls"])
    assert "as in a gate" in reason
    (reason,) = set(refusals(weights_of_the_call, x, a)["merge-matmuls"])
    assert "not a constant matrix" in reason


def test_readers_of_channels_first_and_of_reshaped_products_are_named() -> None:
    weight = np.ones((6, 3, 3, 3), np.float32)

    def convolution(x: tw.Tensor) -> tw.Tensor:
        return tw.nn.functional.conv(x, weight)

    (reason,) = refusals(convolution, np.ones((1, 3, 8, 8), np.float32))["choose-layout"]
    assert reason.startswith("choose-layout: transposed back to channels-first, which its readers need: ret")
    factor = np.ones((256, 256), np.float32)

    def turned(x: tw.Tensor) -> tw.Tensor:
        y = (x @ factor).reshape(64, 16, 16)
        return tw.numpy.tanh(y.transpose(2, 1, 0))

    (reason,) = refusals(turned, np.ones((64, 256), np.float32))["align-epilogues"]
    assert "in another order" in reason


def test_passes_of_training_steps_are_recorded() -> None:
    with Recorder() as recorder:
        x = np.ones((4, 8), np.float32)
        model = tw.nn.Sequential(tw.nn.Linear(8, 8), tw.nn.GELU())
        step = tw.train_step(model, lambda y: (y * y).mean(), tw.optim.SGD(lr=0.1), (x,))
    assert {record.name for record in recorder.passes} >= {"simplify", "fuse-elementwise", "form-groups"}
    page = collect(step.library, None, "step", recorder)
    assert page["passes"] and any(pair["reasons"] for pair in page["functions"][0]["apart"])


def test_a_fused_pair_has_no_reason() -> None:
    def fused(x: tw.Tensor, w: tw.Tensor) -> tw.Tensor:
        return tw.numpy.tanh(x @ w)

    inputs = np.ones((4, 5), np.float32), np.ones((5, 6), np.float32)
    with Recorder() as recorder:
        library = tw.compile(fused, inputs)
    assert collect(library, None, "pair", recorder)["functions"][0]["apart"] == []


def test_the_command_says_why(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import numpy as np\nfrom tilewright import nn\n\n\ndef make():\n"
        "    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).eval(), (np.ones((2, 8), np.float32),)\n"
    )
    model = f"{tmp_path / 'model.py'}:make"
    done = CliRunner().invoke(cli, ["explore", model, "--why"])
    assert done.exit_code == 0 and "matmul_add -> layer_norm" in done.output, done.output
    assert "form-groups: " in done.output
    assert CliRunner().invoke(cli, ["explore", model, "--why", "layer_norm"]).output == done.output
    missing = CliRunner().invoke(cli, ["explore", model, "--why", "softmax"])
    assert missing.exit_code == 2 and "no two neighbouring kernels" in missing.output


def test_a_kernel_shows_its_trials(library: CompiledModel, tmp_path: Path) -> None:
    compilation = library.origin
    assert isinstance(compilation, Compilation)
    names = kernel_names(compilation.grouped())
    group = next(group for group, name in names.items() if name == "matmul_gelu")
    key = keys_for(compilation.target, None)(structure_of(group))
    database = Database(tmp_path / "tuned.jsonl")
    database.add(
        Trial(key, {"tile": 4}, "a", "race", speedup=1.25, lower=1.2, upper=1.3, date="2026-01-01"),
        Trial(key, {"tile": 8}, "b", "race", failure="crash", date="2026-01-02"),
        Trial(key, {"tile": 4}, "a", "chosen", speedup=1.25, lower=1.2, upper=1.3, date="2026-01-03"),
    )
    kernels = {k["name"]: k for k in collect(library, None, tuned=database.path)["kernels"]}
    race, failed, chosen = kernels["matmul_gelu"]["trials"]
    assert race["speedup"] == 1.25 and race["choices"] == {"tile": 4} and not race["used"]
    assert failed["failure"] == "crash" and "speedup" not in failed
    assert chosen["stage"] == "chosen" and chosen["used"]
    assert not kernels["layer_norm"]["trials"]


def test_one_function_of_several_has_its_own_graph() -> None:
    def double(x: tw.Tensor) -> tw.Tensor:
        return x * 2.0

    x = np.ones((4,), np.float32)
    functions = {"double": (double, (x,)), "again": (lambda x: tw.numpy.sum(x), (x,), {"x": {0: "n<=4"}})}
    library = tw.compile(functions, cache=False)
    (function,) = collect(library.functions["double"], [x], "double")["functions"]
    assert function["name"] == "double" and [op["name"] for op in function["operators"]][-1] == "mul"
    assert function["steps"]


def test_functions_of_a_text() -> None:
    llvm = (
        "declare void @e()\ndefine void @a(ptr %x) {\n call void @b()\n}\n"
        "@c = global i8 0\ndefine i32 @b() {\n}\n"
    )
    assert split_functions(llvm, "llvm") == {
        "a": "define void @a(ptr %x) {\n call void @b()\n}",
        "b": "define i32 @b() {\n}",
    }
    cuda = 'extern "C" __global__ void kernel_x(const float* a) {\n  if (a) f(a);\n}\n'
    assert list(split_functions(cuda, "cuda")) == ["kernel_x"]


def test_the_page_refers_to_no_other_place(library: CompiledModel, tmp_path: Path) -> None:
    page = tw.explore(library, None, tmp_path / "page.html").read_text()
    assert "default-src 'none'" in page
    markup = re.sub(r"<script>.*</script>", "", page, flags=re.DOTALL)
    assert not re.search(r'(?:src|href)="(?!data:)', markup)
    (document,) = held(page)
    assert document["profile"] is None and document["kernels"]


def test_an_artifact_without_its_model_has_graph_memory_and_kernels(
    library: CompiledModel, tmp_path: Path
) -> None:
    library.save(tmp_path / "model.so")
    page = tmp_path / "page.html"
    done = CliRunner().invoke(
        cli, ["explore", str(tmp_path / "model.so"), "--no-times", "--no-browser", "-o", str(page)]
    )
    assert done.exit_code == 0, done.output
    (document,) = held(page.read_text())
    main = document["functions"][0]
    assert main["operators"] and main["steps"] and main["storages"]
    assert document["kernels"][0]["schedule"] and document["metadata"]["target"]


def test_the_command_compiles_times_and_compares(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    (tmp_path / "model.py").write_text(
        "import numpy as np\nfrom tilewright import nn\n\n\ndef make():\n"
        "    return nn.Linear(8, 8).eval(), (np.ones((2, 8), np.float32),)\n"
    )
    model = f"{tmp_path / 'model.py'}:make"
    done = CliRunner().invoke(cli, ["explore", model, "--against", model, "--no-browser", "-o", str(page)])
    assert done.exit_code == 0, done.output
    first, second = held(page.read_text())
    assert first["profile"]["launches"] and second["passes"]


def test_a_page_that_cannot_be_written_is_an_error(library: CompiledModel, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be written"):
        tw.explore(library, None, tmp_path / "missing" / "page.html")
