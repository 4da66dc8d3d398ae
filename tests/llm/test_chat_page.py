"""The files of `tilewright llm chat-page`, and their server."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilewright.cli.llm import command
from tilewright.errors import ArtifactError
from tilewright.llm.chat_page import page_parts, page_server, write_chat_page
from tilewright.llm.web_folder import FORMAT

INFO = {
    "format": FORMAT,
    "name": "small",
    "library": "model.wasm",
    "tokenizer": "model.tokenizer",
    "tokenizer_files": ["tokenizer.json"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "web-model.json").write_text(json.dumps(INFO))
    (tmp_path / "model.wasm").write_bytes(b"library")
    (tmp_path / "model.weights").write_bytes(b"weights")
    (tmp_path / "model.tokenizer").mkdir()
    (tmp_path / "model.tokenizer" / "tokenizer.json").write_text("{}")
    return tmp_path


def kept_files(folder: Path) -> dict[str, str]:
    """Return what the service worker keeps, with hashes."""
    text = (folder / "service-worker.js").read_text()
    start = text.index("{")
    described, _ = json.JSONDecoder().raw_decode(text[start:])
    return described["files"]


def test_the_service_worker_knows_all_files_but_the_weights(folder: Path) -> None:
    write_chat_page(folder)
    kept = kept_files(folder)
    assert {"index.html", "model.wasm", "web-model.json", "model.tokenizer/tokenizer.json"} <= kept.keys()
    assert {f"page/{name}" for name in page_parts()} <= kept.keys()
    assert "model.weights" not in kept and "service-worker.js" not in kept
    for name, digest in kept.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert 'name="tilewright-model" content="./"' in (folder / "index.html").read_text()


def test_a_page_that_is_written_again_has_another_version(folder: Path) -> None:
    write_chat_page(folder)
    first = (folder / "service-worker.js").read_text()
    (folder / "page" / "chunk-OLD.js").write_text("of an earlier version")
    write_chat_page(folder)
    assert (folder / "service-worker.js").read_text() == first
    assert not (folder / "page" / "chunk-OLD.js").exists()
    (folder / "model.wasm").write_bytes(b"another library")
    write_chat_page(folder)
    assert (folder / "service-worker.js").read_text() != first


def test_other_folders_are_refused(folder: Path) -> None:
    (folder / "model.wasm").unlink()
    with pytest.raises(ArtifactError, match=r"model\.wasm is missing"):
        write_chat_page(folder)
    (folder / "web-model.json").write_text(json.dumps(INFO | {"format": FORMAT + 1}))
    with pytest.raises(ArtifactError, match="another version"):
        write_chat_page(folder)
    (folder / "web-model.json").write_text("{")
    with pytest.raises(ArtifactError, match="not JSON"):
        write_chat_page(folder)
    (folder / "web-model.json").unlink()
    done = CliRunner().invoke(command, ["chat-page", str(folder)])
    assert isinstance(done.exception, ArtifactError) and "web-model.json" in str(done.exception)


def test_the_server_isolates_the_page(folder: Path) -> None:
    write_chat_page(folder)
    server = page_server(folder)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    for path, kind in (
        ("", "text/html"),
        ("page/chat.js", "text/javascript"),
        ("model.wasm", "application/wasm"),
    ):
        with urllib.request.urlopen(url + path) as answer:
            assert answer.headers["Content-Type"].startswith(kind)
            assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
            assert answer.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(url + "../pyproject.toml")
    server.shutdown()
    server.server_close()
