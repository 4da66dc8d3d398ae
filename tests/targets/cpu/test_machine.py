"""Descriptions of machines: as Linux reports them, and as the names of targets state them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilewright.errors import CompileError
from tilewright.ir.target_info import CacheLevel, Machine, TargetInfo
from tilewright.targets.cpu.isa import host_isa, isa_named
from tilewright.targets.cpu.machine import this_machine
from tilewright.targets.registry import resolve


def system(folder: Path, caches: dict[int, tuple[str, str]], cores: dict[int, str]) -> Path:
    """Create a copy of the system's files and return its folder: the size and the sharing processors of each
    processor's second-level cache, and the processors of its core.
    """
    everyone = ",".join(map(str, caches))
    for number, (size, shared) in caches.items():
        levels = (
            (1, "48K", "Data", str(number)),
            (1, "64K", "Instruction", str(number)),
            (2, size, "Unified", shared),
            (3, "300M", "Unified", everyone),
        )
        for index, (level, text, kind, sharing) in enumerate(levels):
            cache = folder / f"cpu{number}" / "cache" / f"index{index}"
            cache.mkdir(parents=True)
            (cache / "level").write_text(f"{level}\n")
            (cache / "size").write_text(f"{text}\n")
            (cache / "type").write_text(f"{kind}\n")
            (cache / "shared_cpu_list").write_text(f"{sharing}\n")
    for number, siblings in cores.items():
        (folder / f"cpu{number}" / "topology").mkdir(parents=True, exist_ok=True)
        (folder / f"cpu{number}" / "topology" / "core_cpus_list").write_text(f"{siblings}\n")
    return folder


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)


UNKNOWN = Machine(16, (CacheLevel(2, 3 << 20),))


@pytest.mark.usefixtures("two_processors")
def test_this_machine(tmp_path: Path) -> None:
    own = this_machine(
        UNKNOWN, system(tmp_path / "own", {0: ("2048K", "0"), 1: ("1M", "1")}, {0: "0", 1: "1"})
    )
    assert own.cores == 2
    assert own.caches == (CacheLevel(1, 48 << 10), CacheLevel(2, 1 << 20), CacheLevel(3, 300 << 20, 2))
    assert own.l2_bytes == 1 << 20  # The smaller cache counts.
    shared = {0: ("2048K", "0,1"), 1: ("2048K", "0,1")}
    cores = this_machine(UNKNOWN, system(tmp_path / "cores", shared, {0: "0", 1: "1"}))
    assert cores.l2_bytes == 1 << 20
    threads = this_machine(UNKNOWN, system(tmp_path / "threads", shared, {0: "0-1", 1: "0-1"}))
    assert threads.l2_bytes == 2 << 20  # Two threads of one core share its cache with no other core.


@pytest.mark.usefixtures("two_processors")
def test_unknown(tmp_path: Path) -> None:
    assert this_machine(UNKNOWN, tmp_path).caches == UNKNOWN.caches
    strange = system(tmp_path / "strange", {0: ("", "0"), 1: ("?", "1")}, {0: "0", 1: "1"})
    assert this_machine(UNKNOWN, strange).l2_bytes == 3 << 20


def test_named_targets() -> None:
    """The description of a named target does not depend on the machine; keys of the cache have it."""

    def machine(name: str) -> tuple[int, int, int]:
        info, described = resolve(name).info, resolve(name).describe()["machine"]
        assert described == info.machine.describe()
        return info.cores, info.machine.l1_bytes >> 10, info.l2_bytes >> 10

    amx = "cpu:x86-64-v4+avx512bf16+amx-tile+amx-bf16"
    assert {
        n: machine(n)
        for n in ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", amx, "aarch64-linux", "wasm32")
    } == {
        "cpu:x86-64-v2": (16, 32, 256),
        "cpu:x86-64-v3": (16, 32, 512),
        "cpu:x86-64-v4": (16, 32, 1024),
        amx: (16, 48, 2048),
        "aarch64-linux": (16, 64, 1024),
        "wasm32": (1, 32, 256),
    }


def test_stated_facts() -> None:
    plain, told = resolve("cpu:x86-64-v4"), resolve("cpu:x86-64-v4+cores=64+l2=2M+l3=32M/8+bandwidth=2.5")
    machine = told.info.machine
    assert machine.cores == 64
    assert machine.caches == (CacheLevel(1, 32 << 10), CacheLevel(2, 2 << 20), CacheLevel(3, 32 << 20, 8))
    assert machine.core_bandwidth == 2.5
    assert plain.describe()["machine"] != told.describe()["machine"]
    assert told.describe()["features"] == plain.describe()["features"]
    native = isa_named("cpu:native+cores=3")
    assert (native.features, native.machine.cores) == (host_isa().features, 3)
    assert isa_named("cpu:native") is host_isa()


@pytest.mark.parametrize(
    ("name", "message"),
    (
        ("cpu:x86-64-v4+cores=0", "'cores=0' has no valid value; an example is cores=64"),
        ("cpu:x86-64-v4+l3=2T", "'l3=2T' has no valid value; an example is l3=2M or l3=32M/8"),
        ("cpu:native+l4=2M", "unknown fact 'l4' of a machine; known: cores, l1, l2, l3, bandwidth"),
        ("cpu:native+avx2", "unknown fact 'avx2' of a machine"),
    ),
)
def test_wrong_facts(name: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        isa_named(name)


def test_bandwidth_of_many_cores() -> None:
    """One core is limited by itself, many by the channels that they share."""
    assert [Machine(n).core_bandwidth for n in (1, 2, 16, 64)] == [4.0, 4.0, 4.0, 2.0]
    assert TargetInfo().l2_bytes == 1 << 20
