"""The npm package, as `npm pack` makes it: in Node and Deno, with TypeScript, and bundled by esbuild."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn

from .site import NO_BROWSER, PACKAGE, chromium, served

WEB = PACKAGE.parent
TOOLS = WEB / "node_modules" / ".bin"
pytestmark = [
    pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm"),
    pytest.mark.skipif(
        not (PACKAGE / "index.js").exists(), reason="needs the package: npm ci && npm run build in web/"
    ),
]
PROGRAM = """
import { load, tensor, type Tensor, type Progress } from "tilewright";
import { loadChatModel, modelInfo, type ChatMessage } from "tilewright/llm";

export async function scores(file: string): Promise<number[]> {
  const model = await load<{ inputs: "x"; outputs: "output" }>(file, {
    onProgress: ({ loaded, total }: Progress) => void (loaded / total),
  });
  const x: Tensor = tensor(new Float32Array(6), [2, 3]);
  const { output } = await model.run({ x });
  await model.dispose();
  return [...(output.data as Float32Array)];
}

export async function* chat(folder: string, messages: ChatMessage[]): AsyncGenerator<string> {
  const { memory } = await modelInfo(folder);
  if (memory.weights > 1e9) throw new RangeError("too large");
  const model = await loadChatModel(folder, { cache: false });
  for await (const { choices } of await model.chat.completions.create({ messages, stream: true }))
    yield choices[0]?.delta.content ?? "";
}
"""
MISTAKE = 'import { load } from "tilewright";\nexport const model = await load(5);\n'
RUN = """
import { load, tensor } from "tilewright";

export async function run(file, options) {
  const model = await load(file, options);
  const { output } = await model.run({ x: tensor(new Float32Array([1, 2, 3, 4, 5, 6]), [2, 3]) });
  await model.dispose();
  return [...output.data];
}
"""


@pytest.fixture(scope="module")
def consumer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed, and its dependencies are those of `web/`."""
    folder = tmp_path_factory.mktemp("consumer")
    pack = ["npm", "pack", "--silent", "--pack-destination", str(folder)]
    packed = subprocess.run(pack, cwd=WEB, check=True, capture_output=True, text=True).stdout.strip()
    shutil.unpack_archive(folder / packed, folder / "unpacked", "gztar", filter="data")
    modules = folder / "node_modules"
    modules.mkdir()
    (folder / "unpacked" / "package").rename(modules / "tilewright")
    for name in ("hash-wasm", "@huggingface", "@mlc-ai", "@webgpu", "@types"):
        (modules / name).symlink_to(WEB / "node_modules" / name)
    (folder / "package.json").write_text(json.dumps({"type": "module", "dependencies": {"tilewright": "*"}}))
    (folder / "run.js").write_text(RUN)
    model = nn.Linear(3, 2)
    nn.seed(0)
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    np.save(folder / "expected.npy", tw.compile(model, (x,))(x))
    tw.compile(model, (x,), target="wasm32").save(folder / "model.wasm", weights="beside")
    return folder


def check(text: str, consumer: Path) -> None:
    np.testing.assert_allclose(json.loads(text), np.load(consumer / "expected.npy").ravel(), rtol=1e-5)


@pytest.mark.parametrize("engine", ["node", "deno"])
def test_an_installed_package_runs_a_model(consumer: Path, engine: str) -> None:
    if shutil.which(engine) is None:
        pytest.skip(f"needs {engine}")
    options = ["run", "--allow-read", "--no-prompt"] if engine == "deno" else []
    (consumer / "main.js").write_text(
        'import { run } from "./run.js";\nimport { modelInfo } from "tilewright/llm";\n'
        'if (typeof modelInfo !== "function") throw new Error("tilewright/llm exports no modelInfo");\n'
        'console.log(JSON.stringify(await run("model.wasm", { worker: true })));\n'
    )
    done = subprocess.run(
        [engine, *options, "main.js"], cwd=consumer, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    check(done.stdout, consumer)


def test_types_are_right_in_strict_programs(consumer: Path) -> None:
    (consumer / "program.ts").write_text(PROGRAM)
    (consumer / "mistake.ts").write_text(MISTAKE)
    options = "--noEmit --strict --exactOptionalPropertyTypes --noUncheckedIndexedAccess --target es2022"
    libraries = "--module nodenext --lib es2023,esnext.disposable,dom --types @webgpu/types"
    done = subprocess.run(
        [TOOLS / "tsc", *options.split(), *libraries.split(), "program.ts", "mistake.ts"],
        cwd=consumer,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line[:1].strip()]
    assert len(lines) == 1 and lines[0].startswith("mistake.ts(2,"), done.stdout


@pytest.fixture(scope="module")
def bundled(consumer: Path) -> Path:
    """The program and the workers of the package, bundled for a page."""
    (consumer / "page.js").write_text('import { run } from "./run.js";\nglobalThis.run = run;\n')
    entries = ["page=page.js", *(f"{name}=tilewright/{name}" for name in ("worker", "thread"))]
    options = ["--bundle", "--splitting", "--format=esm", "--minify", "--metafile=meta.json"]
    platform = ["--external:node:*", "--outdir=site", "--log-level=warning"]
    subprocess.run([TOOLS / "esbuild", *entries, *options, *platform], cwd=consumer, check=True, timeout=60)
    return consumer / "site"


def test_a_bundle_that_loads_models_has_no_engine_of_language_models(bundled: Path) -> None:
    read = json.loads((bundled.parent / "meta.json").read_text())["inputs"]
    packages = [name.rpartition("node_modules/")[2] for name in read]
    assert not [name for name in packages if "huggingface" in name or "mlc-ai" in name or "llm" in name]
    scripts = [*bundled.glob("*.js")]
    assert {"page.js", "worker.js", "thread.js"} <= {script.name for script in scripts}
    assert 10_000 < sum(len(gzip.compress(script.read_bytes())) for script in scripts) < 40_000


@pytest.mark.slow
@pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER)
def test_a_bundled_page_runs_a_model_in_a_worker(consumer: Path, bundled: Path) -> None:
    for file in consumer.glob("model.*"):
        shutil.copy(file, bundled)
    (bundled / "index.html").write_text('<!doctype html><script type="module" src="page.js"></script>')
    with served(bundled) as site, chromium() as browser:
        page = browser.new_page()
        page.goto(site)
        check(page.evaluate("run('model.wasm', {}).then(JSON.stringify)"), consumer)
        (bundled / "worker.js").unlink()
        page.reload()
        assert "worker.js cannot be loaded" in page.evaluate(
            "run('model.wasm').catch(({message}) => message)"
        )
