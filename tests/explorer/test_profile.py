"""Profiles of a call: stacks, spans of the trace, and the files that the command writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from bench.profiles import trace_problems
from click.testing import CliRunner

import tilewright as tw
from tests.explorer import network
from tests.explorer.test_document import held
from tilewright.cli import cli
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.timeline import Timeline

X = np.zeros((8, 64), np.float32)


@pytest.fixture(scope="module")
def library() -> CompiledModel:
    return tw.compile(network.Network().eval(), (X,), threads=1)


@pytest.fixture(scope="module")
def timeline(library: CompiledModel) -> Timeline:
    return library.timeline(X, repeat=3)


def test_stacks_add_up_and_begin_with_the_modules(timeline: Timeline) -> None:
    stacks = timeline.stacks()
    assert sum(stacks.values()) == pytest.approx(timeline.seconds * 1e9, rel=1e-3, abs=100)
    assert any(stack.startswith("call;blocks;1;down;") for stack in stacks)
    assert all(";" in stack and "\n" not in stack for stack in stacks)


def test_spans_of_the_trace_nest(timeline: Timeline) -> None:
    events = timeline.trace_events()
    assert trace_problems(events) == []
    late = {"ph": "X", "name": "late", "cat": "kernel", "ts": 0.5, "dur": 1e9, "pid": 1, "tid": 1}
    assert trace_problems({"traceEvents": [*events["traceEvents"], late]}) != []
    assert trace_problems({"traceEvents": [{"ph": "X", "name": "part"}]}) == [
        "part: lacks cat, ts, dur, pid, tid"
    ]


def test_layers_that_call_one_another_have_no_line() -> None:
    from tilewright import nn

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    x = np.ones((2, 8), np.float32)
    launches = tw.compile(model, (x,)).timeline(x, repeat=1).launches
    assert {launch.layer for launch in launches} == {"0", "1"}
    assert not any(launch.sources for launch in launches)


def test_the_command_writes_a_flame_graph_and_a_page(library: CompiledModel, tmp_path: Path) -> None:
    library.save(tmp_path / "model.so")
    files = {name: tmp_path / name for name in ("call.folded", "call.html", "call.json")}
    options = ("--flame", "call.folded", "--html", "call.html", "--trace", "call.json")
    arguments = [str(files.get(x, x)) for x in options]
    done = CliRunner().invoke(cli, ["profile", str(tmp_path / "model.so"), *arguments])
    assert done.exit_code == 0, done.output
    lines = files["call.folded"].read_text().splitlines()
    assert all(re.fullmatch(r"call;.+ \d+", line) for line in lines)
    (document,) = held(files["call.html"].read_text())
    assert document["opens"] == "time" and document["profile"]["launches"]
    assert trace_problems(json.loads(files["call.json"].read_text())) == []


def test_an_artifact_without_its_model_is_shown_by_each_command(
    library: CompiledModel, tmp_path: Path
) -> None:
    library.save(tmp_path / "model.so")
    artifact, page = str(tmp_path / "model.so"), tmp_path / "page.html"
    shown = CliRunner().invoke(cli, ["inspect", artifact])
    assert shown.exit_code == 0 and "matmul_gelu" in shown.output and "arena" in shown.output
    done = CliRunner().invoke(cli, ["explore", artifact, "--no-browser", "-o", str(page)])
    assert done.exit_code == 0 and "no times" not in done.output, done.output
    (document,) = held(page.read_text())
    main = document["functions"][0]
    assert main["operators"] and main["storages"] and document["metadata"] and document["kernels"]
    assert all(x["source"] for x in document["profile"]["launches"])
    profile = CliRunner().invoke(cli, ["profile", artifact, "--by", "line", "--json"])
    assert "network.py:" in json.loads(profile.output)["line"][0]["name"]
