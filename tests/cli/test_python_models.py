"""Every command that takes a model also takes one that is defined in Python: FILE.py:NAME."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.tools.minimize import import_module

from .test_cli import run

SOURCE = """
import numpy as np
import tilewright as tw

TABLE = np.arange(8, dtype=np.float32)

def scale(x):
    return x * tw.Tensor(TABLE)

def model():
    return scale, (np.ones((2, 8), np.float32),)

def module():
    import torch
    return torch.nn.Linear(8, 4).eval(), (torch.ones(2, 8),)

def broken():
    raise ValueError("out of order")
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("python") / "models_in_python.py"
    path.write_text(SOURCE)
    return path


def test_every_command(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, output = f"{file}:model", tmp_path / "m.so"
    assert run("compile", model, "-o", str(output), "--verify", "--dims", "x:batch<=4") == 0
    assert "compared with the function itself" in capsys.readouterr().out
    np.testing.assert_array_equal(tw.load(output)(np.ones((3, 8), np.float32)), np.tile(np.arange(8), (3, 1)))
    for command in (
        ("run", model),
        ("inspect", model),
        ("inspect", model, "--ir", "tensor"),
        ("doctor", model),
    ):
        assert run(*command) == 0, command
    assert "all operators are supported (2 operations of 2 kinds after import)" in capsys.readouterr().out
    assert run("minimize", model, "--check") == 0
    assert run("bench", model, "--against", "torch", "--seconds", "0.1") == 2
    assert "torch cannot run" in capsys.readouterr().err
    assert run("bench", model, "--against", "onnxruntime", "--seconds", "0.1") == 2
    assert "onnxruntime cannot run" in capsys.readouterr().err


def test_a_module_beside_torch(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert run("compile", f"{file}:module", "-o", str(tmp_path / "m.so"), "--verify") == 0
    assert "compared with PyTorch" in capsys.readouterr().out
    assert run("bench", f"{file}:module", "--against", "torch", "--seconds", "0.1", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["engines"]["torch"]["max_difference"] < 1e-5


def test_a_file_called_like_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx

    for number, folder in enumerate(("a", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "onnx.py").write_text(
            f"number = {number}\nruns = [*globals().get('runs', []), 1]\n"
        )
    monkeypatch.chdir(tmp_path / "a")
    found = [import_module(name) for name in ("onnx.py", str(tmp_path / "b" / "onnx.py"), "../a/onnx.py")]
    assert sys.modules["onnx"] is onnx
    assert [module.number for module in found] == [0, 1, 0]
    assert found[0] is found[2], "a file is imported once"


def test_a_file_that_fails_is_run_again(tmp_path: Path) -> None:
    file = tmp_path / "half.py"
    file.write_text("number = 1\nraise ValueError('out of order')\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="out of order"):
            import_module(str(file))


def test_names_that_are_wrong(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, message in (
        (f"{file}:nothing", "defines no 'nothing'"),
        (f"{tmp_path}/none.py:model", "none.py: no such file"),
        (f"{file}:broken", "ValueError: out of order"),
    ):
        for command in ("compile", "run", "inspect", "profile", "doctor"):
            output = ("-o", str(tmp_path / "m.so")) if command == "compile" else ()
            assert run(command, text, *output) == 1, (command, text)
            assert message in capsys.readouterr().err
