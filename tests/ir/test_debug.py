"""The settings of TILEWRIGHT_DEBUG."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.debug import VARIABLE, DebugSettings, debug_settings


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", DebugSettings()),
        ("check", DebugSettings(check=True)),
        (" traceback , strict-schedules,", DebugSettings(traceback=True, strict_schedules=True)),
        ("dump=a/b=c,check", DebugSettings(check=True, dump=Path("a/b=c"))),
    ],
)
def test_settings(text: str, settings: DebugSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert debug_settings() == settings


@pytest.mark.parametrize("text", ["chek", "dump", "dump=", "check=1"])
def test_unknown_settings(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(tw.CompileError, match=f"unknown setting '{text}'; known: check, dump=FOLDER, strict"):
        debug_settings()


def test_compilations_follow_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"check,dump={tmp_path / 'passes'}")
    x = np.ones(3, np.float32)
    library = tw.compile(lambda x: x * 3 + 1, (x,))
    assert not library.report.cached
    assert list((tmp_path / "passes").glob("*simplify*"))
    monkeypatch.setenv(VARIABLE, "nonsense")
    with pytest.raises(tw.CompileError, match="unknown setting 'nonsense'"):
        tw.compile(lambda x: x * 3 + 1, (x,))
