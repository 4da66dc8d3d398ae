"""Models in headless Chromium, Node and Deno give what PyTorch gives.

    python -m tests.web.conformance
    python -m tests.web.conformance --models minilm bert --places chromium

Compiles each model for WebAssembly and WebGPU, loads the files with the package of `web/`, which must have
been built, and compares its results with eager PyTorch on the CPU. Chromium runs WebGPU by SwiftShader. Text
models have a dynamic batch and a dynamic number of tokens, and run with several. Outcomes are written to
``conformance.json`` after each model; those of other models and places stay as they were.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import json
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tests.zoo.models import MINILM, MODELS, ZooModel

from .site import PACKAGE, WEBGPU, chromium, served

DATA = Path(__file__).with_suffix(".json")
SCRIPT = Path(__file__).with_suffix(".mjs")
TOLERANCE = 1e-5
"""The most that a result may differ from PyTorch's, as a share of the greatest magnitude in it."""
SECONDS = 280.0
"""Seconds that loading and running a model may take."""
SIMULATED = 1e11
"""The most operations, 2 for each weight and token, of a case that runs by SwiftShader, which computes about
half a thousand million a second.
"""
UNSUPPORTED = "not supported by this engine"
PROCESS = """
import { readFile } from "node:fs/promises";
import process from "node:process";
import { pathToFileURL } from "node:url";
const [script, entry, folder, target, source, threads, cases] = process.argv.slice(2);
const { run } = await import(pathToFileURL(script));
const read = async (file) => new Uint8Array(await readFile(`${folder}/${file}`)).buffer;
const found = await run(
  await import(pathToFileURL(entry)), target, `${folder}/${source}`, Number(threads), JSON.parse(cases),
  read);
console.log(JSON.stringify(found));
"""
PAGE = """async ([target, source, threads, cases]) => {
  const { run } = await import("/page.mjs");
  const read = async (file) => (await fetch(`/${file}`)).arrayBuffer();
  return run(await import("/tilewright/index.js"), target, `/${source}`, threads, cases, read);
}"""


@dataclass(frozen=True)
class Setting:
    """A target, with the number of threads that run its module."""

    target: str
    threads: int = 1

    @property
    def name(self) -> str:
        if self.target == "webgpu":
            return self.target
        return f"{self.target}, {self.threads} thread{'s' * (self.threads > 1)}"

    @property
    def file(self) -> str:
        stem = self.target.replace(":", "-").replace("+", "-")
        return stem + (".tar" if self.target == "webgpu" else ".wasm")


WASM = (
    Setting("wasm32"),
    Setting("wasm32:relaxed"),
    Setting("wasm32:threads"),
    Setting("wasm32:threads", 2),
    Setting("wasm32:relaxed+threads", 2),
)
SETTINGS = {"chromium": (*WASM, Setting("webgpu")), "node": WASM, "deno": WASM}
"""The settings of each place."""
COMMANDS = {"node": ("node",), "deno": ("deno", "run", "--allow-read", "--no-prompt")}

TEXTS = ((1, 2), (1, 16), (3, 37), (8, 128))
"""Batches and numbers of tokens: the least, the greatest, and two between them."""
SIZES: dict[str, Sequence[tuple[int, int]]] = {
    "minilm": TEXTS,
    "bert": TEXTS,
    "resnet50": ((1, 0), (2, 0)),
    "mobilenet_v2": ((1, 0), (2, 0)),
    "whisper-encoder": ((1, 0),),
}
"""Models of the zoo, each with the sizes that one artifact runs. Images have a dynamic batch."""

Case = tuple[dict[str, np.ndarray], np.ndarray]
"""Inputs by name, and PyTorch's result."""
Runner = Callable[[Setting, list[dict[str, Any]]], dict[str, Any] | None]
"""Runs ``conformance.mjs`` with a setting and cases, and returns what it returns."""


def zoo(name: str) -> ZooModel:
    return MINILM if name == "minilm" else MODELS[name]


def cases_of(name: str, module: Any, size: str, sizes: Sequence[tuple[int, int]]) -> Iterator[Case]:
    """The inputs of a model of the zoo at `sizes`, and PyTorch's results."""
    import torch

    for batch, seq in sizes:
        inputs = zoo(name).inputs(size, batch=batch, seq=seq, seed=batch + seq)
        with torch.no_grad():
            result = module(*inputs.values()).numpy()
        yield {key: value.numpy() for key, value in inputs.items()}, result


def write_inputs(folder: Path, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Write arrays as files of raw elements, and return their description for ``conformance.mjs``."""
    described = []
    for k, (inputs, _) in enumerate(cases):
        entries = {}
        for name, array in inputs.items():
            file = f"input-{k}-{name}.bin"
            (folder / file).write_bytes(array.tobytes())
            entries[name] = {"dtype": array.dtype.name, "shape": array.shape, "file": file}
        described.append(entries)
    return described


def difference(found: Sequence[dict[str, Any]], expected: np.ndarray) -> float:
    """The greatest difference of the only output, divided by the greatest magnitude; infinite if the shape
    is another.
    """
    (output,) = found
    if tuple(output["shape"]) != expected.shape:
        return float("inf")
    array = np.frombuffer(base64.b64decode(output["data"]), expected.dtype).reshape(expected.shape)
    return float(np.abs(array - expected).max() / np.abs(expected).max())


def outcome(run: Runner, setting: Setting, cases: Sequence[Case], described: list[dict[str, Any]]) -> Any:
    """The differences of a model's results in a setting, or the text of the error."""
    start = time.monotonic()
    try:
        found = run(setting, described)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return {"outcome": str(error)}
    if found is None:
        return {"outcome": UNSUPPORTED}
    if (found["target"], found["threads"]) != (setting.target.partition(":")[0], setting.threads):
        return {"outcome": f"ran by {found['target']} on {found['threads']} threads"}
    differences = [
        difference(result, expected) for result, (_, expected) in zip(found["results"], cases, strict=True)
    ]
    return {
        "outcome": "right" if max(differences) <= TOLERANCE else "wrong",
        "differences": [float(f"{d:.1e}") for d in differences],
        "seconds": round(time.monotonic() - start, 1),
    }


def in_process(place: str, folder: Path) -> Runner:
    """A function that runs files of `folder` in Node or Deno."""
    (folder / "run.mjs").write_text(PROCESS)

    def run(setting: Setting, described: list[dict[str, Any]]) -> dict[str, Any] | None:
        entry = PACKAGE / ("index.js" if place == "node" else "bundle/index.js")
        arguments = [SCRIPT, entry, folder, setting.target, setting.file, setting.threads]
        command = [*COMMANDS[place], folder / "run.mjs", *arguments, json.dumps(described)]
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-500:])
        found: dict[str, Any] | None = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


def in_page(page: Any) -> Runner:
    """A function that runs files of the folder that is served, in a page of it."""
    from playwright.sync_api import Error

    def run(setting: Setting, described: list[dict[str, Any]]) -> dict[str, Any] | None:
        page.set_default_timeout(SECONDS * 1e3)
        page.reload()
        try:
            found: dict[str, Any] | None = page.evaluate(
                PAGE, [setting.target, setting.file, setting.threads, described]
            )
        except Error as error:
            raise RuntimeError(error.message[:500]) from None
        return found

    return run


@contextmanager
def opened(place: str, folder: Path) -> Iterator[tuple[Runner, str]]:
    """Yield the function that runs files of `folder` in a place, and the name and version of the place."""
    if place != "chromium":
        done = subprocess.run([place, "--version"], capture_output=True, text=True, check=True)
        yield (
            in_process(place, folder),
            f"{place.title()} {done.stdout.split()[-1 if place == 'node' else 1]}",
        )
        return
    shutil.copy(SCRIPT, folder / "page.mjs")
    (folder / "index.html").write_text("<!doctype html><title>Conformance</title>")
    if not (folder / "tilewright").exists():
        (folder / "tilewright").symlink_to(PACKAGE / "bundle")
    with served(folder) as site, chromium(*WEBGPU) as browser:
        page = browser.new_page()
        page.goto(site)
        yield in_page(page), f"Chromium {browser.version}"


def compile_for(setting: Setting, module: Any, inputs: tuple[Any, ...], dims: Any, folder: Path) -> None:
    """Write the artifact of a setting, and its weights beside it, unless they are there."""
    if not (folder / setting.file).exists():
        library = tw.compile(module, inputs, dims=dims, target=setting.target, threads=1)
        library.save(folder / setting.file, weights="beside")


def check(
    name: str,
    places: Mapping[str, Sequence[Setting]],
    folder: Path,
    size: str = "full",
) -> dict[str, Any]:
    """The outcomes of a model by place and setting. `size` is one of `ZooModel.torch_model`."""
    model, sizes = zoo(name), SIZES[name]
    module = model.torch_model(size)
    cases = list(cases_of(name, module, size, sizes))
    described = write_inputs(folder, cases)
    example = tuple(model.inputs(size, batch=2, seq=16).values())
    weights = sum(p.numel() for p in module.parameters())
    few = sum(2 * weights * batch * seq <= SIMULATED for batch, seq in sizes)
    found: dict[str, Any] = {}
    for place, settings in places.items():
        with opened(place, folder) as (run, version):
            outcomes = {}
            for setting in settings:
                compile_for(setting, module, example, model.dims, folder)
                count = few if setting.target == "webgpu" else len(cases)
                outcomes[setting.name] = outcome(run, setting, cases[:count], described[:count])
                print(f"{name}, {version}, {setting.name}: {outcomes[setting.name]}", flush=True)
        found[place] = {"sizes": [f"{b}x{s}" if s else str(b) for b, s in sizes], **outcomes}
        found[place] |= {"date": datetime.date.today().isoformat(), "version": version, "machine": machine()}
    return found


def machine() -> str:
    """The processor and the number of cores."""
    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {len(names)} cores"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--places", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--folder", type=Path, help="keep the compiled models here")
    options = parser.parse_args()
    document = json.loads(DATA.read_text()) if DATA.exists() else {}
    failed = False
    places = {place: SETTINGS[place] for place in options.places}
    kept = nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory()
    with kept as root:
        for name in options.models:
            folder = Path(root) / name
            folder.mkdir(parents=True, exist_ok=True)
            for place, outcomes in check(name, places, folder).items():
                document.setdefault(name, {})[place] = outcomes
                failed |= any(
                    value["outcome"] not in ("right", UNSUPPORTED)
                    for value in outcomes.values()
                    if isinstance(value, dict)
                )
            DATA.write_text(json.dumps({**document, "tolerance": TOLERANCE}, indent=1, sort_keys=True) + "\n")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
