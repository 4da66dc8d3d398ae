"""Counters of the kernels of a call, with the event that needs no counters of the processor."""

from __future__ import annotations

import errno
import sys

import numpy as np
import pytest
from tests.cli.test_cli import run
from tests.explorer.network import Network

import tilewright as tw
from tilewright.runtime.model import CompiledModel
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
        counters.count("cpu time", list, lambda: 0)


def small() -> tuple[object, tuple[np.ndarray, ...]]:
    """A model for the command line."""
    return (lambda x: tw.numpy.exp(x)), (np.ones((4, 4), np.float32),)
