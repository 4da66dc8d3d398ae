"""The engine of the package in `web/`, in Node and in Chromium, gives what the engine in Python gives."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tilewright as tw
from tests.llm.small_library import learned, trained
from tests.llm.small_tokenizer import tokenizer
from tilewright.cli.llm import command
from tilewright.llm.engine.engine import Engine
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.stream import Request
from tilewright.llm.library import LibraryRunner, Tokenizer

from .site import NO_BROWSER, PACKAGE, WEBGPU, chromium, served

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="needs Node"),
    pytest.mark.skipif(
        not (PACKAGE / "llm.js").exists(), reason="needs the package: npm ci && npm run build in web/"
    ),
]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.8, "seed": 7},
    {"temperature": 1.2, "seed": 9, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    {"temperature": 1.0, "seed": 11, "top_k": 20, "min_p": 0.02, "logit_bias": {"40": 3}},
]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
RUN = """
export async function run({ loadChatModel, modelInfo }, folder, prompts, sampling, schema, worker) {
  const info = await modelInfo(folder);
  const model = await loadChatModel(folder, { worker, cache: false });
  const texts = async (some) => {
    const requests = some.map((prompt, k) =>
      model.completions.create({ prompt, max_tokens: 30, ...sampling[k % sampling.length] }));
    return (await Promise.all(requests)).map(({ choices: [{ text }] }) => text);
  };
  const first = await texts(prompts);
  const second = await texts(prompts); // with pages of the first round
  const streamed = [];
  const options = { prompt: prompts[0], max_tokens: 30, ...sampling[1], stream: true };
  for await (const { choices } of await model.completions.create(options))
    streamed.push(choices[0]?.text ?? "");
  const messages = [{ role: "user", content: "Hello" }];
  const format = { type: "json_schema", json_schema: { name: "x", schema } };
  const chat = await model.chat.completions.create({
    messages, max_tokens: 100, seed: 3, logprobs: true, top_logprobs: 2, response_format: format,
  });
  const errors = [];
  const fails = (promise) => promise.then(
    () => errors.push("none"), ({ name, message, param }) => errors.push([name, message, param]));
  for (let k = 0; k < 20; k++) {
    const controller = new AbortController();
    setTimeout(() => controller.abort(), k);
    const long = { prompt: prompts[k % prompts.length], max_tokens: 300, ignore_eos: true };
    await model.completions.create(long, { signal: controller.signal }).catch(() => undefined);
    for await (const _ of await model.completions.create({ ...long, stream: true })) break;
  }
  await fails(model.completions.create({ prompt: "x", tempo: 1 }));
  await fails(model.completions.create({ prompt: "x", temperature: 3 }));
  await fails(model.completions.create({ prompt: Array(600).fill(5) }));
  await fails(model.chat.completions.create({ messages: [] }));
  await fails(model.chat.completions.create({ messages, tools: [] }));
  const wrong = { type: "json_schema", json_schema: { name: "x", schema: { type: "nothing" } } };
  for (let k = 0; k < 5; k++)
    await fails(model.chat.completions.create({ messages, max_tokens: 9, response_format: wrong }));
  const again = await model.chat.completions.create({
    messages, max_tokens: 100, seed: 3, response_format: format,
  });
  const { data } = await model.embeddings.create({ input: ["one", "two"] });
  await new Promise((resolve) => setTimeout(resolve, 100)); // for the last abort
  const statistics = await model.statistics();
  await model.dispose();
  await fails(model.completions.create({ prompt: "x" }));
  return { info, first, second, streamed: streamed.join(""), chat, again, errors, statistics,
           sizes: data.map(({ embedding }) => embedding.length) };
}
"""
NODE = """
import { readFileSync } from "node:fs";
const { run } = await import(process.argv[2]);
const given = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(await run(await import(process.argv[3]), ...given)));
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = trained(tmp_path_factory.mktemp("checkpoint") / "small")
    tokenizer().backend.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def compiled(checkpoint: Path, folder: Path, target: str, *more: str) -> Path:
    sizes = ["--context-window-size", "512", "--prefill-chunk-size", "128", "--max-batch-size", "4"]
    done = CliRunner().invoke(
        command, ["compile", str(checkpoint), "-o", str(folder), "--target", target, *sizes, *more]
    )
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return [learned()[:n].tolist() for n in (3, 70, 150, 64)]


def expected(folder: Path, library: str, prompts: list[list[int]]) -> list[str]:
    """The texts of the same artifact by the engine in Python."""
    engine = Engine(
        LibraryRunner(tw.load(folder / library)), Tokenizer.from_folder(folder / "model.tokenizer")
    )
    streams = []
    for prompt, values in zip(prompts, SAMPLING, strict=True):
        bias = {int(token): value for token, value in values.get("logit_bias", {}).items()}
        sampling = SamplingParameters(**{**values, "logit_bias": bias})
        streams.append(engine.submit(Request(prompt=prompt, sampling=sampling, max_tokens=30)))
    return [stream.collect()[0].text for stream in streams]


def check(found: dict[str, Any], texts: list[str]) -> None:
    assert found["first"] == texts
    assert found["second"] == texts
    assert found["streamed"]
    answer = json.loads(found["chat"]["choices"][0]["message"]["content"])
    assert isinstance(answer["a"], int) and answer["b"] in ("x", "y") and len(answer) == 2
    assert found["chat"]["choices"][0]["finish_reason"] == "stop"
    (entry, *_) = found["chat"]["choices"][0]["logprobs"]["content"]
    assert entry["logprob"] <= entry["top_logprobs"][0]["logprob"] <= 0
    assert [error[2] for error in found["errors"][:5]] == ["tempo", "temperature", None, "messages", "tools"]
    assert "600 tokens" in found["errors"][2][1]
    for error in found["errors"][5:10]:
        assert error[1:] == ['the JSON schema cannot be used: Unsupported type "nothing"', "response_format"]
    assert found["again"]["choices"][0]["message"] == found["chat"]["choices"][0]["message"]
    assert "disposed" in found["errors"][10][1]
    assert found["sizes"] == [64, 64]
    statistics = found["statistics"]
    assert statistics["running"] == statistics["waiting"] == statistics["pagesUsed"] == 0
    info = found["info"]
    assert info["context"] == 512 and info["memory"]["weights"] > 0 and info["download"] > 100_000


@pytest.mark.parametrize("worker", [False, True])
def test_node_gives_the_texts_of_python(
    checkpoint: Path, prompts: list[list[int]], tmp_path: Path, worker: bool
) -> None:
    folder = compiled(checkpoint, tmp_path / "model", "wasm32", "--shard-size", "100kB" if worker else "1GB")
    (tmp_path / "run.mjs").write_text(RUN)
    (tmp_path / "node.mjs").write_text(NODE)
    given = json.dumps([str(folder), prompts, SAMPLING, SCHEMA, worker])
    arguments = ["node", tmp_path / "node.mjs", tmp_path / "run.mjs", PACKAGE / "llm.js"]
    done = subprocess.run(arguments, input=given, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    shards = sorted(folder.glob("model.weights.*"))
    assert (folder / "model.weights").exists() != worker
    if worker:
        assert len(shards) > 2
        assert all(shard.stat().st_size <= 100_000 for shard in shards)
        (folder / "model.weights").write_bytes(b"".join(shard.read_bytes() for shard in shards))
    check(json.loads(done.stdout.splitlines()[-1]), expected(folder, "model.wasm", prompts))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "index.html").write_text("<!doctype html><title>test</title>")
    (tmp_path / "run.mjs").write_text(RUN)
    shutil.copytree(PACKAGE / "bundle", tmp_path / "tilewright")
    with served(tmp_path, isolated=False) as address:
        yield address


@pytest.mark.slow
@pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER)
@pytest.mark.parametrize(("target", "library"), [("wasm32", "model.wasm"), ("webgpu", "model.tar")])
def test_chromium_gives_the_texts_of_python(
    checkpoint: Path, prompts: list[list[int]], tmp_path: Path, site: str, target: str, library: str
) -> None:
    folder = compiled(checkpoint, tmp_path / "model", target)
    with chromium(*WEBGPU) as browser:
        page = browser.new_page()
        page.set_default_timeout(240_000)
        page.goto(site)
        found = page.evaluate(
            """async (given) => {
              const { run } = await import("/run.mjs");
              return run(await import("/tilewright/llm.js"), "/model/", ...given, true);
            }""",
            [prompts, SAMPLING, SCHEMA],
        )
    check(found, expected(folder, library, prompts))
