"""The Python package contains what `npm run bundle` in `web/` makes of the sources."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import tilewright as tw

WEB = Path(__file__).parents[2] / "web"
BUNDLE = Path(tw.__file__).parent / "runtime" / "js"


@pytest.mark.skipif(not (WEB / "node_modules" / "esbuild").exists(), reason="needs npm ci in web/")
def test_the_bundle_is_current(tmp_path: Path) -> None:
    built = tmp_path / "js"
    subprocess.run(["node", "scripts/build.mjs", str(built)], cwd=WEB, check=True, capture_output=True)
    contents = [
        {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        for folder in (built, BUNDLE)
    ]
    changed = [name for name, content in contents[0].items() if contents[1].get(name) != content]
    assert not changed and contents[0].keys() == contents[1].keys(), (
        f"run 'npm run bundle' in web/ and commit {BUNDLE}: {changed}"
    )


def test_the_page_has_its_files() -> None:
    names = json.loads((BUNDLE / "page.json").read_text())
    assert {"chat.js", "chat-style.css", "llm-worker.js", "thread.js"} <= set(names)
    assert all((BUNDLE / name).is_file() for name in names)
    assert sum((BUNDLE / name).stat().st_size for name in names) < 400_000, "without the library of grammars"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_node_loads_the_bundle() -> None:
    script = f"const m = await import('{BUNDLE}/index.js'); console.log(typeof m.load);"
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "function"
