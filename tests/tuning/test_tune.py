"""`tilewright.tune` on a small model, and `tilewright.compile` with its database."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilewright as tw
from tilewright.errors import CompileError, TilewrightError
from tilewright.tuning.tune import seconds_of

pytest.importorskip("sklearn")


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [("90s", 90), ("90", 90), (12.5, 12.5), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("2m5s", 125)],
)
def test_a_budget_is_seconds_or_a_text(budget: str | float, seconds: float) -> None:
    assert seconds_of(budget) == seconds


@pytest.mark.parametrize("budget", ["", "ten", "10x", "-5", 0, "0s", "m", True, float("nan"), "5m1h"])
def test_any_other_budget_is_an_error_with_an_example(budget: str | float) -> None:
    with pytest.raises(CompileError, match=r"is no time; write seconds, or 90s, 10m, 1h30m"):
        seconds_of(budget)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("wasm32", "kernels for the target wasm32 cannot be measured"),
        ("webgpu", "kernels for the target webgpu cannot be measured"),
        ("aarch64-linux", "this machine cannot run code for aarch64-linux"),
    ],
)
def test_a_target_that_cannot_be_measured_is_an_error(target: str, message: str, tmp_path: Path) -> None:
    if target == "aarch64-linux" and _is_arm():
        pytest.skip("this machine can run it")
    with pytest.raises(CompileError, match=message):
        tw.tune(lambda x: x, (), target=target, database=tmp_path / "a.jsonl")


def _is_arm() -> bool:
    import platform

    return platform.machine() in ("aarch64", "arm64")


def test_a_database_that_cannot_be_written_is_an_error_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TilewrightError, match="cannot be"):
        tw.tune(lambda x: x, (), database=tmp_path / "file" / "a.jsonl")
