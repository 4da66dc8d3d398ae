"""The examples' common functions: they write a model and a page into a folder, and serve it."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import tilewright as tw
from tilewright.llm.chat_page import page_server

HERE = Path(__file__).parent
TARGETS = ("wasm32:relaxed+threads", "wasm32")
"""The page loads the best that its browser runs: with threads and relaxed SIMD, or with neither."""


def parser(text: str | None) -> argparse.ArgumentParser:
    """The options of both examples."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("-o", "--output", type=Path, default=Path("site"), help="the page's folder")
    made.add_argument("--targets", nargs="*", default=TARGETS, help="such as webgpu (default: %(default)s)")
    made.add_argument("--serve", type=int, metavar="PORT", help="serve the folder to this machine")
    return made


def write_model(
    folder: Path,
    model: Any,
    inputs: Sequence[Any],
    dims: tw.api.compile.DimsArgument,
    targets: Sequence[str],
    **about: Any,
) -> None:
    """Compile a model for each target, and write the files, their weights, and ``model.json``, which the page
    reads: the files by target, and `about`.
    """
    sources = {}
    for target in targets:
        file = "model-" + target.replace(":", "-").replace("+", "-")
        file += ".tar" if target.startswith("webgpu") else ".wasm"
        tw.compile(model, tuple(inputs), target=target, dims=dims).save(folder / file, weights="beside")
        sources[target] = file
    (folder / "model.json").write_text(json.dumps({"sources": sources, **about}))


def write_page(folder: Path, name: str) -> None:
    """Write the page `name`, and the JavaScript that the Python package contains."""
    with resources.as_file(resources.files("tilewright.runtime") / "js") as package:
        shutil.copytree(package, folder / "tilewright", dirs_exist_ok=True)
    shutil.copy(HERE / f"{name}.html", folder / "index.html")
    for file in (f"{name}.js", "style.css"):
        shutil.copy(HERE / file, folder)


def serve(folder: Path, port: int) -> None:
    """Serve a folder at ``http://localhost:PORT`` until the process is interrupted."""
    with page_server(folder, port=port) as server:
        print(f"open http://localhost:{port}")
        server.serve_forever()
