"""`python -m bench.web --site FOLDER --ort FOLDER` compares WebAssembly with ONNX Runtime Web in Chromium.

Both engines run in one worker of one page and take turns. `FOLDER` of ``--ort`` is the folder ``dist`` of the
npm package ``onnxruntime-web``; the package of ``web/`` must have been built (``npm run build``). Models are
compiled into the site's folder first, unless they are there.

With ``--record`` the times go to ``bench/results/web-wasm.md`` and ``.json``.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import http.server
import json
import math
import platform
import shutil
import statistics
import threading
from pathlib import Path
from typing import Any

from .prepare import MODELS, prepare

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ORT = "ort.wasm.min.mjs"
RESULTS = ROOT / "bench" / "results" / "web-wasm"


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves a folder to pages that are isolated, so that they may share memory."""

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

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def link(site: Path, name: str, target: Path) -> None:
    """Make `target` appear as `name` in the site."""
    place = site / name
    place.unlink(missing_ok=True)
    place.symlink_to(target.resolve())


def measure(browser: Any, port: int, model: str, threads: int, rounds: int, repetitions: int) -> Any:
    """The times of both engines in milliseconds, and their largest differences from the target ``cpu``."""
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{port}/index.html")
    run = f"{model},{threads},{rounds},{repetitions},{ORT}"
    result = page.evaluate(
        """run => new Promise((resolve, reject) => {
          const worker = new Worker("/page.js?run=" + run, { type: "module" });
          worker.onmessage = ({ data }) => { worker.terminate(); resolve(data); };
          worker.onerror = ({ message }) => reject(new Error(message));
        })""",
        run,
    )
    page.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, required=True, help="folder for the files of the page")
    parser.add_argument("--ort", type=Path, required=True, help="dist of onnxruntime-web")
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--again", action="store_true", help="compile the models again")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    site: Path = arguments.site
    for model in arguments.models:
        if arguments.again or not (site / "models" / model / "inputs.json").exists():
            prepare(model, site / "models" / model)
    (site / "index.html").write_text("<!doctype html><title>Benchmark</title>")
    shutil.copy(HERE / "page.js", site / "page.js")
    link(site, "tilewright", ROOT / "web" / "dist" / "bundle")
    link(site, "ort", arguments.ort)
    rows = list(run(site, arguments))
    ratios = [row["ratio"] for row in rows]
    print(f"geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.2f}, least {min(ratios):.2f}")
    if arguments.record:
        record(rows, arguments.ort)


def run(site: Path, arguments: argparse.Namespace) -> Any:
    """Measure all models, and yield a row for each and each number of threads."""
    from playwright.sync_api import sync_playwright

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as tools:
        browser = tools.chromium.launch(
            executable_path=shutil.which("chromium-headless-shell"), args=["--no-sandbox"]
        )
        for model in arguments.models:
            for threads in arguments.threads:
                found = measure(
                    browser, server.server_port, model, threads, arguments.rounds, arguments.repetitions
                )
                times = {key: statistics.median(value) for key, value in found["milliseconds"].items()}
                row = {
                    "model": model,
                    "threads": threads,
                    "browser": browser.version,
                    "milliseconds": times,
                    "errors": found["errors"],
                    "ratio": times["onnxruntime"] / times["tilewright"],
                }
                print(
                    f"{model:14} {threads} threads: ours {times['tilewright']:8.2f} ms, ONNX Runtime Web "
                    f"{times['onnxruntime']:8.2f} ms, ratio {row['ratio']:.2f}, errors {found['errors']}",
                    flush=True,
                )
                yield row
        browser.close()


def record(rows: list[dict[str, Any]], ort: Path) -> None:
    """Write the rows to `RESULTS`, as Markdown and JSON."""
    version = json.loads((ort.parent / "package.json").read_text())["version"]
    about = {
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "browser": f"Chromium {rows[0]['browser']}",
        "onnxruntime-web": version,
    }
    RESULTS.with_suffix(".json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    ratios = [row["ratio"] for row in rows]
    lines = [
        "# WebAssembly in a browser",
        "",
        f"Measured {about['date']} on two cores of {about['processor']} in headless {about['browser']},",
        f"against ONNX Runtime Web {version}; both engines in one worker, in turns, batch 1, float32.",
        "Medians. Command: `python -m bench.web --site FOLDER --ort FOLDER --record`.",
        "",
        "| model | threads | Tilewright, ms | ONNX Runtime Web, ms | ratio |",
        "|---|---|---|---|---|",
        *(
            f"| {row['model']} | {row['threads']} | {row['milliseconds']['tilewright']:.2f} | "
            f"{row['milliseconds']['onnxruntime']:.2f} | {row['ratio']:.2f} |"
            for row in rows
        ),
        "",
        f"Geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.2f}, least {min(ratios):.2f}.",
    ]
    RESULTS.with_suffix(".md").write_text("\n".join(lines) + "\n")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
