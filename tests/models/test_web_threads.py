"""The package of `web/` in Node and in Chromium: modules with threads compute what ``cpu`` does."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.web.site import NO_BROWSER, PACKAGE, chromium, served
from tests.zoo.models import MODELS

pytestmark = pytest.mark.skipif(
    not (PACKAGE / "bundle" / "index.js").exists(), reason="needs web/dist: npm ci && npm run build"
)

RUN = """
export async function run({ load, supportedTargets }, sources, request, threads) {
  const model = await load(sources, { threads, worker: false, cache: false });
  const arrays = { int64: BigInt64Array, float32: Float32Array };
  const inputs = Object.fromEntries(
    Object.entries(request).map(([name, { type, shape, data }]) => [
      name,
      { shape, data: type === "int64" ? BigInt64Array.from(data, BigInt) : arrays[type].from(data) },
    ]),
  );
  const results = [];
  for (let k = 0; k < 3; k++) {
    const { data } = Object.values(await model.run(inputs))[0];
    results.push([...data]);
  }
  const found = { threads: model.threads, target: model.metadata.target.name, results };
  await model.dispose();
  return { ...found, supported: await supportedTargets() };
}
"""
NODE = """
import { readFileSync } from "node:fs";
const [sources, request, threads] = JSON.parse(readFileSync(0, "utf8"));
const { run } = await import(process.argv[2]);
console.log(JSON.stringify(await run(await import(process.argv[3]), sources, request, threads)));
"""
WORKER = """
import { run } from "/run.mjs";
onmessage = async ({ data: [sources, request, threads] }) => {
  try {
    postMessage(await run(await import("/tilewright/index.js"), sources, request, threads));
  } catch (error) {
    postMessage({ error: `${error.name}: ${error.message}` });
  }
};
"""
IN_PAGE = """request => new Promise((resolve) => {
  const worker = new Worker("/worker.mjs", { type: "module" });
  worker.onmessage = ({ data }) => { worker.terminate(); resolve(data); };
  worker.onerror = ({ message }) => resolve({ error: message });
  worker.postMessage(request);
})"""
Runner = Callable[[dict[str, str], dict[str, Any], int], dict[str, Any]]


def mlp() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).eval()
    return model, {"x": torch.randn(70, 64)}, {}


def cnn() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16, padding=1)]
    return nn.Sequential(*layers, nn.AvgPool2d(2)).eval(), {"x": torch.randn(1, 3, 32, 32)}, {}


def lstm() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    import torch

    class Lstm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(32, 64, num_layers=2, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.lstm(x)[0]

    torch.manual_seed(0)
    return Lstm().eval(), {"x": torch.randn(2, 12, 32)}, {}


def dynamic_bert() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    zoo = MODELS["bert"]
    return zoo.onnx_model("tiny", dynamic=True), zoo.inputs("tiny", batch=2, seq=11), {"dims": zoo.dims}


TARGETS = ("wasm32", "wasm32:threads", "wasm32:relaxed+threads")


@pytest.fixture(scope="module", params=[mlp, cnn, lstm, dynamic_bert], ids=lambda f: f.__name__)
def case(request: pytest.FixtureRequest, site: Path) -> tuple[dict[str, str], dict[str, Any], np.ndarray]:
    """Files by targets, inputs, and the result of the target ``cpu``."""
    model, inputs, options = request.param()
    given = model if isinstance(model, Path) else (model, tuple(inputs.values()))
    arguments = (given,) if isinstance(model, Path) else given
    arrays = [x.numpy() for x in inputs.values()]
    library = tw.compile(*arguments, **options)
    files = {}
    for target in TARGETS:
        name = f"{request.param.__name__}-{TARGETS.index(target)}.wasm"
        tw.compile(*arguments, target=target, threads=1, **options).save(site / name, weights="beside")
        files[target] = name
    described = {
        spec.name: {"type": x.dtype.name, "shape": x.shape, "data": x.ravel().tolist()}
        for spec, x in zip(library.inputs, arrays, strict=True)
    }
    return files, described, np.asarray(library(*arrays))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "run.mjs").write_text(RUN)
    (folder / "node.mjs").write_text(NODE)
    (folder / "worker.mjs").write_text(WORKER)
    (folder / "index.html").write_text("<!doctype html>")
    (folder / "tilewright").symlink_to(PACKAGE / "bundle")
    return folder


@pytest.fixture(scope="module")
def node(site: Path) -> Runner:
    if shutil.which("node") is None:
        pytest.skip("needs Node")

    def run(sources: dict[str, str], inputs: dict[str, Any], threads: int) -> dict[str, Any]:
        files = {target: str(site / name) for target, name in sources.items()}
        done = subprocess.run(
            ["node", site / "node.mjs", site / "run.mjs", PACKAGE / "index.js"],
            input=json.dumps([files, inputs, threads]),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    return run


@pytest.fixture(scope="module", params=[True, False], ids=["isolated", "not isolated"])
def page(request: pytest.FixtureRequest, site: Path) -> Iterator[tuple[Runner, bool]]:
    if NO_BROWSER:
        pytest.skip(NO_BROWSER)
    with served(site, isolated=request.param) as address, chromium() as browser:
        opened = browser.new_page()
        opened.goto(address)

        def run(sources: dict[str, str], inputs: dict[str, Any], threads: int) -> dict[str, Any]:
            files = {target: f"/{name}" for target, name in sources.items()}
            result: dict[str, Any] = opened.evaluate(IN_PAGE, [files, inputs, threads])
            assert "error" not in result, result["error"]
            return result

        yield run, request.param


@pytest.mark.parametrize("threads", [1, 2])
def test_in_node(case: tuple[dict[str, str], dict[str, Any], np.ndarray], node: Runner, threads: int) -> None:
    files, inputs, expected = case
    found = node(files, inputs, threads)
    assert found["threads"] == threads
    assert found["target"] == next(t for t in found["supported"] if t in TARGETS)
    for result in found["results"]:
        np.testing.assert_allclose(np.reshape(result, expected.shape), expected, rtol=1e-5, atol=1e-5)
        assert result == found["results"][0]


@pytest.mark.parametrize("threads", [1, 2])
def test_in_chromium(
    case: tuple[dict[str, str], dict[str, Any], np.ndarray], page: tuple[Runner, bool], threads: int
) -> None:
    files, inputs, expected = case
    run, isolated = page
    found = run(files, inputs, threads)
    assert found["threads"] == (threads if isolated else 1)
    assert found["target"] == ("wasm32:relaxed+threads" if isolated else "wasm32")
    for result in found["results"]:
        np.testing.assert_allclose(np.reshape(result, expected.shape), expected, rtol=1e-5, atol=1e-5)


def test_threads_run_alone_where_memory_cannot_be_sent(
    case: tuple[dict[str, str], dict[str, Any], np.ndarray], page: tuple[Runner, bool]
) -> None:
    files, inputs, expected = case
    run, isolated = page
    found = run({"wasm32:threads": files["wasm32:threads"]}, inputs, 2)
    assert (found["target"], found["threads"]) == ("wasm32:threads", 2 if isolated else 1)
    np.testing.assert_allclose(
        np.reshape(found["results"][0], expected.shape), expected, rtol=1e-5, atol=1e-5
    )
