"""The code of docs/extending/adding-a-pass.md runs, and the package that it makes registers its pass when it
is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.dialects import func, graph
from tilewright.ir.builder import Builder
from tilewright.ir.core import Constant, Module
from tilewright.ir.rewrite import Pattern, apply_patterns
from tilewright.ir.verifier import verify
from tilewright.passes import registry

from .pages import DOCS, code_blocks, run_page

PAGE = "extending/adding-a-pass.md"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the page's code defines. The page's files are in the test's folder."""
    monkeypatch.setattr(registry, "_registered", [])
    (code,) = (
        code for _, code, _ in code_blocks((DOCS / PAGE).read_text()) if "def recognize_softplus(" in code
    )
    (tmp_path / "softplus-pass").mkdir()
    (tmp_path / "softplus-pass" / "softplus_pass.py").write_text(code)
    return run_page(PAGE, tmp_path)


def _check_constant_pattern(sin_of_zero: Pattern) -> None:
    """Check that the pattern replaces ``sin(0)`` by a constant of the same type and keeps ``sin(1)``."""
    module = Module()
    main = func.Func(sym_name="main", result_names=("zero", "other"))
    module.body.append(main)
    b = Builder(main.body)
    operands = [b(graph.Constant(value=Constant(np.array(value, np.float16)))) for value in (0, 1)]
    b.insert(func.Return([b(graph.Sin(x)) for x in operands]))
    assert apply_patterns(module, [sin_of_zero], fold=False) == 1
    zero, other = (v.defining_op for v in main.body.last.operands)
    assert isinstance(zero, graph.Constant) and zero.value.array == 0 and isinstance(other, graph.Sin)
    verify(module)


def test_page(page: dict[str, Any], tmp_path: Path) -> None:
    assert "recognize-softplus" in page["library"].report.left_out
    _check_constant_pattern(page["sin_of_zero"])
    project = tomllib.loads((tmp_path / "softplus-pass" / "pyproject.toml").read_text())["project"]
    # the form in which an installer writes it
    description = tmp_path / "softplus-pass" / "softplus_pass-1.0.dist-info"
    description.mkdir()
    (description / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (group, entries), *_ = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (description / "entry_points.txt").write_text("\n".join(lines))
    paths = [str(tmp_path / "softplus-pass"), *sys.path]
    run = subprocess.run(
        [sys.executable, "uses_softplus.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "True\n", run.stderr
