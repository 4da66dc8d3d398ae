"""The README's commands and Python code run in order in an empty folder on a small model."""

from __future__ import annotations

import re
import shlex
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.zoo.models import MODELS

from tilewright import cli

README = Path(__file__).parents[2] / "README.md"


def shell_commands() -> list[list[str]]:
    """The `tilewright ...` lines of the README, without their comments."""
    section = README.read_text().split("## From the shell")[1].split("## ")[0]
    lines = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert lines is not None
    return [shlex.split(line, comments=True) for line in lines.group(1).splitlines()]


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # the command line replaces this function
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    model = MODELS["gpt2"]
    source = model.onnx_model("tiny", dynamic=True).parent
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    ids = model.inputs("tiny", batch=2, seq=16)["input_ids"]
    torch.export.save(torch.export.export(model.torch_model("tiny"), (ids,)), tmp_path / "model.pt2")
    (tmp_path / "model.py").write_text(
        "import numpy as np\ndef make():\n    return (lambda x: x * 2.0), (np.ones(3),)\n"
    )
    commands = shell_commands()
    assert {c[1] for c in commands} == {
        "doctor",
        "explore",
        "compile",
        "compare",
        "run",
        "inspect",
        "profile",
        "bench",
        "minimize",
        "tune",
    }
    for command in commands:
        assert command[0] == "tilewright"
        # The small model has only 128 positions.
        arguments = [a.replace("seq<=512", "seq<=128") for a in command[1:]]
        if arguments[0] == "doctor":
            arguments += ["--dims", "input_ids:batch<=8,seq<=128"]
        if "--ir" in arguments:
            arguments += ["--dims", "input_ids:batch<=8,seq<=128"]
        if arguments[0] == "tune":
            pytest.importorskip("sklearn")
            arguments = [a.replace("10m", "1s") for a in arguments]
        if arguments[0] == "bench":
            arguments += ["--seconds", "0.2"]
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        assert not end.value.code, " ".join(command)


def test_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = README.read_text().split("## From Python")[1].split("## ")[0]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    model = MODELS["bert"]
    shutil.copytree(model.onnx_model("tiny", dynamic=True).parent, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    ids, mask = (tensor.numpy() for tensor in model.inputs("tiny", batch=2, seq=16).values())
    names = {"ids": ids, "mask": mask}
    exec(code.group(1).replace("seq<=512", "seq<=128"), names)
    expected = model.torch_model("tiny")(torch.from_numpy(ids), torch.from_numpy(mask))
    np.testing.assert_allclose(names["out"][0], expected[0].detach().numpy(), atol=1e-4)
