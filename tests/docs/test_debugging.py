"""What docs/debugging.md shows is run, from top to bottom, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "debugging.md"


def test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = tmp_path / "bin" / "tilewright"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tilewright "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    names: dict[str, object] = {"__name__": "debugging"}
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert {kind for kind, _ in blocks} == {"python", "sh"}
    for kind, code in blocks:
        if kind == "python":
            exec(compile(code, str(PAGE), "exec"), names)
            continue
        done = subprocess.run(["sh", "-e"], input=code, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        if "--check" in code:
            assert "still fails" in done.stdout
