"""A chat page on a server that can fail, and what a person does with it in Chromium."""

from __future__ import annotations

import http.server
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.web.site import serious
from tilewright.llm.chat_page import FileHandler


class Site:
    """A server of a folder. `slow`: files whose second half comes when `release` is set. `broken`: files
    whose connection breaks in the middle. `prefixes`: text to put before a file. `requests`: paths.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.slow: set[str] = set()
        self.broken: set[str] = set()
        self.prefixes: dict[str, str] = {}
        self.requests: list[str] = []
        self.release = threading.Event()
        site = self

        class Handler(FileHandler):
            def do_GET(self) -> None:
                name = self.path.partition("?")[0].lstrip("/")
                site.requests.append(name)
                if name in site.slow | site.broken | site.prefixes.keys():
                    site.send(self, name)
                else:
                    super().do_GET()

        self._server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), lambda *given: Handler(*given, directory=str(folder))
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def send(self, handler: http.server.SimpleHTTPRequestHandler, name: str) -> None:
        content = self.prefixes.get(name, "").encode() + (self.folder / name).read_bytes()
        handler.send_response(200)
        handler.send_header("Content-Type", handler.guess_type(name))
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        half = len(content) // 2
        handler.wfile.write(content[:half])
        handler.wfile.flush()
        if name in self.broken:
            handler.close_connection = True
            return
        if name in self.slow:
            self.release.wait(60)
        with suppress(OSError):  # if the page has cancelled the download
            handler.wfile.write(content[half:])

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


class Visitor:
    """A browser window of its own with the page open. `most`: tokens of a reply, 0: no limit."""

    def __init__(
        self, browser: Any, url: str, size: tuple[int, int] = (1280, 800), most: int = 40, **options: Any
    ) -> None:
        viewport = {"width": size[0], "height": size[1]}
        self.context = browser.new_context(viewport=viewport, bypass_csp=True, **options)
        if most:
            self.context.add_init_script(f"localStorage.setItem('tilewright-max_tokens', '{most}')")
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.problems: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.goto(url)

    def until(self, condition: str) -> None:
        self.page.wait_for_function(condition)

    def until_ready(self) -> None:
        self.until("!document.getElementById('send').disabled")

    def until_answered(self) -> None:
        self.until("document.getElementById('log').getAttribute('aria-busy') === 'false'")

    def ask(self, text: str) -> str:
        """Type a message, and return the whole reply."""
        before = self.page.locator(".assistant").count()
        self.page.locator("#text").fill(text)
        self.page.keyboard.press("Enter")
        self.page.locator(".assistant").nth(before).wait_for()
        self.until_answered()
        return self.reply()

    def reply(self) -> str:
        return self.page.locator(".assistant .content").last.inner_text()

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def serious(self) -> list[tuple[str, list[str]]]:
        return serious(self.page)

    def stored(self) -> list[str]:
        """Return the paths of all files in the browser's storage."""
        found = self.page.evaluate(
            """async () => {
              const names = await caches.keys();
              const kept = await Promise.all(names.map(async (name) => (await caches.open(name)).keys()));
              return kept.flat().map(({ url }) => new URL(url).pathname);
            }"""
        )
        return sorted(found)

    def close(self) -> None:
        assert self.problems == []
        self.context.close()


def until(condition: Any, seconds: float = 20) -> None:
    """Wait until a function returns something true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
