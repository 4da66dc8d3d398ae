"""Timelines: launches with the operators, layers and lines that they compute."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright as tw
from tests.explorer import network
from tilewright.artifact.structure import KEY, read_structure
from tilewright.cli import cli
from tilewright.errors import TilewrightError
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.timeline import Launch, ThreadTime, Timeline

X = np.zeros((8, 64), np.float32)
LINES = inspect.getsource(network).split("\n")
FILE = "tests/explorer/network.py"


def line(text: str) -> str:
    return f"network.py:{1 + next(k for k, x in enumerate(LINES) if text in x)}"


@pytest.fixture(scope="module")
def library() -> CompiledModel:
    return tw.compile(network.Network().eval(), (X,), threads=1)


@pytest.fixture(scope="module")
def timeline(library: CompiledModel) -> Timeline:
    return library.timeline(X, repeat=3)


def test_every_launch_names_its_line(timeline: Timeline) -> None:
    by_kernel = {}
    for launch in timeline.launches:
        assert launch.operators and launch.source, launch
        assert 0 <= launch.begin <= launch.end <= timeline.seconds
        by_kernel.setdefault(launch.kernel, []).append(launch)
    gelu = next(v for k, v in by_kernel.items() if "gelu" in k)
    assert [x.layer for x in gelu] == ["blocks.0.up", "blocks.1.up"]
    assert all(x.source.endswith(line("the line of UP")) for x in gelu)
    down = [x for x in timeline.launches if x.layer.endswith("down")]
    assert [x.layer for x in down] == ["blocks.0.down", "blocks.1.down"]
    assert all(x.source.endswith(line("the line of DOWN")) for x in down)


@pytest.mark.parametrize("grouping", ["kernel", "operator", "layer", "line"])
def test_groups_add_up(timeline: Timeline, grouping: str) -> None:
    shares = timeline.by(grouping)  # type: ignore[arg-type]
    assert sum(x.seconds for x in shares) == pytest.approx(timeline.in_kernels)
    assert sum(x.launches for x in shares) == len(timeline.launches)
    assert [x.seconds for x in shares] == sorted((x.seconds for x in shares), reverse=True)


def test_the_parts_of_a_call_add_up(timeline: Timeline) -> None:
    outside = {x.name: x.seconds for x in timeline.outside()}
    assert list(outside) == ["threads", "between kernels", "call", "clock"]
    assert timeline.in_kernels + sum(outside.values()) == pytest.approx(timeline.seconds)
    assert timeline.host is not None and 0 < timeline.host < timeline.seconds
    # Four reads for each launch and one for the call, unless a part was shorter than its reads.
    reads = 4 * len(timeline.launches) + 1
    assert timeline.clock > 0 and outside["clock"] <= reads * timeline.clock * 1.001
    folded = timeline.stacks()
    assert sum(folded.values()) == pytest.approx(timeline.seconds * 1e9, abs=len(folded))


def test_parts_of_a_known_call() -> None:
    nano = 1e-9
    threads = (ThreadTime(0, 110 * nano, 150 * nano), ThreadTime(1, 120 * nano, 190 * nano))
    launches = (
        Launch("a", 100 * nano, 200 * nano, threads=threads),
        Launch("b", 210 * nano, 250 * nano, threads=(ThreadTime(0, 215 * nano, 245 * nano),)),
    )
    timeline = Timeline(launches, 400 * nano, 180 * nano, 1 * nano)
    found = {x.name: round(x.seconds / nano, 3) for x in timeline.outside()}
    # 10 of a before and 10 after 80, 5 and 5 of b around 30; a read of the clock ends each of them.
    assert found == {"threads": 30 - 4, "between kernels": 180 - 140 - 3, "call": 220, "clock": 9}
    assert [round(x.seconds / nano, 3) for x in timeline.by("kernel")] == [79, 29]
    older = Timeline(launches, 400 * nano)
    assert [(x.name, round(x.seconds / nano, 3)) for x in older.outside()] == [("outside of kernels", 290)]


def test_launches_do_not_overlap(timeline: Timeline) -> None:
    for a, b in zip(timeline.launches, timeline.launches[1:], strict=False):
        assert a.end <= b.begin


def test_threads_work_within_their_launches() -> None:
    def function(x: tw.Tensor) -> tw.Tensor:
        return tw.numpy.exp(x) @ x

    x = np.ones((600, 600), np.float32)
    library = tw.compile(function, (x,), threads=2)
    alone = len(os.sched_getaffinity(0)) == 1
    for _ in range(200):  # on a busy machine the caller may have done all before the other thread gets a core
        launches = library.timeline(x, repeat=1).launches
        for launch in launches:
            assert launch.threads and len({part.thread for part in launch.threads}) == len(launch.threads)
            for part in launch.threads:
                assert launch.begin <= part.begin <= part.end <= launch.end
        if alone or any(len(launch.threads) == 2 for launch in launches):
            return
    pytest.fail("no launch of 200 calls ran on two threads")


def test_launches_follow_the_steps(timeline: Timeline, library: CompiledModel) -> None:
    steps = [launch.step for launch in timeline.launches]
    assert steps == list(range(len(read_structure(library.metadata)["main"]["steps"])))


def test_a_loop_launches_its_steps_in_turn() -> None:
    def function(x: tw.Tensor) -> tw.Tensor:
        final, _ = tw.scan(lambda c, row: (tw.numpy.tanh(c @ x + row), c), x[0], x)
        return final

    library = tw.compile(function, (np.eye(5, dtype=np.float32),))
    launches = library.timeline(np.eye(5, dtype=np.float32), repeat=1).launches
    calls = {k.name: k.calls for k in library.profile(np.eye(5, dtype=np.float32), repeat=1)}
    assert len(launches) == sum(calls.values()) > 5
    steps = [launch.step for launch in launches]
    assert None not in steps


def test_a_kernel_inside_and_after_a_loop_is_told_apart() -> None:
    from tilewright.runtime.timeline import RawLaunch, _described

    launch = {"kind": "launch", "operators": [], "main": None}
    steps = [
        {**launch, "kernel": "k", "loop": 0},
        {**launch, "kernel": "l", "loop": 0},
        {**launch, "kernel": "k"},
        {**launch, "kernel": "m"},
    ]
    names = ["k", "l", "k", "l", "k", "l", "k", "m"]
    launches = _described([RawLaunch(n, 0, 1) for n in names], {"steps": steps, "operators": []}, [])
    assert [x.step for x in launches] == [0, 1, 0, 1, 0, 1, 2, 3]


def test_trace_events_are_complete(timeline: Timeline) -> None:
    trace = json.loads(json.dumps(timeline.trace_events()))
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    parts = sum(len(x.threads) for x in timeline.launches)
    assert len(spans) == len(timeline.launches) + parts + 1
    for event in spans:
        assert event["ts"] >= 0 and event["dur"] >= 0
        assert {"name", "cat", "pid", "tid"} <= event.keys()
    assert all(e["args"]["source"] for e in spans if e["cat"] == "kernel")


def test_an_artifact_keeps_lines_without_folders(library: CompiledModel, tmp_path: Path) -> None:
    library.save(tmp_path / "model.so")
    loaded = tw.load(tmp_path / "model.so")
    launches = loaded.timeline(X, repeat=1).launches
    assert any(x.source.endswith(line("the line of UP")) for x in launches)
    assert str(Path(__file__).parents[2]) not in json.dumps(read_structure(loaded.metadata))


def test_without_structure_kernels_keep_their_times(library: CompiledModel) -> None:
    metadata = library.metadata
    kept = metadata.pop(KEY)
    try:
        launches = library.timeline(X, repeat=1).launches
    finally:
        metadata[KEY] = kept
    assert launches and all(x.step is None and x.seconds >= 0 for x in launches)


def test_targets_without_a_profile_say_so() -> None:
    with pytest.raises(TilewrightError, match="does not measure launches"):
        CompiledModel.call_raw(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["operator", "layer", "line"])
def test_the_command_prints_shares_and_writes_a_trace(
    library: CompiledModel, tmp_path: Path, by: str
) -> None:
    library.save(tmp_path / "model.so")
    trace = tmp_path / "trace.json"
    done = CliRunner().invoke(cli, ["profile", str(tmp_path / "model.so"), "--by", by, "--trace", str(trace)])
    assert done.exit_code == 0, done.output
    wanted = {"operator": "matmul + add + gelu", "layer": "blocks.1.down", "line": line("the line of DOWN")}
    assert wanted[by] in done.output
    assert json.loads(trace.read_text())["traceEvents"]
