"""The memory of a language model in WebAssembly: as told before loading, and the same after many chats."""

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

from .site import PACKAGE

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="needs Node"),
    pytest.mark.skipif(
        not (PACKAGE / "llm.js").exists(), reason="needs the package: npm ci && npm run build in web/"
    ),
]
CONTEXT = 512
PROGRAM = """
const memories = [];
const instantiate = WebAssembly.instantiate;
WebAssembly.instantiate = async (...given) => {
  const made = await instantiate(...given);
  const { exports } = made.instance ?? made;
  if (exports.tw_create) memories.push(exports.memory);
  return made;
};
const [, , script, folder, context] = process.argv;
const { loadChatModel, modelInfo } = await import(script);
const { memory } = await modelInfo(folder);
const model = await loadChatModel(folder, { worker: false, cache: false });
const bytes = () => memories[0].buffer.byteLength;
const prompt = (length, first) => Array.from({ length }, (_, k) => 3 + ((first + 7 * k) % 60));
const complete = (prompt, max_tokens, signal, more = {}) =>
  model.completions.create({ prompt, max_tokens, seed: 1, ignore_eos: true, ...more }, { signal });

// The most that requests can need.
await Promise.all([1, 2, 3, 4].map((k) => complete(prompt(context - 50, k), 40, undefined, { top_p: 0.9 })));
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
console.log(JSON.stringify({ memory, first, last: bytes(), statistics: await model.statistics() }));
process.exit(0);
"""


def test_conversations_keep_the_memory_that_was_told(tmp_path: Path) -> None:
    source = tmp_path / "checkpoint"
    llama(tokenizer().vocabulary).save_pretrained(source)
    tokenizer().backend.save(str(source / "tokenizer.json"))
    (source / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    checkpoint = open_checkpoint(source)
    options = LibraryOptions(context=CONTEXT, max_batch=4)
    library = compile_library(checkpoint, options, target="wasm32")
    path = save_web_folder(library, checkpoint, tmp_path / "model", "small")
    (tmp_path / "run.mjs").write_text(PROGRAM)
    arguments = ["node", tmp_path / "run.mjs", PACKAGE / "llm.js", path.parent, str(CONTEXT)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["last"] == found["first"]
    statistics = found["statistics"]
    assert statistics["running"] == statistics["waiting"] == statistics["pagesUsed"] == 0
    told = sum(found["memory"].values())
    # Beside what is told there are the code's tables, a stack, inputs and results.
    assert 0.8 * told < found["last"] < told + 4_000_000, (found, told)
