"""The report of `tilewright doctor` before compilation names every problem with its places and a remedy, for
each front end and target.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx.helper as oh
import pytest
import torch
from tests.conformance import doctor_suite

import tilewright as tw
from tilewright.cli import main
from tilewright.tools.model_support import examine


@torch.library.custom_op("tilewright_support::unknown", mutates_args=(), schema="(Tensor x) -> Tensor")
def _unknown(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


_unknown.register_fake(torch.empty_like)


class Decomposing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.linalg.eig(x @ x.T)[0].real
        second = torch.linalg.eig(x.T @ x)[0].real
        return first + second + torch.ops.tilewright_support.unknown(x[0])


def decomposing() -> Any:
    return Decomposing(), (torch.ones(4, 4),)


def wide() -> Any:
    return lambda x: tw.numpy.exp(x.astype("float64")) * 2, (np.ones(3, np.float32),)


SCRIPT = """
import torch
model = torch.nn.Linear(4, 4)
def make():
    return model, (torch.ones(2, 4),)
def make_wide():
    return model.double(), (torch.ones(2, 4, dtype=torch.float64),)
"""


def test_pytorch_tells_lines() -> None:
    model, args = decomposing()
    found = examine(model, args)
    assert not found.ok and found.module is None
    eig, unknown = sorted(found.problems, key=lambda p: -p.count)
    assert "eig" in eig.operator and eig.count == 2 and "unknown" in unknown.operator and unknown.count == 1
    line = Decomposing.forward.__code__.co_firstlineno
    assert [f"test_model_support.py:{line + k}" in place for k, place in enumerate(eig.locations, 1)] == [
        True,
        True,
    ]
    assert (
        all("torch.compile" in p.instead for p in found.problems)
        and "keep the result as a weight" in eig.instead
    )


def test_onnx_tells_nodes() -> None:
    value = oh.make_tensor_value_info("x", 1, [2]), oh.make_tensor_value_info("y", 1, [2])
    nodes = [
        oh.make_node("Wave", ["x"], ["a"], domain="my.own", name="first"),
        oh.make_node("Wave", ["a"], ["y"], domain="my.own"),
    ]
    opsets = [oh.make_opsetid("", 21), oh.make_opsetid("my.own", 1)]
    found = examine(oh.make_model(oh.make_graph(nodes, "g", [value[0]], [value[1]]), opset_imports=opsets))
    (problem,) = found.problems
    assert problem.count == 2 and problem.locations[0] == "first" and "Wave(y)" in problem.locations[1]
    assert "adding-an-operator.md" in problem.instead
    with pytest.raises(tw.UnsupportedOperatorError, match="instead: "):
        raise found.error or AssertionError


def test_stablehlo() -> None:
    exported = jax.export.export(jax.jit(lambda x: jax.scipy.linalg.schur(x @ x.T)[0]))(
        jax.ShapeDtypeStruct((4, 4), jnp.float32)
    )
    found = examine(exported)
    assert not found.ok and found.problems and all(p.instead for p in found.problems)


def test_what_a_target_cannot_do() -> None:
    function, args = wide()
    assert examine(function, args).ok
    found = examine(function, args, target="webgpu")
    assert found.module is not None and not found.ok
    assert "does not support float64" in found.problems[0].operator and "float32" in found.problems[0].instead
    for model, arguments in ((function, args), (lambda x: tw.numpy.tanh(x) @ x, args)):
        said = examine(model, arguments, target="webgpu").ok
        try:
            tw.compile(model, arguments, target="webgpu", cache=False)
        except tw.CompileError:
            assert not said
        else:
            assert said


def test_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "some_models.py"
    script.write_text(SCRIPT)

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["doctor", *arguments])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    code, text = run(f"{script}:make", "--json")
    assert code == 0 and json.loads(text)["supported"] and json.loads(text)["operators"]["graph.matmul"] == 1
    code, text = run(f"{script}:make_wide", "--json", "--target", "webgpu")
    problems = json.loads(text)["problems"]
    assert code == 1 and "float64" in problems[0]["operator"] and problems[0]["locations"]
    monkeypatch.syspath_prepend(tmp_path)
    code, text = run("some_models:make_wide", "--target", "webgpu")
    assert (
        code == 1
        and "target webgpu cannot run it" in text
        and "instead: convert the model to float32" in text
    )
    assert run("some_models:absent")[0] == 1 and "no 'absent'" in run("some_models:absent")[1]
    assert run(str(tmp_path / "absent.onnx"))[0] == 1 and run("--json")[0] == 2


def test_predictions_for_samples_of_the_suite() -> None:
    committed = json.loads(doctor_suite.DATA.read_text())
    known = json.loads(doctor_suite.onnx_suite.DATA.read_text())
    if committed["onnx"] != known["onnx"] or committed["cases"] != len(doctor_suite.cases()):
        pytest.skip("another release of onnx bundles other cases")
    wrong = {
        f"{case.kind}/{case.name}": verdict
        for case in doctor_suite.cases()[3::80]
        if (verdict := doctor_suite.verdict(case, known["not_passed"])) != "right"
    }
    assert wrong.items() <= committed["not_right"].items()
