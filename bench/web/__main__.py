"""`python -m bench.web --site FOLDER --ort FOLDER` compares with ONNX Runtime Web in headless Chromium.

Both engines run in one worker of one page and take turns: WebAssembly, or with ``--engine webgpu`` WebGPU on
Chromium's software driver. `FOLDER` of ``--ort`` is the folder ``dist`` of the npm package
``onnxruntime-web``; the package of ``web/`` must have been built (``npm run build``). Models are compiled
into the site's folder first, unless they are there.

With ``--record`` the times go to ``bench/results/web-ENGINE.md`` and ``.json``. With ``--profile`` the
kernels of both engines on WebGPU are timed instead, each alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.web.site import PACKAGE, WEBGPU, chromium, served

from .prepare import MODELS, TARGETS, file_of, prepare
from .report import record, summary

HERE = Path(__file__).parent


def link(site: Path, name: str, target: Path) -> None:
    """Make `target` appear as `name` in the site."""
    place = site / name
    place.unlink(missing_ok=True)
    place.symlink_to(target.resolve())


@contextmanager
def opened(site: Path, engine: str) -> Iterator[tuple[Any, str]]:
    """A browser, and the address of the site for it."""
    with served(site) as address, chromium(*(WEBGPU if engine == "webgpu" else ())) as browser:
        yield browser, address


def in_worker(browser: Any, address: str, script: str, run: dict[str, Any]) -> Any:
    """Return the message that the worker `script` posts, which gets `run` as the parameter of that name."""
    page = browser.new_page()
    page.set_default_timeout(0)
    page.goto(f"{address}/index.html")
    result = page.evaluate(
        """file => new Promise((resolve, reject) => {
          const worker = new Worker(file, { type: "module" });
          worker.onmessage = ({ data }) => { worker.terminate(); resolve(data); };
          worker.onerror = ({ message }) => reject(new Error(message));
        })""",
        f"/{script}?run={quote(json.dumps(run))}",
    )
    page.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--site", type=Path, required=True, help="folder for the files of the page")
    parser.add_argument("--ort", type=Path, required=True, help="dist of onnxruntime-web")
    parser.add_argument("--engine", choices=[*TARGETS], default="wasm")
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--threads", nargs="*", type=int, help="of WebAssembly (default: 1 2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repetitions", type=int, help="runs in a turn (default: 10, WebGPU 1)")
    parser.add_argument("--again", action="store_true", help="compile the models again")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--profile", action="store_true", help="time the kernels of WebGPU")
    arguments = parser.parse_args()
    site, engine = arguments.site, arguments.engine
    for model in arguments.models:
        folder = site / engine / model
        if arguments.again or not (folder / file_of(TARGETS[engine][0])).exists():
            prepare(model, folder, engine)
    (site / "index.html").write_text("<!doctype html><title>Benchmark</title>")
    for script in ("page.js", "profile.js"):
        shutil.copy(HERE / script, site / script)
    link(site, "tilewright", PACKAGE / "bundle")
    link(site, "ort", arguments.ort)
    if arguments.profile:
        profile(site, arguments.models)
        return
    rows = list(measured(site, arguments))
    print(summary(rows))
    if arguments.record:
        record(rows, engine, arguments.ort)


def measured(site: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure all models; a row for each and each number of threads, with median times in milliseconds and
    the largest differences from the target ``cpu``.
    """
    engine = arguments.engine
    threads = (arguments.threads or [1, 2]) if engine == "wasm" else [1]
    repetitions = arguments.repetitions or (10 if engine == "wasm" else 1)
    with opened(site, engine) as (browser, address):
        for model, number in ((m, n) for m in arguments.models for n in threads):
            run = {"model": model, "engine": engine, "threads": number, "rounds": arguments.rounds}
            found = in_worker(browser, address, "page.js", {**run, "repetitions": repetitions})
            times = {key: statistics.median(value) for key, value in found["milliseconds"].items()}
            row = {
                "model": model,
                **({"threads": number} if engine == "wasm" else {}),
                "browser": browser.version,
                "milliseconds": times,
                "errors": found["errors"],
                "ratio": times["onnxruntime"] / times["tilewright"],
            }
            print(
                f"{model:14} {number} threads: ours {times['tilewright']:8.2f} ms, ONNX Runtime Web "
                f"{times['onnxruntime']:8.2f} ms, ratio {row['ratio']:.2f}, errors {found['errors']}",
                flush=True,
            )
            yield row


def profile(site: Path, models: list[str]) -> None:
    """Print the time of each kernel of both engines on WebGPU."""
    with opened(site, "webgpu") as (browser, address):
        for model in models:
            for engine, kernels in in_worker(browser, address, "profile.js", {"model": model}).items():
                total = sum(kernel["milliseconds"] for kernel in kernels)
                count = sum(kernel["count"] for kernel in kernels)
                print(f"{model}, {engine}: {total:.1f} ms in {count} dispatches")
                for kernel in kernels[:40]:
                    grid = " ".join(map(str, kernel["grid"]))
                    print(f"  {kernel['milliseconds']:9.2f} ms {kernel['count']:4} {kernel['name']} ({grid})")


if __name__ == "__main__":
    main()
