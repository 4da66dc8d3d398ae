"""The table of targets: built-in ones, those registered by a call, and those of installed packages."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import cast

from ..artifact.systems import system_of
from ..errors import CompileError
from ..ir.plugins import plugins
from ..schedule.rules import load_plugin_rules
from .base import Target
from .cpu.ports import PORTS

TargetFactory = Callable[[str], Target]
"""``factory(name)`` returns the target called `name`: the registered name alone, or with a colon and
features.

Raises `CompileError` for unknown features.
"""

ENTRY_POINTS = "tilewright.targets"
"""Group of entry points. The name of each is a target's name, its value a `TargetFactory`."""

TARGETS: dict[str, TargetFactory] = {}
"""Registered targets by name. The cache of compiled models notices each factory from outside the compiler."""

KNOWN_NAMES: dict[str, tuple[str, ...]] = {}
"""Names for messages, by registered target: the target's name, and its names with features."""


FAMILIES: dict[str, str] = {}
"""The heading under which a message lists a registered target; others have none."""


def register_target(
    name: str, factory: TargetFactory, *, known_names: tuple[str, ...] = (), family: str = ""
) -> None:
    """Make `name` and ``name:features`` targets of `tilewright.compile`, in place of a target registered
    earlier.

    Args:
        name: The target's name, without a colon.
        factory: Returns the target for the name that the user gave.
        known_names: Names with features, for messages that list all targets; only `name` if empty.
        family: The heading under which messages list it.

    Raises:
        ValueError: A name with a colon.
    """
    if ":" in name or not name:
        raise ValueError(f"the name of a target must not contain a colon, which separates features: {name!r}")
    TARGETS[name] = factory
    KNOWN_NAMES[name] = known_names or (name,)
    FAMILIES[name] = family


def resolve(name: str) -> Target:
    """Return the target called `name`.

    Schedule rules of installed packages are loaded as well, since they take part in every compilation.

    Raises:
        CompileError: An unknown target, with a list of the known ones, or a package that cannot be imported.
    """
    load_plugin_rules()
    family = name.partition(":")[0]
    if family not in TARGETS and family in (packages := plugins(ENTRY_POINTS)):
        register_target(family, cast(TargetFactory, packages[family].load()))
    factory = TARGETS.get(family)
    if factory is None:
        raise CompileError(f"unknown target {name!r}{_near(name)}; known: {targets_by_family()}")
    return factory(name)


def _near(name: str) -> str:
    """The question whether another spelling is meant; "" if no target's name is like `name`."""
    family, plus, features = name.partition("+")
    if plus and family in TARGETS:
        return f" (did you mean {family}:{features}?)"
    spelled = name.lower().replace("arm64", "aarch64").replace("osx", "macos")
    near = difflib.get_close_matches(spelled, known_targets(), 1, 0.75)
    return f" (did you mean {near[0]}?)" if near else ""


def targets_by_family() -> str:
    """The names of all targets, for each family in the order of registration: ``a, b; Linux: c; ...``."""
    families: dict[str, list[str]] = {}
    for target, names in KNOWN_NAMES.items():
        families.setdefault(FAMILIES.get(target, ""), []).extend(names)
    families.setdefault("", []).extend(other for other in plugins(ENTRY_POINTS) if other not in TARGETS)
    own = families.pop("")
    listed = [f"{family}: {', '.join(names)}" for family, names in families.items()]
    return "; ".join([*listed, *([f"others: {', '.join(own)}"] if own else [])])


def known_targets() -> list[str]:
    """Return the names of all targets. Packages are listed without being imported.

    Raises:
        CompileError: Two installed packages have a target of one name.
    """
    names = [text for names in KNOWN_NAMES.values() for text in names]
    return names + [other for other in plugins(ENTRY_POINTS) if other not in TARGETS]


def _built_in(module: str, function: str) -> TargetFactory:
    """Return a factory that imports a module of this package when it is called."""

    def make(name: str) -> Target:
        factory: TargetFactory = getattr(importlib.import_module(module, __package__), function)
        return factory(name)

    return make


_GPUS = {
    "opencl": (),
    "cuda": ("cuda", "cuda:sm_80", "cuda:sm_90"),
    "hip": ("hip", "hip:gfx90a", "hip:gfx942", "hip:gfx1100"),
    "metal": ("metal", "metal:macos"),
    "vulkan": (),
    "webgpu": ("webgpu", "webgpu:f16", "webgpu:subgroups"),
}

register_target(
    "cpu",
    _built_in(".cpu.target", "cpu_target"),
    known_names=("cpu", "cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4"),
    family="this processor and x86-64",
)
for _name, _isa in PORTS.items():
    register_target(_name, _built_in(".cpu.target", "cpu_target"), family=system_of(_isa.triple).family)
register_target(
    "wasm32",
    _built_in(".wasm.target", "wasm_target"),
    known_names=("wasm32", "wasm32:relaxed", "wasm32:threads", "wasm32:relaxed+threads"),
    family="WebAssembly",
)
register_target("c", _built_in(".c.target", "c_target"), family="C sources")
for _name in ("cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55"):
    register_target(_name, _built_in(".mcu.target", "mcu_target"), family="microcontrollers")
for _name, _names in _GPUS.items():
    register_target(
        _name, _built_in(f".{_name}.target", f"{_name}_target"), known_names=_names, family="GPUs"
    )

__all__ = ["TargetFactory", "known_targets", "register_target", "resolve", "targets_by_family"]
