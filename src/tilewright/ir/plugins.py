"""Extensions that installed packages announce through entry points.

A package names an object of its own in `pyproject.toml`::

    [project.entry-points."tilewright.targets"]
    toy = "toy_target:TARGET"

`plugins("tilewright.targets")` then has the key ``"toy"``. The packages' code is imported when a plugin is
loaded, not before, and once in a process. The groups are `tilewright.frontends`, `tilewright.passes`,
`tilewright.targets` and others; the module that reads a group says which kind of object it takes.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CompileError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class Plugin:
    """One entry point of an installed package."""

    group: str
    """The group of entry points."""
    name: str
    """The name of the entry point."""
    package: str
    """Name and version of the package, e.g. ``toy-target 1.0``."""
    entry_point: EntryPoint
    """The entry point, which `load` imports."""

    def load(self) -> object:
        """Import the package's module on the first call; return the object that the entry point names.

        Raises:
            CompileError: The module cannot be imported or lacks the object; the message names the package.
        """
        return _load(self)

    def describe(self) -> str:
        """The package and its entry point, for messages."""
        return f"package {self.package}, entry point {self.name!r} of group {self.group!r}"


@functools.cache
def _load(plugin: Plugin) -> object:
    try:
        value: object = plugin.entry_point.load()
    except Exception as error:  # code of a foreign package may raise anything
        raise CompileError(
            f"{plugin.describe()}: {plugin.entry_point.value!r} cannot be loaded "
            f"({type(error).__name__}: {error}); update or uninstall the package"
        ) from error
    return value


@functools.cache
def plugins(group: str) -> Mapping[str, Plugin]:
    """The plugins of a group by name. Reads the descriptions of installed packages; imports none of them.

    Raises:
        CompileError: Two installed packages have an entry point of one name.
    """
    from importlib.metadata import entry_points

    by_name: dict[str, Plugin] = {}
    for entry_point in entry_points(group=group):
        distribution = entry_point.dist
        package = "unknown" if distribution is None else f"{distribution.name} {distribution.version}"
        plugin = Plugin(group, entry_point.name, package, entry_point)
        other = by_name.setdefault(plugin.name, plugin)
        if other.package != package:
            raise CompileError(
                f"packages {other.package} and {package} both have an entry point {plugin.name!r} "
                f"of group {group!r}; uninstall one"
            )
    return by_name


_called: set[Plugin] = set()
"""The plugins whose functions `call_plugins` has called, or is calling."""
_calling = threading.RLock()
"""Held during the calls, so that another thread does not compile without what they register."""


def call_plugins(group: str, what: str, register: str) -> None:
    """Call the functions that the plugins of a group name, in the order of the entry points' names, each once
    in a process. A function that fails is called again at the next use.

    Args:
        group: The group of entry points.
        what: The things that the functions register, for messages.
        register: The function that they call to do so, for messages.

    Raises:
        CompileError: A package cannot be loaded, or its function fails; the message names the package.
    """
    with _calling:
        for _, plugin in sorted(plugins(group).items()):
            if plugin not in _called:
                _called.add(plugin)  # before the call, which may compile a model
                try:
                    _call(plugin, what, register)
                except BaseException:
                    _called.discard(plugin)
                    raise


def _call(plugin: Plugin, what: str, register: str) -> None:
    function = plugin.load()
    if not callable(function):
        raise CompileError(
            f"{plugin.describe()} names a {type(function).__name__}; "
            f"name a function without parameters that calls {register}"
        )
    try:
        function()
    except Exception as error:  # code of a foreign package may raise anything
        raise CompileError(
            f"{plugin.describe()}: registering its {what} failed ({type(error).__name__}: {error}); "
            "update or uninstall the package"
        ) from error


def forget_plugins() -> None:
    """Look for entry points again at the next use: packages have been installed in the running process."""
    plugins.cache_clear()
    _load.cache_clear()


__all__ = ["Plugin", "call_plugins", "forget_plugins", "plugins"]
