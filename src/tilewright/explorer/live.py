"""`Live`: a page on this machine that follows a search for schedules or a training run while it goes on."""

from __future__ import annotations

import http.server
import json
import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import TilewrightError
from .page import live_text

if TYPE_CHECKING:
    from ..tuning.session import Progress

MOST_POINTS = 4000
"""Points of a curve that are kept. When there are more, every second one is dropped."""
QUIET = 10.0
"""Seconds after which a line without meaning is sent, which tells whether the page is still there."""
NOTICE = 0.05
"""Seconds within which the server notices that `Live.close` was called."""
PATIENCE = 5.0
"""Seconds that `Live.close` waits for open pages to take the last event."""
SILENCE = 30.0
"""Seconds after which a connection that asks for nothing, or takes nothing, is dropped: browsers open some in
advance.
"""


class Live:
    """A page that follows a run while it goes on.

    It is served on this machine only, at `address`, and sends what is new by server-sent events (WHATWG HTML,
    section 9.2). A page that is opened later shows the run from its beginning. After the end the page keeps
    what it shows.

        with tw.Live("training") as live:
            for x, y in batches:
                live.scalar("loss", step(x, y))

        with tw.Live("tuning") as live:
            tw.tune(model, args, progress=live.progress)

    Args:
        title: The heading of the page.
        port: The port of the server; 0 takes a free one.

    Raises:
        TilewrightError: The port cannot be used.
    """

    def __init__(self, title: str = "run", *, port: int = 0) -> None:
        self._title = title
        self._changed = threading.Condition()
        self._curves: dict[str, list[tuple[float, float]]] = {}
        self._thinned = 0
        self._tuning: dict[str, Any] | None = None
        self._version = 0
        self._ended = False
        self._seen: dict[str, int] = {}
        self._followers: set[threading.Thread] = set()
        try:
            self._server = _Server(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise TilewrightError(
                f"port {port} of 127.0.0.1 cannot be used: {error.strerror or error}; port=0 takes a free one"
            ) from error
        self._server.live = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(NOTICE,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The address of the page: ``http://127.0.0.1:PORT/``."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    def scalar(self, name: str, value: Any, at: float | None = None) -> None:
        """Add a point to a curve.

        Args:
            name: The name of the curve, such as ``loss``.
            value: A number, or a tensor of one element. One that is not finite is left out.
            at: Its place on the horizontal axis; None: the one behind the last. A point whose place is not
                finite is left out.
        """
        number = float(value)
        with self._changed:
            curve = self._curves.setdefault(name, [])
            place = float(curve[-1][0] + 1 if curve else 0) if at is None else float(at)
            if not (math.isfinite(number) and math.isfinite(place)):
                return
            curve.append((place, number))
            if len(curve) > MOST_POINTS:
                del curve[1::2]
                self._thinned += 1
            self._tell()

    def progress(self, progress: Progress) -> None:
        """Show how far a call of `tilewright.tune` is; give this function to it as `progress`.

        Args:
            progress: The progress.
        """
        total = sum(state.seconds for state in progress.kernels) or 1.0
        states = sorted(progress.kernels, key=lambda state: -state.weight)
        rows = [
            {
                "kernel": state.kernel.name,
                "share": state.seconds / total,
                "state": state.state,
                "trials": state.trials,
                "failures": state.failures,
                "speedup": state.speedup,
            }
            for state in states
        ]
        with self._changed:
            for state in states:
                name = state.kernel.name
                if state.trials > self._seen.get(name, 0):
                    self._seen[name] = state.trials
                    curve = self._curves.setdefault(f"best of {name}", [])
                    curve.append((progress.elapsed, state.speedup))
            self._tuning = {
                "stage": progress.stage,
                "elapsed": progress.elapsed,
                "left": progress.left,
                "kernels": rows,
                "notes": list(progress.notes),
            }
            self._tell()

    def close(self) -> None:
        """Tell open pages that the run is over, and end the server. May be called twice. A page that takes
        nothing any more, as on a computer that sleeps, holds it up for a few seconds only.
        """
        with self._changed:
            if self._ended:
                return
            self._ended = True
            followers = list(self._followers)
            self._tell()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        end = time.monotonic() + PATIENCE
        for follower in followers:
            follower.join(max(0.0, end - time.monotonic()))

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def _page(self) -> bytes:
        return live_text(self._title).encode()

    def _follow(self, write: Callable[[bytes], None]) -> None:
        """Write events until the run ends."""
        own = threading.current_thread()
        with self._changed:
            self._followers.add(own)
        try:
            self._write_events(write)
        finally:
            with self._changed:
                self._followers.discard(own)

    def _write_events(self, write: Callable[[bytes], None]) -> None:
        version, thinned, sent = -1, -1, dict[str, int]()
        while True:
            with self._changed:
                if self._version == version and not self._ended:
                    self._changed.wait(QUIET)
                if self._version == version and not self._ended:
                    text = ": still running\n\n"
                else:
                    if self._thinned != thinned:
                        thinned, sent = self._thinned, {}
                    event = {
                        "all": not sent,
                        "curves": {
                            name: points[sent.get(name, 0) :] for name, points in self._curves.items()
                        },
                        "tuning": self._tuning,
                        "ended": self._ended,
                    }
                    sent = {name: len(points) for name, points in self._curves.items()}
                    version = self._version
                    text = f"data: {json.dumps(event)}\n\n"
                ended = self._ended
            write(text.encode())
            if ended:
                return


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True  # open pages do not hold up the end of a program that never calls `close`
    live: Live

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # such as of a page that was closed while it loads
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = SILENCE

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").partition(":")[0]
        if host not in ("127.0.0.1", "localhost"):  # a page elsewhere whose name was made to lead here
            self.send_error(403, "this page is for this machine only")
        elif self.path == "/":
            page = self.server.live._page()
            self._begin("text/html; charset=utf-8", len(page))
            self.wfile.write(page)
        elif self.path == "/events":
            self._begin("text/event-stream")
            with suppress(OSError):  # the page was closed
                self.server.live._follow(self._send)
        else:
            self.send_error(404)

    def _begin(self, kind: str, size: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        if size is not None:
            self.send_header("Content-Length", str(size))
        self.end_headers()

    def _send(self, text: bytes) -> None:
        self.wfile.write(text)
        self.wfile.flush()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


__all__ = ["Live"]
