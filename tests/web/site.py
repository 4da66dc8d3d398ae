"""Pages for tests: a server of static files, and headless Chromium by Playwright."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2] / "web" / "dist"
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
WEBGPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")
"""Chromium's arguments for WebGPU by SwiftShader, which simulates a GPU."""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder."""

    extensions_map = {
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class Isolated(Handler):
    """Serves pages that may share memory with workers."""

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


@contextmanager
def served(folder: Path, isolated: bool = True, handler: type[Handler] | None = None) -> Iterator[str]:
    """Serve a folder; yields the address, without a slash at its end."""
    kind = handler or (Isolated if isolated else Handler)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(kind, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def chromium(*arguments: str) -> Iterator[Any]:
    """Start headless Chromium with `arguments`; yields Playwright's browser.

    Raises:
        ImportError: Playwright is not installed.
        playwright.sync_api.Error: Chromium is not installed.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *arguments])
        try:
            yield browser
        finally:
            browser.close()
