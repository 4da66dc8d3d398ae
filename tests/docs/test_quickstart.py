"""The code of docs/llm/quickstart.md and of the README's section on language models runs in an empty folder.
Training is left out, and the server uses any free port.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

from .pages import DOCS, ROOT, code_blocks


def run(page: str, folder: Path) -> dict[str, str]:
    """Run the code of a page in a folder. Returns the output of each command of `tilewright llm`, and that of
    the last Python block as "answer".
    """
    command = folder / "bin" / "tilewright"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tilewright "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "TILEWRIGHT": str(ROOT), "PATH": f"{command.parent}:{os.environ['PATH']}"}
    printed: dict[str, str] = {}
    server, url = None, ""

    def shell(code: str) -> None:
        nonlocal server, url
        if "llm serve" in code:
            arguments = ["sh", "-ec", "exec " + code.replace("8000", "0")]
            server = subprocess.Popen(
                arguments,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert server.stdout is not None
            url = server.stdout.readline().split(" at ")[1].split()[0]
            return
        done = subprocess.run(
            ["sh", "-ec", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        printed[code.split("tilewright llm ")[-1].split()[0]] = done.stdout

    try:
        for kind, code in re.findall(r"^```(python|sh)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
            if kind == "python":
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    exec(code.replace("http://127.0.0.1:8000/v1", url), {})
                printed["answer"] = said.getvalue()
                continue
            for line in code.splitlines():
                if line.startswith("python ") and "train_small_model.py" in line:
                    assert (ROOT / line.split()[1].removeprefix("$TILEWRIGHT/")).exists()
                else:
                    shell(line)
    finally:
        if server is not None:
            server.terminate()
            server.communicate()
    assert server is not None and server.returncode == 0
    return printed


def test_readme(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().split("## Language models")[1].split("\n## ")[0]
    assert "python examples/train_small_model.py" in section
    printed = run(section.replace("cp -r examples/", "cp -r $TILEWRIGHT/examples/"), tmp_path)
    assert printed["chat"].strip() and printed["answer"].strip()  # the answers are drawn: any length


def test_quickstart(tmp_path: Path) -> None:
    (client,) = (
        code for kind, code, _ in code_blocks((DOCS / "llm/serving.md").read_text()) if kind == "python"
    )
    client = client.replace('model="model"', 'model="small"')
    printed = run((DOCS / "llm/quickstart.md").read_text() + f"\n```python\n{client}```\n", tmp_path)
    before, after = (
        float(
            next(line for line in printed["convert"].splitlines() if line.strip().startswith(name)).split()[
                at
            ]
        )
        for name, at in (("original", 1), ("int4_g32", 1))
    )
    assert 1 < before < 100 and after < 1.08 * before
    assert "perplexity of 999 tokens" in printed["perplexity"]
    said = printed["chat"].splitlines()  # the compiler's report, then the answer
    assert said[-1] and printed["answer"].strip()
