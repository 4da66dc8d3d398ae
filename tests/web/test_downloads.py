"""Downloads of language models in Chromium: what breaks off, changes or is damaged, and what is kept."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.llm.small_library import llama
from tests.llm.small_tokenizer import tokenizer
from tilewright.llm.library import LibraryOptions, compile_library
from tilewright.llm.web_folder import INFO, save_web_folder
from tilewright.llm.weights import open_checkpoint

from .site import NO_BROWSER, PACKAGE, Isolated, chromium, served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (PACKAGE / "llm.js").exists(), reason="needs the package: npm ci && npm run build in web/"
    ),
    pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER),
]
SHARD = 60_000
LOAD = """async ({ wait }) => {
  const { loadChatModel, modelInfo } = await import("/tilewright/llm.js");
  const loading = loadChatModel("/model/").then(async (model) => {
    const { choices } = await model.completions.create({ prompt: [1, 2, 3], max_tokens: 4, temperature: 0 });
    await model.dispose();
    return { text: choices[0].text };
  }, ({ name, message }) => ({ name, message }));
  const found = await Promise.race([loading, new Promise((resolve) => setTimeout(() => resolve({}), wait))]);
  const kept = [];
  for (const name of await caches.keys())
    for (const { url } of await (await caches.open(name)).keys()) kept.push(new URL(url).pathname);
  return { ...found, kept: kept.sort() };
}"""


class Server(Isolated):
    """Remembers the files that were asked for; sends half of `cut`, and then ends or waits."""

    asked: list[str] = []
    cut: str | None = None
    released: threading.Event | None = None

    def do_GET(self) -> None:
        del self.headers["If-Modified-Since"]  # in whole seconds; the test changes files faster
        super().do_GET()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        name = self.path.partition("?")[0].rpartition("/")[2]
        Server.asked.append(name)
        data = source.read()
        if name != Server.cut:
            outputfile.write(data)
            return
        outputfile.write(data[: len(data) // 2])
        outputfile.flush()
        if Server.released:
            Server.released.wait(60)
        self.close_connection = True


def write_model(root: Path, factor: int) -> list[str]:
    """Write a model's folder into the site, with weights that depend on `factor`; returns the names of its
    shards.
    """
    folder = root / f"checkpoint-{factor}"
    model = llama(tokenizer().vocabulary)
    for weights in model.parameters():
        weights.data *= factor
    model.save_pretrained(folder)
    tokenizer().backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    checkpoint = open_checkpoint(folder)
    library = compile_library(checkpoint, LibraryOptions(context=256, max_batch=2), target="wasm32")
    save_web_folder(library, checkpoint, root / "site" / "model", "small", SHARD)
    info = json.loads((root / "site" / "model" / INFO).read_text())
    return [shard["file"] for shard in info["weights"]["shards"]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    root = tmp_path_factory.mktemp("downloads")
    (root / "site").mkdir()
    (root / "site" / "index.html").write_text("<!doctype html><title>test</title>")
    shutil.copytree(PACKAGE / "bundle", root / "site" / "tilewright")
    with served(root / "site", handler=Server) as address:
        yield root, address


def load(browser: Any, address: str, wait: float = 60) -> dict[str, Any]:
    """Load the model in a new page; returns the text or the error, and the files in the storage."""
    Server.asked.clear()
    page = browser.new_page()
    page.goto(f"{address}/index.html")
    found: dict[str, Any] = page.evaluate(LOAD, {"wait": 1000 * wait})
    page.close()
    return found


def paths(shards: list[str]) -> list[str]:
    return [f"/model/{shard}" for shard in shards]


def test_downloads_that_break_off_and_models_that_change(site: tuple[Path, str]) -> None:
    root, address = site
    shards = write_model(root, 3)
    model = root / "site" / "model"
    assert len(shards) > 3
    with chromium() as driver:
        browser = driver.new_context()
        # The connection breaks in the third shard: the two before it are kept.
        Server.cut = shards[2]
        found = load(browser, address)
        assert found["name"] == "ArtifactError" and shards[2] in found["message"]
        assert found["kept"] == paths(shards[:2])
        # The tab is closed during the third shard.
        Server.released = threading.Event()
        found = load(browser, address, 2)
        assert "text" not in found and found["kept"] == paths(shards[:2])
        Server.released.set()
        Server.cut = Server.released = None
        # The next load continues with the third shard; one more needs no network.
        whole = load(browser, address)
        assert whole["text"] and whole["kept"] == paths(shards)
        assert [name for name in Server.asked if name in shards] == shards[2:]
        assert load(browser, address) == whole
        assert not [name for name in Server.asked if name in shards]
        # Another model at the same address replaces it in the storage; equal shards are not loaded again.
        before = {shard: (model / shard).read_bytes() for shard in shards}
        assert write_model(root, 4) == shards
        changed = [shard for shard in shards if (model / shard).read_bytes() != before[shard]]
        assert len(changed) > 2
        other = load(browser, address)
        assert other["text"] and other["kept"] == paths(shards)
        assert [name for name in Server.asked if name in shards] == changed
        browser.close()
        # A damaged shard is not kept; shards of another compilation and another version are named.
        browser = driver.new_context()
        data = (model / shards[1]).read_bytes()
        (model / shards[1]).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        found = load(browser, address)
        assert found["name"] == "ArtifactError" and "damaged" in found["message"]
        assert found["kept"] == paths(shards[:1])
        text = (model / INFO).read_text()
        info = json.loads(text)
        identity = {**info["weights"], "identity": "0" * 32}
        for change, expected in (
            ({"weights": identity}, "another compilation"),
            ({"format": 1}, "format is 1"),
        ):
            (model / INFO).write_text(json.dumps({**info, **change}))
            found = load(browser, address)
            assert found["name"] == "ArtifactError" and expected in found["message"]
        browser.close()
