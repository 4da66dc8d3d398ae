"""The chat page, built from ``web/page/``: one for the server, and one to put beside a model that pages run.

The page in a model's folder has a service worker that keeps the page, the runtime and the small files of the
model, with their SHA-256; weights are kept by the runtime. A folder that has changed needs its page written
again, else the service worker refuses the new files.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from ..errors import ArtifactError

PAGE = "index.html"
SERVICE_WORKER = "service-worker.js"
PARTS = "page"
"""The folder of scripts and styles, relative to the page."""


def page_text(model: str = "") -> str:
    """Return the HTML of the page. `model`: address of the model's folder; empty: the server answers."""
    text = _built("chat.html").read_text(encoding="utf-8")
    return re.sub(r'(<meta\s+name="tilewright-model"\s+content=)""', rf'\1"{model}"', text)


@functools.cache
def page_parts() -> dict[str, bytes]:
    """Return the scripts and styles of the page by their names."""
    names = json.loads(_built("page.json").read_text(encoding="utf-8"))
    return {name: _built(name).read_bytes() for name in names}


def write_chat_page(folder: str | Path) -> Path:
    """Write the chat page into a folder that `save_web_folder` wrote.

    Returns:
        The path of the page.

    Raises:
        ArtifactError: It is no such folder, files of the model are missing, or a file cannot be written.
    """
    folder = Path(folder)
    model = _small_files(folder)
    parts = {PAGE: page_text("./").encode()}
    parts |= {f"{PARTS}/{name}": content for name, content in page_parts().items()}
    contents = parts | {name: (folder / name).read_bytes() for name in model}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(contents.items())}
    version = hashlib.sha256(json.dumps(hashes).encode()).hexdigest()[:16]
    files = json.dumps({"version": version, "files": hashes}, indent=1)
    worker = _built("page-service-worker.js").read_text(encoding="utf-8")
    parts[SERVICE_WORKER] = f"self.tilewrightPage = {files};\n{worker}".encode()
    try:
        (folder / PARTS).mkdir(exist_ok=True)
        for old in (folder / PARTS).iterdir():
            if f"{PARTS}/{old.name}" not in parts:
                old.unlink()
        for name, content in parts.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise ArtifactError(f"{folder}: the page cannot be written: {error.strerror or error}") from error
    return folder / PAGE


def _small_files(folder: Path) -> list[str]:
    """Return the files of a model that pages read before its weights, relative to the folder."""
    from .web_folder import INFO, web_info  # imports the compiler, which a server does without

    info = web_info(folder)
    names = [INFO, info["library"], *(f"{info['tokenizer']}/{name}" for name in info["tokenizer_files"])]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ArtifactError(f"{folder}: the file {missing[0]} is missing: compile the model again")
    return names


def _built(name: str) -> Traversable:
    return resources.files("tilewright.runtime").joinpath("js", name)


class FileHandler(http.server.SimpleHTTPRequestHandler):
    """Sends files with the headers of cross-origin isolation, without which a page has no threads."""

    protocol_version = "HTTP/1.1"
    extensions_map = {
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",  # the system's table may say something else
        ".wasm": "application/wasm",
    }

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def page_server(
    folder: str | Path, host: str = "127.0.0.1", port: int = 0
) -> http.server.ThreadingHTTPServer:
    """Return a server of the folder's files; `serve_forever` starts it. Port 0: any free one.

    Raises:
        OSError: The address cannot be used.
    """
    handler = functools.partial(FileHandler, directory=str(folder))
    return http.server.ThreadingHTTPServer((host, port), handler)


__all__ = ["page_parts", "page_server", "page_text", "write_chat_page"]
