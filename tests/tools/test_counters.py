"""Counters of the kernels of a call, with the event that needs no counters of the processor."""

from __future__ import annotations

import errno
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_cli import run
from tests.explorer.network import Network

import tilewright as tw
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.timeline import RawCall
from tilewright.tools import counters

X = np.ones((512, 64), np.float32)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="perf events are a part of Linux")


@pytest.fixture(scope="module")
def library() -> CompiledModel:
    return tw.compile(Network().eval(), (X,), threads=2)


def test_the_time_of_all_threads_by_kernel(library: CompiledModel) -> None:
    if reason := counters.refusal("cpu time"):
        pytest.skip(reason)
    found, refused = counters.counts_of(library, [X], repeat=40)
    assert {x.event for x in found} | refused.keys() == counters.EVENTS.keys()
    (cpu,) = [x for x in found if x.event == "cpu time"]
    assert cpu.kernels.keys() <= {kernel["name"] for kernel in library.metadata["kernels"]}
    # The projections do a hundred times the work of the normalizations.
    projections = sum(n for name, n in cpu.kernels.items() if name.startswith("matmul"))
    assert projections > cpu.kernels.get("layer_norm", 0.0)


def test_refusals_say_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(event: str, thread: int) -> None:
        raise OSError(errno.EACCES if event == "cycles" else errno.ENOENT, "refused")

    monkeypatch.setattr(counters, "_Ring", refuse)
    assert "perf_event_paranoid" in counters.refusal("cycles")
    assert "virtual machine" in counters.refusal("instructions")
    assert run("profile", "tests.tools.test_counters:small", "--counters") == 0
    shown = capsys.readouterr().out
    assert "cycles: not counted: Linux allows no counters" in shown
    with pytest.raises(tw.TilewrightError, match="cpu time"):
        counters.count("cpu time", lambda: RawCall([], 0.0, 0))


def record(kind: int, time: int = 0) -> bytes:
    return struct.pack("IHHQ", kind, 0, 16, time)


def test_samples_of_a_ring_and_those_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, unthrottle, throttle, lost = 9, 6, 5, 2
    ring = b"".join((record(sample, 30), record(unthrottle), record(sample, 10), record(sample, 20)))
    assert counters.read_samples(ring, 32, 80) == [10, 20, 30]  # goes on at the begin of the ring
    with pytest.raises(tw.TilewrightError, match="paused the counter"):
        counters.read_samples(record(throttle) + ring[:16], 0, 32)
    with pytest.raises(tw.TilewrightError, match="lost samples"):
        counters.read_samples(record(lost), 0, 16)

    def throttled(event: str, *_: object) -> None:
        raise tw.TilewrightError("paused")

    monkeypatch.setattr(counters, "refusal", lambda event: "")
    monkeypatch.setattr(counters, "count", throttled)
    found, refused = counters.counts_of(CompiledModel, [])
    assert not found and set(refused.values()) == {"paused"}


def test_counters_write_the_files_of_a_call_and_refuse_other_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, flame = tmp_path / "call.json", tmp_path / "call.folded"
    model = "tests.tools.test_counters:small"
    assert run("profile", model, "--counters", "--trace", str(trace), "--flame", str(flame)) == 0
    assert '"call"' in trace.read_text() and flame.read_text().startswith("call;")
    shown = capsys.readouterr().out
    assert "flame graph:" in shown and ("cpu time" in shown)
    for option in (("--cold",), ("--by", "layer")):
        assert run("profile", model, "--counters", *option) == 2
        assert "leave out" in capsys.readouterr().err


def small() -> tuple[object, tuple[np.ndarray, ...]]:
    """A model for the command line."""
    return (lambda x: tw.numpy.exp(x)), (np.ones((4, 4), np.float32),)
