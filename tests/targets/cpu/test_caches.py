"""Cache sizes as Linux reports them. The sizes of a named target do not depend on the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilewright.targets.cpu.caches import l2_bytes
from tilewright.targets.llvm.target import LlvmTarget
from tilewright.targets.registry import resolve


def system(folder: Path, caches: dict[int, tuple[str, str]], cores: dict[int, str]) -> Path:
    """Create a copy of the system's files and return its folder: the size and the sharing processors of each
    processor's cache, and the processors of its core.
    """
    for number, (size, shared) in caches.items():
        for index, level, text in ((0, 1, "48K"), (1, 2, size), (2, 3, "300M")):
            cache = folder / f"cpu{number}" / "cache" / f"index{index}"
            cache.mkdir(parents=True)
            (cache / "level").write_text(f"{level}\n")
            (cache / "size").write_text(f"{text}\n")
            (cache / "shared_cpu_list").write_text(f"{shared}\n")
    for number, siblings in cores.items():
        (folder / f"cpu{number}" / "topology").mkdir(parents=True, exist_ok=True)
        (folder / f"cpu{number}" / "topology" / "core_cpus_list").write_text(f"{siblings}\n")
    return folder


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)


@pytest.mark.usefixtures("two_processors")
def test_second_level(tmp_path: Path) -> None:
    own = system(tmp_path / "own", {0: ("2048K", "0"), 1: ("1M", "1")}, {0: "0", 1: "1"})
    assert l2_bytes(own) == 1 << 20  # The smaller cache counts.
    threads = system(tmp_path / "threads", {0: ("512K", "0-1"), 1: ("512K", "0-1")}, {0: "0-1", 1: "0-1"})
    assert l2_bytes(threads) == 512 << 10  # Two threads of one core share its cache with no other core.
    cores = system(tmp_path / "cores", {0: ("2048K", "0,1"), 1: ("2048K", "0,1")}, {0: "0", 1: "1"})
    assert l2_bytes(cores) == 1 << 20


@pytest.mark.usefixtures("two_processors")
def test_unknown(tmp_path: Path) -> None:
    assert l2_bytes(tmp_path) is None
    strange = system(tmp_path / "strange", {0: ("", "0"), 1: ("?", "1")}, {0: "0", 1: "1"})
    assert l2_bytes(strange) is None


def test_named_targets() -> None:
    def size(name: str) -> int:
        target = resolve(name)
        assert isinstance(target, LlvmTarget)
        assert target.describe()["l2_bytes"] == target.isa.l2_bytes
        return target.isa.l2_bytes >> 10

    assert [
        size(n) for n in ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", "aarch64-linux", "wasm32")
    ] == [
        256,
        512,
        1024,
        1024,
        256,
    ]
