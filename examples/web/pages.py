"""What the examples of pages share: they write a model and a page into a folder, and serve it."""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tilewright as tw

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "web"
TARGETS = ("wasm32:relaxed+threads", "wasm32")
"""The page loads the best that its browser runs: with threads and relaxed SIMD, or with neither."""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files, with the headers that let pages share memory with their threads."""

    extensions_map = {
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


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
        file += ".tar" if target == "webgpu" else ".wasm"
        tw.compile(model, tuple(inputs), target=target, dims=dims).save(folder / file, weights="beside")
        sources[target] = file
    (folder / "model.json").write_text(json.dumps({"sources": sources, **about}))


def write_page(folder: Path, name: str, modules: Mapping[str, str] = {}) -> None:
    """Write the page `name`, the package ``tilewright``, and `modules`: files below ``web/node_modules`` by
    their names in the folder.

    Raises:
        SystemExit: the package has not been built.
    """
    bundle = PACKAGE / "dist" / "bundle"
    if not (bundle / "index.js").exists():
        raise SystemExit(f"{bundle} is missing: run `npm ci && npm run build` in {PACKAGE}")
    shutil.copytree(bundle, folder / "tilewright", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.map"))
    shutil.copy(HERE / f"{name}.html", folder / "index.html")
    for file in (f"{name}.js", "style.css"):
        shutil.copy(HERE / file, folder)
    for file, source in modules.items():
        shutil.copy(PACKAGE / "node_modules" / source, folder / file)


def serve(folder: Path, port: int) -> None:
    """Serve a folder at ``http://localhost:PORT`` until the process is interrupted."""
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"open http://localhost:{port}")
        server.serve_forever()
