"""Pages for tests: a server of static files, and headless Chromium by Playwright."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2] / "web" / "dist"
AXE = PACKAGE.parent / "node_modules" / "axe-core" / "axe.min.js"
_COMMANDS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _COMMANDS)), None)
NO_BROWSER = (
    "needs Playwright: pip install playwright"
    if importlib.util.find_spec("playwright") is None
    else "needs Chromium (Debian: chromium-headless-shell)"
    if CHROMIUM is None
    else ""
)
"""Why pages cannot be tested here, or nothing. Tests never download a browser."""
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
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def chromium(*arguments: str, driver: Any = None) -> Iterator[Any]:
    """Start headless Chromium with `arguments`; yields Playwright's browser. `driver`: a Playwright that was
    started before, since a thread may start one at a time.

    Raises:
        RuntimeError: Playwright or Chromium is not installed.
    """
    if NO_BROWSER:
        raise RuntimeError(NO_BROWSER)
    if driver is None:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as started, chromium(*arguments, driver=started) as browser:
            yield browser
        return
    browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *arguments])
    try:
        yield browser
    finally:
        browser.close()


def serious(page: Any) -> list[tuple[str, list[str]]]:
    """Return what axe-core finds serious or critical in a page whose context has `bypass_csp`."""
    page.add_script_tag(path=str(AXE))
    found = page.evaluate("axe.run().then((result) => result.violations)")
    return [
        (problem["id"], [node["html"] for node in problem["nodes"]])
        for problem in found
        if problem["impact"] in ("serious", "critical")
    ]
