"""The table of targets: built-in ones, those registered by a call, and those of installed packages."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from ..errors import CompileError
from ..ir.plugins import plugins
from ..schedule.rules import load_plugin_rules
from .base import Target

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


def register_target(name: str, factory: TargetFactory, *, known_names: tuple[str, ...] = ()) -> None:
    """Make `name` and ``name:features`` targets of `tilewright.compile`, in place of a target registered
    earlier.

    Args:
        name: The target's name, without a colon.
        factory: Returns the target for the name that the user gave.
        known_names: Names with features, for messages that list all targets; only `name` if empty.

    Raises:
        ValueError: A name with a colon.
    """
    if ":" in name or not name:
        raise ValueError(f"the name of a target must not contain a colon, which separates features: {name!r}")
    TARGETS[name] = factory
    KNOWN_NAMES[name] = known_names or (name,)


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
        raise CompileError(f"unknown target {name!r}; known: {', '.join(known_targets())}")
    return factory(name)


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


register_target(
    "cpu",
    _built_in(".cpu.target", "cpu_target"),
    known_names=("cpu", "cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4"),
)
register_target("aarch64-linux", _built_in(".cpu.target", "cpu_target"))
register_target(
    "wasm32",
    _built_in(".wasm.target", "wasm_target"),
    known_names=("wasm32", "wasm32:relaxed", "wasm32:threads", "wasm32:relaxed+threads"),
)
register_target("opencl", _built_in(".opencl.target", "opencl_target"))
register_target(
    "cuda",
    _built_in(".cuda.target", "cuda_target"),
    known_names=("cuda", "cuda:sm_80", "cuda:sm_90"),
)
register_target(
    "hip",
    _built_in(".hip.target", "hip_target"),
    known_names=("hip", "hip:gfx90a", "hip:gfx942", "hip:gfx1100"),
)
register_target("metal", _built_in(".metal.target", "metal_target"), known_names=("metal", "metal:macos"))
register_target("vulkan", _built_in(".vulkan.target", "vulkan_target"))
register_target("webgpu", _built_in(".webgpu.target", "webgpu_target"))

__all__ = ["TargetFactory", "known_targets", "register_target", "resolve"]
