"""Targets and schedule rules are registered by calls and by entry points, and the cache depends on their
code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects.tensor import GroupKind
from tilewright.driver import user_code
from tilewright.errors import CompileError
from tilewright.ir import plugins
from tilewright.ir.debug import VARIABLE
from tilewright.ir.plugins import forget_plugins
from tilewright.ir.target_info import TargetInfo
from tilewright.schedule import Schedule, ScheduleError
from tilewright.schedule.rules import RULES, register_schedule_rule, rules_for
from tilewright.targets import registry

X = np.linspace(-1, 1, 30, dtype=np.float32).reshape(3, 10)
Install = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the registrations of a test when it ends."""
    before = dict(RULES)
    monkeypatch.setattr(plugins, "_called", set())
    monkeypatch.setattr(registry, "TARGETS", dict(registry.TARGETS))
    monkeypatch.setattr(registry, "KNOWN_NAMES", dict(registry.KNOWN_NAMES))
    yield
    RULES.clear()
    RULES.update(before)
    forget_plugins()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that installs the module ``a_plugin`` with given code and entry points."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(code: str, entry_points: str) -> None:
        folder = tmp_path / "a_plugin-2.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plugin\nVersion: 2.0\n")
        (folder / "entry_points.txt").write_text(entry_points)
        (tmp_path / "a_plugin.py").write_text(code)
        monkeypatch.delitem(sys.modules, "a_plugin", raising=False)
        forget_plugins()

    return install


def test_unknown_targets_name_the_known_ones() -> None:
    known = (
        "this processor and x86-64: cpu, cpu:x86-64-v2, cpu:x86-64-v3, cpu:x86-64-v4; "
        "Linux: aarch64-linux, aarch64-linux-musl, x86_64-linux, x86_64-linux-musl, riscv64-linux, "
        "riscv64-linux-musl, armv7-linux, armv7-linux-musl, hexagon-linux; "
        "Android: aarch64-android, armv7-android, x86_64-android; "
        "Apple: aarch64-macos, x86_64-macos, aarch64-ios, aarch64-ios-simulator; "
        "Windows: x86_64-windows, aarch64-windows; "
        "WebAssembly: wasm32, wasm32:relaxed, wasm32:threads, wasm32:relaxed+threads; C sources: c; "
        "microcontrollers: cortex-m4, cortex-m7, cortex-m33, cortex-m55; "
        "GPUs: opencl, "
        "cuda, cuda:sm_80, cuda:sm_90, hip, hip:gfx90a, hip:gfx942, hip:gfx1100, metal, metal:macos, "
        "vulkan, webgpu, webgpu:f16, webgpu:subgroups"
    )
    with pytest.raises(CompileError, match=re.escape(f"unknown target 'abacus'; known: {known}")):
        registry.resolve("abacus")
    with pytest.raises(CompileError, match="unknown feature 'fast' of wasm32; known targets: wasm32"):
        registry.resolve("wasm32:fast")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("arm64-osx", "aarch64-macos"),
        ("aarch64-linux+dotprod", "aarch64-linux:dotprod"),
        ("x86-64-v3", "cpu:x86-64-v3"),
        ("riscv-linux", "riscv64-linux"),
    ],
)
def test_a_near_spelling_is_proposed(name: str, meant: str) -> None:
    with pytest.raises(CompileError, match=re.escape(f"unknown target '{name}' (did you mean {meant}?)")):
        registry.resolve(name)


@pytest.mark.parametrize(
    "name",
    [
        "cpu:x86-64-v4+amx-tile+amx-bf16",
        "aarch64-linux",
        "wasm32:relaxed+threads+cores=2",
        "vulkan",
        "webgpu",
        "webgpu:f16",
        "webgpu:f16+subgroups",
    ],
)
def test_every_target_describes_itself(name: str) -> None:
    target = registry.resolve(name)
    assert target.info.name == name
    assert target.lowering.info == target.info
    assert hash(target.info) == hash(registry.resolve(name).info)


def test_a_registered_target() -> None:
    cpu = registry.TARGETS["cpu"]
    registry.register_target("mine", lambda name: cpu("cpu"), known_names=("mine", "mine:fast"))
    assert "mine:fast" in registry.known_targets()
    np.testing.assert_array_equal(tw.compile(lambda x: x + 1, (X,), target="mine:fast")(X), X + 1)
    with pytest.raises(ValueError, match="must not contain a colon"):
        registry.register_target("mine:fast", cpu)


def test_a_package_that_cannot_be_imported_is_named(install: Install) -> None:
    install("import no_such_driver\n", "[tilewright.targets]\nodd = a_plugin:make\n")
    assert registry.resolve("cpu").name == "cpu"
    with pytest.raises(CompileError, match=r"package a-plugin 2\.0.*no_such_driver"):
        registry.resolve("odd")


RULE = """
from tilewright.schedule.rules import register_schedule_rule

def rule(s, rows):
    for block in s.blocks():
        s.vectorize(s.loops(block.sym_name)[-1], {lanes})

def register():
    register_schedule_rule("rows", rule, target="cpu")
"""


def test_a_package_replaces_a_rule(install: Install) -> None:
    function = lambda x: tw.numpy.tanh(x) * 3  # noqa: E731
    assert "vectorize" in tw.compile(function, (X,), cache=False).ir("loop")
    install(RULE.format(lanes=2), "[tilewright.schedule_rules]\nmine = a_plugin:register\n")
    library = tw.compile(function, (X,), cache=False)
    assert "vectorize(2)" in library.ir("loop") or "step = 2" in library.ir("loop")
    np.testing.assert_allclose(library(X), np.tanh(X) * 3, rtol=1e-6)


def test_a_package_whose_rules_fail_is_named(install: Install) -> None:
    install("def register():\n    return 1 / 0\n", "[tilewright.schedule_rules]\nmine = a_plugin:register\n")
    with pytest.raises(CompileError, match=r"package a-plugin 2\.0.*ZeroDivisionError"):
        registry.resolve("cpu")


def test_the_most_specific_rule_is_tried_first() -> None:
    def rule_of(text: str) -> Any:
        def rule(s: Schedule, rows: int) -> None:
            raise ScheduleError(text)

        rule.__name__ = text
        return rule

    info = TargetInfo(name="cpu:x86-64-v4")
    for target in ("", "cpu", "cpu:x86-64-v4", "wasm32"):
        register_schedule_rule("odd", rule_of(target or "all"), target=target)
    own = {GroupKind.PLAIN: rule_of("plain")}
    names = [rule.__name__ for rule in rules_for("odd", info, own)]
    assert names == ["cpu:x86-64-v4", "cpu", "all", "plain"]
    assert [rule.__name__ for rule in rules_for("new", info, own)] == ["plain"]


def test_the_target_s_own_rule_follows_one_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(s: Schedule, rows: int) -> None:
        raise ScheduleError("not this kernel")

    monkeypatch.delenv(VARIABLE, raising=False)
    function = lambda x: tw.numpy.tanh(x) * 3  # noqa: E731
    wanted = tw.compile(function, (X,), cache=False).ir("loop")
    register_schedule_rule("rows", refuse)
    library = tw.compile(function, (X,), cache=False)
    assert library.ir("loop") == wanted
    assert list(library.report.slower.values()) == ["not this kernel"]


def test_the_cache_notices_targets_and_rules() -> None:
    def rule(s: Schedule, rows: int) -> None:
        raise ScheduleError("first")

    def other(s: Schedule, rows: int) -> None:
        raise ScheduleError("second")

    seen = [user_code.fingerprint()]
    register_schedule_rule("rows", rule)
    seen.append(user_code.fingerprint())
    register_schedule_rule("rows", other)
    seen.append(user_code.fingerprint())
    cpu = registry.TARGETS["cpu"]
    registry.register_target("mine", lambda name: cpu("cpu"))
    seen.append(user_code.fingerprint())
    registry.register_target("mine", lambda name: cpu("cpu:x86-64-v3"))
    seen.append(user_code.fingerprint())
    assert len(set(seen)) == len(seen)
