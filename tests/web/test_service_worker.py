"""A model in a service worker answers the requests of pages as a server does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.web.chat_site import Site
from tests.web.site import NO_BROWSER, PACKAGE, chromium
from tests.web.test_language_models import SAMPLING, SCHEMA, checkpoint, compiled, expected, prompts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER),
    pytest.mark.skipif(
        not (PACKAGE / "bundle" / "llm-service.js").exists(),
        reason="needs the package: npm ci && npm run build in web/",
    ),
]
WORKER = """
import { answerRequest, loadChatModel } from "/tilewright/llm-service.js";
let model = null;
addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
addEventListener("fetch", (event) => {
  const { pathname } = new URL(event.request.url);
  const answer = async () => {
    model ??= loadChatModel("/model/");
    if (pathname === "/statistics") return Response.json(await (await model).statistics());
    return answerRequest(await model, event.request);
  };
  if (pathname.startsWith("/v1/") || pathname === "/statistics") event.respondWith(answer());
});
"""
RUN = """async ([prompts, sampling, schema]) => {
  await navigator.serviceWorker.register("/service.js", { type: "module" });
  await new Promise((resolve) => {
    if (navigator.serviceWorker.controller) resolve();
    else navigator.serviceWorker.addEventListener("controllerchange", resolve);
  });
  const post = (path, body, signal) => fetch("/v1/" + path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  });
  const texts = await Promise.all(prompts.map(async (prompt, k) => {
    const answer = await post("completions", { prompt, max_tokens: 30, ...sampling[k] });
    return (await answer.json()).choices[0].text;
  }));
  const streamed = await post("completions", { prompt: prompts[0], max_tokens: 30, stream: true,
                                               ...sampling[0] });
  const events = (await streamed.text()).trim().split("\\n\\n").map((event) => event.slice(6));
  const messages = [{ role: "user", content: "Hello" }];
  const constrained = (schema, more) => post("chat/completions", {
    messages, max_tokens: 100, response_format: { type: "json_schema", json_schema: { name: "x", schema } },
    ...more,
  });
  const json = await Promise.all([3, 4, 5].map(async (seed) => {
    const { choices } = await (await constrained(schema, { seed })).json();
    return [choices[0].finish_reason, choices[0].message.content];
  }));
  const parts = (await (await constrained(schema, { seed: 3, stream: true })).text()).trim().split("\\n\\n");
  const streamedJson = parts.slice(0, -1)
    .map((event) => JSON.parse(event.slice(6)).choices[0]?.delta.content ?? "").join("");
  const impossible = await constrained({ type: "nothing" });
  const impossibleAnswer = [impossible.status, (await impossible.json()).error.param];
  const { choices: [{ message }] } = await (await constrained(schema, { seed: 3 })).json();
  const refused = await post("chat/completions", { messages, temperature: 7 });
  for (let k = 0; k < 4; k++) {
    const controller = new AbortController();
    const long = { prompt: prompts[k], max_tokens: 400, ignore_eos: true, stream: true };
    const answer = await post("completions", long, controller.signal);
    const reader = answer.body.getReader();
    await reader.read();
    if (k % 2) controller.abort();
    else await reader.cancel();
  }
  let statistics;
  for (let k = 0; k < 100; k++) {
    statistics = await (await fetch("/statistics")).json();
    if (!statistics.running && !statistics.waiting) break;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return {
    texts, statistics, json, streamedJson, impossibleAnswer, jsonAfter: message.content,
    last: events.pop(),
    streamed: events.map((event) => JSON.parse(event).choices[0].text).join(""),
    models: (await (await fetch("/v1/models")).json()).data.map(({ id }) => id),
    refused: [refused.status, (await refused.json()).error.param],
  };
}"""

__all__ = ["checkpoint", "prompts"]


@pytest.mark.parametrize("target", ["wasm32", "wasm32:threads"])
def test_a_service_worker_answers(
    checkpoint: Path, prompts: list[list[int]], tmp_path: Path, target: str
) -> None:
    folder = compiled(checkpoint, tmp_path / "model", target)
    shutil.copytree(PACKAGE / "bundle", tmp_path / "tilewright")
    (tmp_path / "service.js").write_text(WORKER)
    (tmp_path / "index.html").write_text("<!doctype html><title>test</title>")
    site = Site(tmp_path)
    with chromium() as browser:
        page = browser.new_page()
        page.goto(site.url)
        found = page.evaluate(RUN, [prompts, SAMPLING, SCHEMA])
    site.close()
    wanted = expected(folder, "model.wasm", prompts)
    assert found["texts"] == wanted
    assert found["streamed"] == wanted[0] and found["last"] == "[DONE]"
    for reason, text in found["json"]:
        answer = json.loads(text)
        assert reason == "stop" and isinstance(answer["a"], int) and answer["b"] in ("x", "y")
        assert len(answer) == 2
    assert found["streamedJson"] == found["jsonAfter"] == found["json"][0][1]
    assert found["impossibleAnswer"] == [400, "response_format"]
    assert found["models"] == ["small"] and found["refused"] == [400, "temperature"]
    statistics = found["statistics"]
    assert statistics["running"] == statistics["waiting"] == statistics["pagesUsed"] == 0
