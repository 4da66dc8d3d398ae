"""The option `tuned` of `tilewright.compile`: the entries of a database of trials that are for one target and
number of threads.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..analysis.size_names import number_sizes
from ..artifact import disk_cache
from ..errors import CompileError, TunedWarning
from ..lowering.kernel_forms import without_sizes
from ..schedule.tuned import TunedChoices
from .cores import usable_cores
from .tuning_database import Database, KernelKey, Trial

if TYPE_CHECKING:
    from ..dialects import loop
    from ..targets.base import Target

Key = Callable[[str], KernelKey]
"""The key of a kernel from the text of its structure."""


def keys_for(target: Target, threads: int | None) -> Key:
    """The function from a kernel's structure to its key on a target, with so many threads (None: all
    cores).
    """
    described = target.describe()
    features = [*described.get("features", ()), *(f"emulated {f}" for f in described.get("emulated", ()))]
    caches = [level.size for level in sorted(target.info.machine.caches, key=lambda level: level.level)]
    triple = str(described.get("triple", target.name))

    def key(structure: str) -> KernelKey:
        return KernelKey.of(
            structure,
            triple=triple,
            features=features,
            caches=caches,
            threads=threads or usable_cores(),
            without_sizes=without_sizes(structure),
        )

    return key


def digest_of(target: Target, kernel: loop.Kernel) -> str:
    """The digest of the code of a finalized kernel, as trials keep it: equal for kernels that differ in the
    names of their sizes only.
    """
    return disk_cache.digest(target.kernel_code(number_sizes(kernel)[0]))


class Tuned:
    """The choices of a database for a target and a number of threads."""

    def __init__(self, database: Database, target: Target, threads: int | None) -> None:
        """Read the entries of `database`."""
        self.database, self.target = database, target
        self._key = keys_for(target, threads)
        here = self._key("")
        self._entries: dict[KernelKey, Trial] = {}
        for key in database.keys:
            if _machine(key) == _machine(here) and (entry := database.chosen(key)) is not None:
                self._entries[key] = entry
        self.others = sorted({_machine(key) for key in database.keys} - {_machine(here)})
        """The triples, features, caches and numbers of threads of entries that are for other machines."""
        self.here = any(_machine(key) == _machine(here) for key in database.keys)
        """Whether there are trials of this machine."""

    def find(self, structure: str) -> TunedChoices | None:
        """The choices for the kernel with this structure."""
        entry = self._entries.get(self._key(structure))
        if entry is None:
            return None
        variants = (TunedChoices(v["choices"], v["digest"], v["when"]) for v in entry.variants or ())
        return TunedChoices(entry.choices, entry.digest, variants=tuple(variants))

    def digest(self, kernel: loop.Kernel) -> str:
        """A digest of the code of a finalized kernel."""
        return digest_of(self.target, kernel)

    def key(self) -> str:
        """Text that differs for different entries, for the key of the cache of compiled models."""
        entries = (
            (key.kernel, sorted(e.choices.items()), e.digest, [*map(dict, e.variants or ())])
            for key, e in self._entries.items()
        )
        return json.dumps(sorted(entries, key=lambda e: e[0]))


def _machine(key: KernelKey) -> tuple[str, tuple[str, ...], tuple[int, ...], int]:
    return key.triple, key.features, key.caches, key.threads


def tuned_option(tuned: object, target: Target, threads: int | None) -> Tuned | None:
    """The option `tuned`, checked: a `Database`, or the path of one. A warning names what cannot be used.

    Raises:
        CompileError: It is something else, or there is no such file.
        TilewrightError: The file cannot be read.
    """
    if tuned is None:
        return None
    if isinstance(tuned, (str, Path)):
        if not Path(tuned).is_file():
            raise CompileError(f"tuned: there is no file {tuned}; tilewright.tune(..., database=) writes one")
        tuned = Database(tuned)
        for damage in (*tuned.damages, *([tuned.torn] if tuned.torn else ())):
            warnings.warn(f"tuned: {damage}", TunedWarning, stacklevel=4)
    if not isinstance(tuned, Database):
        raise CompileError(
            f"tuned is of type {type(tuned).__name__}: give the database that tilewright.tune returns, or "
            "its path"
        )
    found = Tuned(tuned, target, threads)
    if not found.here and found.others:
        known = "; ".join(
            f"{triple}, {count} threads, caches of {'/'.join(map(str, caches)) or '?'} bytes"
            for triple, _, caches, count in found.others
        )
        count = threads or usable_cores()
        warnings.warn(
            f"tuned: no trial is for target {target.name} with {count} threads; there are trials for {known}",
            TunedWarning,
            stacklevel=4,
        )
    return found


__all__ = ["Tuned", "digest_of", "keys_for", "tuned_option"]
