"""The memory of language models in pages: as told before loading, and the same after many chats."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.llm.small_library import llama
from tests.llm.small_tokenizer import tokenizer
from tilewright.llm.library import LibraryOptions, compile_library
from tilewright.llm.web_folder import save_web_folder
from tilewright.llm.weights import open_checkpoint

from .site import NO_BROWSER, PACKAGE, WEBGPU, chromium, served

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="needs Node"),
    pytest.mark.skipif(
        not (PACKAGE / "llm.js").exists(), reason="needs the package: npm ci && npm run build in web/"
    ),
]
CONTEXT = 512
RUN = """
export async function run({ loadChatModel, modelInfo }, folder, context, bytes) {
  const { memory } = await modelInfo(folder);
  const model = await loadChatModel(folder, { worker: false, cache: false });
  const prompt = (length, first) => Array.from({ length }, (_, k) => 3 + ((first + 7 * k) % 60));
  const complete = (prompt, max_tokens, signal, more = {}) =>
    model.completions.create({ prompt, max_tokens, seed: 1, ignore_eos: true, ...more }, { signal });

  // The most that requests can need.
  const adjusted = { top_p: 0.9, presence_penalty: 0.1 };
  const most = [{ top_p: 0.9 }, adjusted, { logprobs: 2 }, { temperature: 0 }];
  await Promise.all(most.map((more, k) => complete(prompt(context - 50, k), 40, undefined, more)));
  await Promise.all(most.map((_, k) => complete(prompt(context - 50, k), 40, undefined, adjusted)));
  await complete([...prompt(context - 70, 0), 3], 2); // continues in the middle of a page
  await model.embeddings.create({ input: "x".repeat(context / 2) });
  const first = bytes();
  for (let k = 0; k < 20; k++) {
    let history = prompt(5 + 7 * k, 11 * k);
    for (let turn = 0; turn < 1 + (k % 3); turn++) {
      const controller = new AbortController();
      if ((k + turn) % 3 === 0) setTimeout(() => controller.abort(), k);
      await complete(history, 10 + k, controller.signal, { temperature: k % 2 }).catch((error) => {
        if (error.name !== "AbortError") throw error;
      });
      history = [...history, ...prompt(10 + k, turn)];
    }
  }
  await new Promise((resolve) => setTimeout(resolve, 100)); // for the last abort
  const last = bytes();
  const statistics = await model.statistics();
  return { memory, first, last, statistics, complete, dispose: () => model.dispose() };
}
"""
NODE = """
const memories = [];
const instantiate = WebAssembly.instantiate;
WebAssembly.instantiate = async (...given) => {
  const made = await instantiate(...given);
  const { exports } = made.instance ?? made;
  if (exports.tw_create) memories.push(exports.memory);
  return made;
};
const [, , script, entry, folder, context] = process.argv;
const { run } = await import(script);
const found = await run(await import(entry), folder, Number(context), () => memories[0].buffer.byteLength);
console.log(JSON.stringify(found));
process.exit(0);
"""
PAGE = """async (context) => {
  const counts = { submissions: 0, reads: 0 };
  const buffers = new Map();
  const { createBuffer } = GPUDevice.prototype;
  GPUDevice.prototype.createBuffer = function (description) {
    const made = createBuffer.call(this, description);
    buffers.set(made, made.size);
    return made;
  };
  const { destroy, mapAsync } = GPUBuffer.prototype;
  GPUBuffer.prototype.destroy = function () {
    buffers.delete(this);
    destroy.call(this);
  };
  GPUBuffer.prototype.mapAsync = function (...given) {
    counts.reads++;
    return mapAsync.apply(this, given);
  };
  const { submit } = GPUQueue.prototype;
  GPUQueue.prototype.submit = function (commands) {
    counts.submissions++;
    submit.call(this, commands);
  };
  const live = [];
  const bytes = () => {
    live.push(buffers.size);
    return [...buffers.values()].reduce((sum, size) => sum + size, 0);
  };
  const { run } = await import("/run.mjs");
  const found = await run(await import("/tilewright/llm.js"), "/model/", context, bytes);
  const ways = [{ temperature: 0 }, { top_k: 20 }, { top_k: 9, repetition_penalty: 1.1 }, { logprobs: 2 }];
  const prompt = (way) => Array(20).fill(80 + way); // has no beginning in common with others
  const counted = async (act) => {
    const { submissions, reads } = counts;
    await act();
    return [counts.submissions - submissions, counts.reads - reads];
  };
  const waits = [];
  for (const [k, way] of ways.entries())
    waits.push(await counted(() => found.complete(prompt(k), 12, undefined, way)));
  waits.push(await counted(() => Promise.all(
    ways.map((way, k) => found.complete(prompt(4 + k), 12, undefined, way)))));
  await found.dispose();
  return { ...found, waits, kept: bytes(), live };
}"""


def compiled(folder: Path, target: str) -> Path:
    """Write a small model's folder for pages."""
    source = folder / "checkpoint"
    llama(tokenizer().vocabulary).save_pretrained(source)
    tokenizer().backend.save(str(source / "tokenizer.json"))
    (source / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    checkpoint = open_checkpoint(source)
    library = compile_library(checkpoint, LibraryOptions(context=CONTEXT, max_batch=4), target=target)
    (folder / "run.mjs").write_text(RUN)
    return save_web_folder(library, checkpoint, folder / "model", "small").parent


def told_by(found: dict[str, Any]) -> int:
    """Assert that no request is left; returns the bytes that were told."""
    statistics = found["statistics"]
    assert statistics["running"] == statistics["waiting"] == statistics["pagesUsed"] == 0
    return sum(found["memory"].values())


def test_conversations_keep_the_memory_that_was_told(tmp_path: Path) -> None:
    model = compiled(tmp_path, "wasm32")
    (tmp_path / "node.mjs").write_text(NODE)
    arguments = ["node", tmp_path / "node.mjs", tmp_path / "run.mjs", PACKAGE / "llm.js", model, str(CONTEXT)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    told = told_by(found)
    assert found["last"] == found["first"]
    # Beside what is told there are the code's tables, a stack, inputs and results.
    assert 0.8 * told < found["last"] < told + 4_000_000, (found, told)


@pytest.mark.slow
@pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER)
def test_webgpu_keeps_the_memory_that_was_told_and_waits_once_a_step(tmp_path: Path) -> None:
    compiled(tmp_path, "webgpu")
    shutil.copytree(PACKAGE / "bundle", tmp_path / "tilewright")
    (tmp_path / "index.html").write_text("<!doctype html><title>test</title>")
    with served(tmp_path) as site, chromium(*WEBGPU) as browser:
        page = browser.new_page()
        page.set_default_timeout(240_000)
        page.goto(site)
        found = page.evaluate(PAGE, CONTEXT)
    told = told_by(found)
    assert found["last"] == found["first"] and found["live"][1] == found["live"][0]
    assert found["kept"] == 0
    # Beside what is told there are inputs, results, and 256 KiB for the sizes of dispatches.
    assert 0.9 * told < found["last"] < told + 400_000, (found, told)
    # 12 tokens take 12 steps. Four requests together: 4 steps for the prompts, 3 for tokens of the first ones
    # between them, and 11 for the other tokens of the last one.
    assert found["waits"] == [[12, 12]] * 4 + [[18, 18]]
