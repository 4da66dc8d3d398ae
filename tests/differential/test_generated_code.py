"""Recorded code is equal when it is recorded twice, and every difference is found or explained by a
renaming.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.caches import new_cache

from .generated_code import DIFFERENT, EQUAL, RENAMED, REWORDED, compare, main, normalized, renamed, write

TARGETS = ("cpu:x86-64-v3", "webgpu")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        new_cache(patch, tmp_path_factory.mktemp("cache"))
        patch.setenv("TILEWRIGHT_CPU", "")
        write(folder, ["float64", "quantized-conv"], TARGETS)
    return folder


def copied(recorded: Path, folder: Path, **changes: tuple[str, str]) -> Path:
    """A copy of the recorded texts; in those of the levels in `changes`, one string is replaced by
    another.
    """
    for path in recorded.glob("*/*/*.txt"):
        text = path.read_text()
        place = folder / path.relative_to(recorded)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text.replace(*changes[path.stem]) if path.stem in changes else text)
    return folder


def test_levels(recorded: Path) -> None:
    """Every level is recorded, and a model that a target refuses has the reason instead."""
    levels = {path.stem for path in recorded.glob("quantized-conv/cpu-x86-64-v3/*.txt")}
    assert levels == {"graph", "tensor", "loop", "host", "llvm", "metadata", "weights"}
    levels = {path.stem for path in recorded.glob("quantized-conv/webgpu/*.txt")}
    assert levels == {"graph", "tensor", "loop", "host", "wgsl", "program", "metadata", "weights"}
    refusal = (recorded / "float64/webgpu/refusal.txt").read_text()
    assert refusal.startswith("UnsupportedOperatorError\n") and "float64" in refusal
    seconds = json.loads((recorded / "seconds.json").read_text())
    assert set(seconds) == {"float64", "quantized-conv"}
    assert seconds["float64"]["cpu:x86-64-v3"] > 0


def test_the_same_code_twice(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_cache(monkeypatch, tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CPU", "")
    write(tmp_path / "again", ["float64", "quantized-conv"], TARGETS)
    assert {result.state for result in compare(recorded, tmp_path / "again")} == {EQUAL}


def test_differences(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another instruction is reported as a difference and shown; another wording of a refusal is not a
    difference.
    """
    new = copied(recorded, tmp_path, llvm=("fadd", "fsub"), refusal=("float64", "doubles"))
    states = {(r.model, r.target, r.level): r.state for r in compare(recorded, new) if r.state != EQUAL}
    assert states == {
        ("float64", "cpu-x86-64-v3", "llvm"): DIFFERENT,
        ("quantized-conv", "cpu-x86-64-v3", "llvm"): DIFFERENT,
        ("float64", "webgpu", "refusal"): REWORDED,
    }
    assert main(["compare", str(recorded), str(new)]) == 1
    shown = capsys.readouterr().out
    assert "fsub" in shown and "1 refused in other words, 2 different" in shown


def test_renamings(recorded: Path, tmp_path: Path) -> None:
    """Other names of a metadata key and of an operation, and another order of keys, are explained by
    renamings.
    """
    changes = {"metadata": ('"arena"', '"working_memory"'), "loop": ("loop.store", "loop.write")}
    new = copied(recorded, tmp_path, **changes)
    for path in new.glob("*/*/metadata.txt"):
        path.write_text(normalized("metadata", path.read_text()))
    names = {"arena": "working_memory", "loop.store": "loop.write"}
    assert {r.state for r in compare(recorded, new)} == {EQUAL, DIFFERENT}
    assert {r.state for r in compare(recorded, new, names)} == {EQUAL, RENAMED}
    pairs = [argument for old, now in names.items() for argument in ("--rename", f"{old}={now}")]
    assert main(["compare", str(recorded), str(new), *pairs]) == 0


def test_a_text_that_is_absent(recorded: Path, tmp_path: Path) -> None:
    new = copied(recorded, tmp_path)
    (new / "quantized-conv/webgpu/program.txt").unlink()
    found = [result for result in compare(recorded, new) if result.state != EQUAL]
    assert [(result.level, result.state) for result in found] == [("program", DIFFERENT)]
    assert "absent from" in str(found[0])


def test_normalized() -> None:
    """Positions in Python files, lengths of messages and repeated positions are removed."""
    assert normalized("graph", 'at "a/b.py:12"') == 'at "FILE:LINE"'
    assert normalized("llvm", 'constant [18 x i8] c"x.py:3"') == 'constant [LENGTH x i8] c"FILE:LINE"'
    text = '{"source": {"xxh3_128": "00"}, "locations": ["add (m.py:1)", "add (m.py:2)"]}'
    assert json.loads(normalized("metadata", text)) == {"source": {}, "locations": ["add (FILE:LINE)"]}


def test_renamed_takes_whole_names_at_once() -> None:
    assert renamed("a b ab %a.1 a_b -a", {"a": "b", "b": "a"}) == "b a ab %b.1 a_b -b"
    assert renamed('"has no size": (x)', {"has no size": "lacks a size", "(": "["}) == '"lacks a size": [x)'
