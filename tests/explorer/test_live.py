"""Pages that follow a run: what the server sends, and the page in Chromium."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.web.site import AXE, NO_BROWSER, chromium, serious
from tilewright.errors import TilewrightError
from tilewright.explorer import live as live_module
from tilewright.explorer.live import MOST_POINTS
from tilewright.tuning.session import KernelState, Progress


class Named:
    """Stands for a kernel of a model."""

    def __init__(self, name: str) -> None:
        self.name = name


def progress(elapsed: float, trials: int, speedup: float, stage: Any = "searching") -> Progress:
    matmul: Any = Named("matmul")
    state = KernelState(matmul, 2e-3, 1e-3, "searches", "", trials, 1, speedup)
    other = KernelState(Named("softmax"), 2e-3, 1e-3)  # type: ignore[arg-type]
    return Progress(stage, elapsed, 60.0, (state, other), ("kernel 'x' is left out: it has no choices",))


def asked(live: tw.Live, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(live.address.removeprefix("http://").rstrip("/"), timeout=10)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


def test_a_page_that_comes_later_gets_the_run_from_its_beginning() -> None:
    with tw.Live("run") as live:
        live.scalar("loss", np.float32(2.0))
        live.scalar("loss", 1.5)
        live.scalar("loss", float("nan"))
        live.scalar("rate", 0.1, at=7)
        stream = events(asked(live, "/events"))
        first = next(stream)
        assert first["all"] and not first["ended"]
        assert first["curves"] == {"loss": [[0, 2.0], [1, 1.5]], "rate": [[7, 0.1]]}
        live.scalar("loss", 1.0)
        second = next(stream)
        assert not second["all"] and second["curves"] == {"loss": [[2, 1.0]], "rate": []}
    assert next(stream)["ended"]
    assert list(stream) == []


def test_a_search_is_followed() -> None:
    with tw.Live() as live:
        live.progress(progress(1.0, 8, 1.0))
        live.progress(progress(1.5, 8, 1.0))
        live.progress(progress(2.0, 16, 1.25))
        event = next(events(asked(live, "/events")))
    assert event["curves"] == {"best of matmul": [[1.0, 1.0], [2.0, 1.25]]}
    tuning = event["tuning"]
    assert tuning["stage"] == "searching" and tuning["left"] == 58.0 and len(tuning["notes"]) == 1
    assert [row["kernel"] for row in tuning["kernels"]] == ["matmul", "softmax"]
    assert tuning["kernels"][0]["trials"] == 16 and tuning["kernels"][0]["share"] == 0.5


def test_long_curves_are_thinned_and_sent_again() -> None:
    with tw.Live() as live:
        for k in range(MOST_POINTS):
            live.scalar("loss", k)
        stream = events(asked(live, "/events"))
        assert len(next(stream)["curves"]["loss"]) == MOST_POINTS
        live.scalar("loss", -1.0)
        event = next(stream)
        assert event["all"] and len(event["curves"]["loss"]) == MOST_POINTS // 2 + 1
        assert event["curves"]["loss"][-1] == [MOST_POINTS, -1.0]


def test_it_stops_cleanly_with_open_pages() -> None:
    before = threading.active_count()
    live = tw.Live("run")
    stream = events(asked(live, "/events"))
    next(stream)
    begin = time.perf_counter()
    live.close()
    live.close()
    assert time.perf_counter() - begin < 5
    assert next(stream)["ended"]
    assert threading.active_count() == before
    with pytest.raises(OSError):
        asked(live, "/")


def test_a_connection_that_asks_for_nothing_does_not_hold_up_the_end() -> None:
    """Browsers open connections in advance."""
    live = tw.Live()
    port = int(live.address.rstrip("/").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)):
        asked(live, "/").read()  # the connection before is accepted by now
        closing = threading.Thread(target=live.close, daemon=True)
        closing.start()
        closing.join(10)
        assert not closing.is_alive()


UNCLOSED = """
import http.client
import tilewright as tw

live = tw.Live()
live.scalar("loss", 1.0)
connection = http.client.HTTPConnection(live.address.removeprefix("http://").rstrip("/"), timeout=10)
connection.request("GET", "/events")
connection.getresponse().readline()
"""


def test_a_program_that_does_not_close_it_ends() -> None:
    """With a page open, as when an error ends the run."""
    subprocess.run([sys.executable, "-c", UNCLOSED], check=True, timeout=120)


def test_places_that_are_not_finite_are_left_out() -> None:
    with tw.Live() as live:
        live.scalar("loss", 1.0, at=float("inf"))
        live.scalar("loss", 2.0)
        assert next(events(asked(live, "/events")))["curves"] == {"loss": [[0, 2.0]]}


def test_a_page_that_was_closed_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "QUIET", 0.05)
    with tw.Live() as live:
        before = threading.active_count()
        response = asked(live, "/events")
        next(events(response))
        assert threading.active_count() == before + 1
        response.close()
        end = time.perf_counter() + 5
        while threading.active_count() > before and time.perf_counter() < end:
            time.sleep(0.02)
        assert threading.active_count() == before


def test_only_this_machine_is_answered() -> None:
    with tw.Live() as live:
        assert asked(live, "/", Host="example.org:80").status == 403
        assert asked(live, "/other").status == 404
        text = asked(live, "/").read().decode()
        assert "connect-src 'self'" in text and "default-src 'none'" in text


def test_a_port_that_is_taken_is_an_error() -> None:
    with tw.Live() as live:
        port = int(live.address.rstrip("/").rpartition(":")[2])
        with pytest.raises(TilewrightError, match=f"port {port} of 127.0.0.1 cannot be used"):
            tw.Live(port=port)


@pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER)
def test_the_page_in_a_browser() -> None:
    with chromium() as browser, tw.Live("a <run>") as live:
        page = browser.new_context(bypass_csp=True).new_page()
        troubles: list[str] = []
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(live.address)
        page.wait_for_selector("text=Nothing has been measured so far")
        assert page.inner_text("h1") == "a <run>"
        for k in range(5):
            live.scalar("loss", 2.0 / (k + 1))
        page.wait_for_selector("h2:has-text('loss, now 0.4')")
        live.progress(progress(3.0, 8, 1.0))
        live.progress(progress(4.0, 16, 1.5))
        page.wait_for_selector("td:has-text('1.500×')")
        assert page.locator("svg").count() >= 2
        if AXE.exists():
            assert serious(page) == []
        live.close()
        page.wait_for_selector("#facts:has-text('ended')")
        assert not troubles
