"""The command line: exit codes, errors of one line, and every command on a small model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.caches import new_cache
from tests.devices import lacks
from tilewright.cli import main, one_line
from tilewright.errors import DeviceError


def run(*arguments: str) -> int:
    """The exit code of a command line run in this process."""
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    code = exit_.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX model: softmax(x @ w + b) with a dynamic batch."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (16, 8)), ("b", (8,)))
    ]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="/proj"),
            helper.make_node("Add", ["h", "b"], ["z"], name="/bias"),
            helper.make_node("Softmax", ["z"], ["y"], name="/softmax", axis=-1),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        weights,
    )
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def artifact(model: Path) -> Path:
    path = model.with_suffix(".so")
    assert run("compile", str(model), "-o", str(path), "--dims", "x:batch<=32") == 0
    return path


def test_without_the_cache(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_cache(monkeypatch, tmp_path / "cache")
    arguments = ("compile", str(model), "-o", str(tmp_path / "m.so"), "--dims", "x:batch<=32")
    assert run(*arguments, "--no-cache") == 0
    assert run("run", str(model), "--dim", "batch=2", "--dims", "x:batch<=32", "--no-cache") == 0
    others = ("--dim", "batch=2", "--dims", "x:batch<=32", "--no-cache")
    assert run("profile", str(model), *others) == 0
    assert run("bench", str(model), *others, "--against", "onnxruntime", "--seconds", "0.1") == 0
    assert not list((tmp_path / "cache").rglob("artifacts"))
    assert run(*arguments) == 0
    assert list((tmp_path / "cache").rglob("artifacts"))


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"")
    for arguments in (
        ("compile", "m.onnx"),
        ("frobnicate",),
        ("compile", str(model), "-o", "m.txt"),
        ("compile", "m.onnx", "-o", "m.so", "--dims", "nonsense"),
        ("run", "m.onnx", "--dim", "batch=many"),
        ("bench", str(model), "--against", "abacus"),
        ("inspect", "m.so", "--ir", "graph"),
    ):
        assert run(*arguments) == 2, arguments
        error = capsys.readouterr().err
        assert error.startswith("tilewright: error: ")
        assert error.count("\n") == 1


def test_user_errors_exit_with_1_and_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"this is not a model")
    cases = {
        ("compile", "nowhere.onnx", "-o", "m.so"): "nowhere.onnx: no such file",
        ("compile", str(tmp_path), "-o", "m.so"): "is a folder",
        ("compile", str(broken), "-o", str(tmp_path / "none" / "m.so")): "folder does not exist",
        ("compile", str(broken), "-o", str(tmp_path / "m.so")): "broken.onnx",
        ("run", str(tmp_path / "nowhere.so")): "nowhere.so",
        ("doctor", str(broken)): "broken.onnx",
    }
    for arguments, expected in cases.items():
        assert run(*arguments) == 1, arguments
        error = capsys.readouterr().err
        assert expected in error
        assert error.count("\n") == 1
    assert not (tmp_path / "m.so").exists()


def test_internal_errors_exit_with_70(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    import tilewright as tw

    def breaks(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(tw, "compile", breaks)
    assert run("inspect", str(model)) == 70
    error = capsys.readouterr().err
    assert "ZeroDivisionError: a mistake of ours" in error
    assert error.count("\n") == 1


def test_unknown_target(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    assert run("compile", str(model), "-o", str(tmp_path / "m.so"), "--target", "abacus") == 1
    assert "unknown target 'abacus'; known: this processor and x86-64: cpu" in capsys.readouterr().err


def test_one_line() -> None:
    assert one_line("it is wrong:\n  - first\n  - second\n      hint") == "it is wrong: first; second hint"


def test_compile_in_lower_precision(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    options = ("--dims", "x:batch<=32", "--precision", "bf16")
    assert run("compile", str(model), "-o", str(path), *options, "--verify") == 0
    out = capsys.readouterr().out
    assert "contractions 1 of bf16" in out
    assert "output error against float32: at most 0.0" in out
    assert "all outputs agree" in out
    assert run("inspect", str(path)) == 0
    assert "precision: bf16" in capsys.readouterr().out
    assert run("run", str(path), "--precision", "bf16") == 2
    assert run("compile", str(model), "-o", str(path), "--precision", "int4") == 1
    assert "not available yet" in capsys.readouterr().err


def test_compile_with_verification(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    assert run("compile", str(model), "-o", str(path), "--dims", "x:batch<=32", "--verify") == 0
    out = capsys.readouterr().out
    assert path.exists()
    assert (tmp_path / "tilewright.h").exists()
    assert "all outputs agree" in out
    assert "batch=32" in out


def test_run_writes_outputs(capsys: pytest.CaptureFixture[str], artifact: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    outputs = tmp_path / "y.npz"
    assert run("run", str(artifact), "--input", f"x={tmp_path / 'x.npy'}", "-o", str(outputs)) == 0
    assert "[5, 8]" in capsys.readouterr().out
    y = np.load(outputs)["y"]
    np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-5)


def test_run_on_a_simulated_device(
    capsys: pytest.CaptureFixture[str], model: Path, artifact: Path, tmp_path: Path
) -> None:
    if reason := lacks("cuda") or lacks("hip"):
        pytest.skip(reason)
    path, x = tmp_path / "model.so", tmp_path / "x.npy"
    np.save(x, np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32))
    assert run("compile", str(model), "-o", str(path), "--dims", "x:batch<=32", "--target", "cuda") == 0
    results = []
    for arguments in (
        (str(artifact),),
        (str(path), "--simulate"),
        (str(path), "--simulate=checked"),
        (str(model), "--dims", "x:batch<=32", "--target", "hip", "--simulate"),
    ):
        out = tmp_path / "y.npz"
        assert run("run", *arguments, "--input", f"x={x}", "-o", str(out)) == 0
        results.append(np.load(out)["y"])
    for found in results[1:]:
        np.testing.assert_allclose(found, results[0], rtol=1e-4, atol=1e-6)
    capsys.readouterr()
    assert run("run", str(model), "--simulate") == 2
    assert "give --target cuda, hip or metal, not cpu" in capsys.readouterr().err
    assert run("run", str(artifact), "--simulate") == 1
    assert "only artifacts for CUDA, HIP and Metal can be simulated" in capsys.readouterr().err


def test_run_with_random_inputs(capsys: pytest.CaptureFixture[str], artifact: Path) -> None:
    assert run("run", str(artifact), "--dim", "batch=7") == 0
    assert "[7, 16]" in capsys.readouterr().out
    assert run("run", str(artifact), "--dim", "batch=33") == 1
    assert "outside its bounds 1..32" in capsys.readouterr().err
    assert run("run", str(artifact), "--dim", "seq=3") == 1
    assert "no dynamic dimension 'seq'; it has: batch" in capsys.readouterr().err


def test_inspect(capsys: pytest.CaptureFixture[str], artifact: Path, model: Path) -> None:
    assert run("inspect", str(artifact)) == 0
    out = capsys.readouterr().out
    for expected in ("x", "[batch, 16]", "1 <= batch <= 32", "kernels", "memory"):
        assert expected in out
    assert run("inspect", str(artifact), "--json") == 0
    assert json.loads(capsys.readouterr().out)["symbols"] == {"batch": [1, 32]}
    assert run("inspect", str(model), "--dims", "x:batch<=32", "--ir", "graph") == 0
    assert "graph.matmul" in capsys.readouterr().out


def test_inspect_shows_each_function(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import tilewright as tw

    kept = tw.State("kept", (4, 8))

    def append(x: Any, place: Any) -> Any:
        kept[place] = x
        return kept.value.sum(0)

    x, place = np.zeros((2, 8), np.float32), np.zeros(2, np.int64)
    dims = {"x": {0: "n<=3"}, "place": {0: "n<=3"}}
    library = tw.compile(
        {"append": (append, (x, place), dims), "read": (lambda place: kept[place] + 1, (place,))}
    )
    path = library.save(tmp_path / "m.so", weights="beside")
    assert run("inspect", str(path)) == 0
    out = capsys.readouterr().out
    for expected in (
        "states of all functions",
        "[4, 8]",
        "function append",
        "1 <= n <= 3",
        "function read",
        "identity: ",
    ):
        assert expected in out
    assert run("run", str(path)) == 2
    assert "no function 'main': give --function one of append, read" in capsys.readouterr().err
    assert run("run", str(path), "--function", "append", "--dim", "n=3") == 0
    assert "[3, 8]" in capsys.readouterr().out
    assert run("profile", str(path), "--function", "read", "--json") == 0
    assert json.loads(capsys.readouterr().out)["kernels"]


def test_profile(capsys: pytest.CaptureFixture[str], artifact: Path) -> None:
    assert run("profile", str(artifact), "--dim", "batch=32", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert sum(row["flops"] for row in result["kernels"]) >= 2 * 32 * 16 * 8
    assert all(row["calls"] >= 1 and row["roofline"] >= 0 for row in result["kernels"])
    assert run("profile", str(artifact)) == 0
    assert "of roofline" in capsys.readouterr().out


def test_profile_without_the_device_shows_lower_bounds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, artifact: Path
) -> None:
    import tilewright as tw
    from tilewright.cli import profile

    library = tw.load(artifact)
    resources = {"registers": 32, "shared_bytes": 0, "stack_bytes": 0, "spill_bytes": 0, "instructions": {}}
    for kernel in library.metadata["kernels"]:
        kernel["device"] = {
            "blocks": "(batch + 7) // 8",
            "threads": 128,
            "dynamic_shared_bytes": 0,
            "code": {"sm_90a": resources},
        }

    def no_device(*inputs: object, **options: object) -> None:
        raise DeviceError("there is no CUDA driver")

    monkeypatch.setattr(library, "profile", no_device)
    monkeypatch.setattr(profile, "obtain", lambda *options: library)
    assert run("profile", str(artifact), "--dim", "batch=32") == 0
    text = capsys.readouterr().out
    assert "kernels for sm_90a, on NVIDIA H100" in text and "lower bounds, not measured" in text
    assert "there is no CUDA driver" in text
    assert all(kernel["name"] in text for kernel in library.metadata["kernels"])
    assert run("profile", str(artifact), "--dim", "batch=32", "--json") == 1


def test_quantize(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for k in range(2):
        x = np.random.default_rng(k).standard_normal((8, 16)).astype(np.float32)
        np.savez(data / f"{k}.npz", x=x)
    output, report = tmp_path / "small.tw", tmp_path / "report.json"
    arguments = ("--data", str(data), "-o", str(output), "--json", str(report))
    assert run("quantize", str(model), *arguments, "--dims", "x:batch<=32", "--observer", "mse") == 0
    assert "/proj" in capsys.readouterr().out
    assert [layer["precision"] for layer in json.loads(report.read_text())["layers"]] == ["int8"]
    assert run("run", str(output), "--dim", "batch=3") == 0
    for wrong, code, text in (
        (("--data", str(tmp_path / "none"), "-o", str(output)), 1, "there is no such folder"),
        (("--data", str(tmp_path / "data" / ".."), "-o", str(output)), 1, "no .npz or .npy file"),
        (("--data", str(data), "-o", "small.so"), 2, "none of .onnx, .tw"),
    ):
        assert run("quantize", str(model), *wrong) == code and text in capsys.readouterr().err


def test_bench(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    pytest.importorskip("onnxruntime")
    options = ("--against", "onnxruntime", "--threads", "1", "--seconds", "0.3", "--json", "-")
    assert run("bench", str(model), "--dims", "x:batch<=32", "--dim", "batch=8", *options) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["engines"]) == {"tilewright", "onnxruntime"}
    assert result["engines"]["tilewright"]["ratio"] == 1
    assert result["engines"]["onnxruntime"]["max_difference"] < 1e-5
    assert result["inputs"] == {"x": [8, 16]}


def test_doctor_lists_every_unsupported_operator(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], name="/first", domain="made.up"),
        helper.make_node("Transmogrify", ["a"], ["y"], name="/second", domain="made.up"),
    ]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph(nodes, "odd", info[:1], info[1:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("made.up", 1)]
    path = tmp_path / "odd.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    assert run("doctor", str(path)) == 1
    out = capsys.readouterr().out
    for expected in (
        "Frobnicate",
        "/first",
        "Transmogrify",
        "/second",
        "2 of its operators are not supported",
    ):
        assert expected in out


OPERATORS = """
import torch
from tilewright.frontends.torch.registry import importer

@torch.library.custom_op("tilewright_cli::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@twice.register_fake
def _(x):
    return torch.empty_like(x)

@importer("tilewright_cli.twice.default")
def _twice(n, x):
    return n.binary("add", x, x)
"""

EXPORTED = """
import sys
import operators_of_mine, torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.ops.tilewright_cli.twice(x) + 1
torch.export.save(torch.export.export(Model(), (torch.ones(3),)), sys.argv[1])
"""


def test_operators_of_a_module_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    operators, model = tmp_path / "operators_of_mine.py", tmp_path / "model.pt2"
    operators.write_text(OPERATORS)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run(
        [sys.executable, "-c", EXPORTED, str(model)], env={**os.environ, "PYTHONPATH": path}, check=True
    )
    compile_ = ["compile", str(model), "-o", str(tmp_path / "model.so")]
    assert run(*compile_) == 1
    assert "operator tilewright_cli.twice" in (said := capsys.readouterr().err) and "--import" in said
    assert run(*compile_, "--import", str(tmp_path / "nothing.py")) == 1
    assert "nothing.py cannot be imported" in capsys.readouterr().err
    assert run(*compile_, "--import", str(operators)) == 0
    assert run("doctor", str(model), "--import", str(operators)) == 0, "the file is imported once"


def test_as_a_process(model: Path) -> None:
    environment = {**os.environ, "NO_COLOR": "1"}
    command = [sys.executable, "-m", "tilewright"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout.startswith("tilewright, version ")) == (0, True)
    done = subprocess.run([*command, "run", "nowhere.so"], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith("tilewright: error: nowhere.so")


def test_options_for_work_on_the_compiler(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    """The options --passes, --disable, --dump and --check of the compile command list passes with levels and
    times, leave a pass out, write modules and compare results.
    """
    output, folder = ("-o", str(tmp_path / "m.so")), tmp_path / "passes"
    options = ("--passes", "--disable", "simplify", "--dump", str(folder), "--check")
    assert run("compile", str(model), *output, *options) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    listed = {row[0]: row[1:] for row in rows}
    assert listed["simplify"] == ["graph", "left", "out"]
    assert listed["cse"][0] == "graph" and float(listed["cse"][1]) > 0
    assert listed["form-groups"][0] == "tensor"
    names = [path.name for path in folder.glob("*.tw")]
    assert any("form-groups" in name for name in names) and not any("simplify" in name for name in names)
    assert run("compile", str(model), *output, "--disable", "simplfy") == 1
    assert "disable: there is no pass 'simplfy'; did you mean 'simplify'" in capsys.readouterr().err


def test_the_debug_variable_shows_tracebacks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("compile", str(tmp_path / "no.onnx"), "-o", str(tmp_path / "m.so"))
    for setting in ("", "traceback"):
        monkeypatch.setenv("TILEWRIGHT_DEBUG", setting)
        assert run(*arguments) == 1
        assert ("Traceback" in capsys.readouterr().err) == bool(setting)
