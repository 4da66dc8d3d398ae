"""The database of trials: an append-only file of JSON lines, one trial a line.

A trial is identified by a hash of its contents, so merging databases is the union of their sets of trials,
and reading a file is resuming. Several processes may append to one file. A line that a killed process left
unfinished is reported and skipped.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tilewright.artifact.version import __version__
from tilewright.errors import TilewrightError

FORMAT = 1
"""The version of the lines' format, the field "format" of each."""
Failure = Literal["compile error", "crash", "hang", "wrong"]
"""Why a candidate has no time: it does not compile; its process ended by a signal; it did not end in time;
its results differ from the default's.
"""
FAILURES: tuple[Failure, ...] = ("compile error", "crash", "hang", "wrong")
Stage = Literal["race", "final", "chosen", "model"]
"""The kinds of trials: a measurement on the search's way or in its final; the search's verdict, which is the
default's choices where nothing is faster; a measurement of the chosen candidate within the whole model.
"""


def hash_of(value: object) -> str:
    """A hash of a value that JSON holds."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class KernelKey:
    """The kernel and the machine: a measured time depends on them besides the choices."""

    kernel: str
    """A digest of the kernel's structure as canonical text."""
    triple: str
    """The target's LLVM triple."""
    features: tuple[str, ...] = ()
    """The instruction set features that code is generated for, sorted."""
    caches: tuple[int, ...] = ()
    """Bytes of the caches that a core reaches, the first level first."""
    threads: int = 1
    """Threads that run the kernel."""
    family: str = ""
    """A digest of the structure without sizes: kernels of one family are alike but for their sizes. Empty:
    unknown.
    """

    @classmethod
    def of(
        cls,
        structure: str,
        *,
        triple: str,
        features: Iterable[str] = (),
        caches: Iterable[int] = (),
        threads: int = 1,
        without_sizes: str = "",
    ) -> KernelKey:
        """The key of a kernel.

        Args:
            structure: Its structure as canonical text.
            triple: The target's LLVM triple.
            features: Its instruction set features.
            caches: Bytes of the caches that a core reaches, the first level first.
            threads: Threads that run the kernel.
            without_sizes: The structure with the sizes left out.
        """
        family = hash_of(without_sizes) if without_sizes else ""
        return cls(hash_of(structure), triple, tuple(sorted(features)), tuple(caches), int(threads), family)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> KernelKey:
        """The key whose fields JSON has held.

        Raises:
            TypeError: They are not those of a key.
        """
        named: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        return cls(**named)

    def distance(self, other: KernelKey) -> float:
        """How far the choices of the key `other` may be off: 0 for the same key, infinite for another
        family.
        """
        if self.kernel != other.kernel and (not self.family or self.family != other.family):
            return math.inf
        differs = (
            4 * (self.kernel != other.kernel),
            2 * (self.triple != other.triple),
            2 * (self.features != other.features),
            self.caches != other.caches,
            self.threads != other.threads,
        )
        return float(sum(differs))


@dataclass(frozen=True)
class Trial:
    """One candidate and what measuring it gave. Speedups are the default's time ÷ the candidate's; `seconds`
    are those of one run.

    Raises:
        ValueError: It has neither a speedup nor a failure, or a failure of an unknown kind.
    """

    key: KernelKey
    choices: Mapping[str, Any]
    """The knobs' values that differ from the defaults."""
    digest: str
    """A digest of the generated code."""
    stage: Stage = "race"
    speedup: float | None = None
    """The median; None where there is a failure."""
    lower: float | None = None
    """The lower end of the confidence interval of the speedup."""
    upper: float | None = None
    """The upper end."""
    seconds: float | None = None
    """The time of one run of the candidate."""
    samples: tuple[float, ...] = ()
    """Natural logarithms of the speedup, one for each block: a resumed search takes them again."""
    variants: tuple[Mapping[str, Any], ...] | None = None
    """A verdict for dynamic sizes, or its measurement within the model: "when", "choices" and "digest" of
    each variant. The first whose condition over the structure's sizes ``size_0``, ``size_1``, ... holds
    counts; `choices` serve all other sizes.
    """
    failure: Failure | None = None
    """Why there is no time."""
    message: str = ""
    """The failure in words."""
    task: str = ""
    """The id of the measurement, as `tilewright.tuning.execution.Task` has it; "" for other trials."""
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="microseconds"))
    """When it was measured (ISO 8601, UTC)."""
    version: str = __version__
    """The compiler's version."""

    def __post_init__(self) -> None:
        if self.failure is None and self.speedup is None:
            raise ValueError("a trial needs a speedup or a failure")
        if self.failure is not None and self.failure not in FAILURES:
            raise ValueError(f"failure {self.failure!r} is none of {', '.join(FAILURES)}")

    @cached_property
    def id(self) -> str:
        """A hash of all other fields."""
        return hash_of(self._fields())

    def _fields(self) -> dict[str, Any]:
        fields = asdict(self)
        fields["choices"] = dict(self.choices)
        if self.variants is not None:
            fields["variants"] = [dict(variant) for variant in self.variants]
        return {name: value for name, value in fields.items() if value is not None}

    def to_json(self) -> str:
        """The trial as one line."""
        return json.dumps(
            {"format": FORMAT, "id": self.id, **self._fields()}, sort_keys=True, separators=(",", ":")
        )

    @property
    def codes(self) -> tuple[tuple[str, str], ...]:
        """The condition and the digest of each variant, then "" and the digest of the code for other sizes:
        equal for trials of the same code.
        """
        return (*((str(v["when"]), str(v["digest"])) for v in self.variants or ()), ("", self.digest))

    @classmethod
    def from_json(cls, line: str) -> Trial:
        """The trial of a line.

        Raises:
            ValueError: The line is not one, is of a newer format, or its contents do not have its hash.
        """
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        number, given = fields.pop("format", None), fields.pop("id", None)
        if number != FORMAT:
            raise ValueError(f"format {number}, but this Tilewright reads format {FORMAT}")
        if given != hash_of(fields):
            raise ValueError("its contents do not have its hash")
        try:
            key = KernelKey.from_json(fields.pop("key"))
            lists = {k: tuple(v) for k, v in fields.items() if isinstance(v, list)}
            trial = cls(key, **{**fields, "samples": (), **lists})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a trial: {error}") from error
        trial.__dict__["id"] = given
        return trial

    def matches(self, digest: str) -> bool:
        """Whether replaying the choices gave, with `digest`, the code that was measured. If not, the compiler
        has changed: the choices are a seed of a new search, and the measured speedup says nothing.
        """
        return self.digest == digest


@dataclass(frozen=True)
class Damage:
    """A line that is not a trial."""

    path: Path
    line: int
    """Its number, from 1."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.reason}; the line is skipped"


class Database:
    """Trials in memory and, with a path, in a file.

    Args:
        path: The file; it need not exist. None: memory only.

    Raises:
        TilewrightError: The file cannot be read.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.damages: list[Damage] = []
        """Lines that could not be read."""
        self._trials: dict[str, Trial] = {}
        self._by_key: dict[KernelKey, list[Trial]] = {}
        self._offset, self._lines = 0, 0
        self.refresh()

    def __len__(self) -> int:
        return len(self._trials)

    def __iter__(self) -> Iterator[Trial]:
        return iter(self._trials.values())

    def __contains__(self, trial: Trial) -> bool:
        return trial.id in self._trials

    def refresh(self) -> int:
        """Read the lines that other processes have appended; return how many trials are new.

        Raises:
            TilewrightError: The file cannot be read.
        """
        if self.path is None:
            return 0
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise TilewrightError(
                f"the database {self.path} cannot be read: {error.strerror or error}"
            ) from error
        whole, newline, rest = data.rpartition(b"\n")
        before = len(self)
        for raw in whole.split(b"\n") if newline else ():
            self._lines += 1
            self._read(raw)
        self._offset += len(whole) + len(newline)
        self.torn = Damage(self.path, self._lines + 1, "the last line has no end") if rest else None
        return len(self) - before

    torn: Damage | None = None
    """The last line, if its writer was stopped while it wrote or is still writing."""

    def _read(self, raw: bytes) -> None:
        if not raw.strip():
            return
        try:
            self._keep(Trial.from_json(raw.decode()))
        except ValueError as error:
            assert self.path is not None
            self.damages.append(Damage(self.path, self._lines, str(error)))

    def _keep(self, trial: Trial) -> bool:
        if trial.id in self._trials:
            return False
        self._trials[trial.id] = trial
        self._by_key.setdefault(trial.key, []).append(trial)
        return True

    def add(self, *trials: Trial) -> int:
        """Append trials, in one write, that are not there yet; return their number. When this returns, a
        kill of this process loses none of them.

        Raises:
            TilewrightError: The file cannot be written.
        """
        new = [trial for trial in {trial.id: trial for trial in trials}.values() if trial not in self]
        if new and self.path is not None:
            self._append("".join(trial.to_json() + "\n" for trial in new).encode())
        for trial in new:
            self._keep(trial)
        return len(new)

    def _append(self, data: bytes) -> None:
        from filelock import FileLock

        assert self.path is not None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock"):
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
                try:
                    if data and not _ends_a_line(handle):
                        data = b"\n" + data  # a writer was killed in its line
                    while data:
                        data = data[os.write(handle, data) :]
                finally:
                    os.close(handle)
        except OSError as error:
            raise TilewrightError(
                f"the database {self.path} cannot be written: {error.strerror or error}; free space, or give "
                "another path"
            ) from error

    def check_writable(self) -> None:
        """Make the file, if it is not there.

        Raises:
            TilewrightError: It cannot be written.
        """
        if self.path is not None:
            self._append(b"")

    def merge(self, *others: Database | str | Path) -> int:
        """Add the trials of `others`, databases or their paths; return how many were new."""
        databases = [other if isinstance(other, Database) else Database(other) for other in others]
        return self.add(*(trial for database in databases for trial in database))

    def of(self, key: KernelKey) -> list[Trial]:
        """The trials of a key, in the order of the file."""
        return list(self._by_key.get(key, ()))

    def best(self, key: KernelKey, margin: float = 0.01) -> Trial | None:
        """The best choices known for a key; None where nothing is better than the default.

        The last final of each candidate counts, or else its last race. Only a candidate that no trial found
        wrong, crashing or hanging, and that is faster by `margin` with confidence, is taken. Compare its
        digest with that of the code that its choices give (`Trial.matches`).
        """
        latest: dict[tuple[str, str], Trial] = {}
        failed: set[tuple[str, str]] = set()
        measured = [t for t in self.of(key) if t.stage in ("race", "final")]
        for trial in sorted(measured, key=lambda t: (t.stage == "final", t.date)):
            candidate = hash_of(dict(trial.choices)), trial.digest
            if trial.failure is not None:
                failed.add(candidate)
            latest[candidate] = trial
        able = [t for c, t in latest.items() if c not in failed and (t.lower or 0.0) > 1 + margin]
        finals = [t for t in able if t.stage == "final"]
        return max(finals or able, key=lambda t: (t.lower or 0.0, t.id), default=None)

    def chosen(self, key: KernelKey) -> Trial | None:
        """The choices that `tilewright.compile` uses for a key: those of the latest search's verdict. None
        where there is none, where it is the default, where one of its codes failed, or where the latest
        measurement of these choices, with the same variants, within a whole model was not faster.
        """
        latest = max(
            (t for t in self.of(key) if t.stage == "chosen"), key=lambda t: (t.date, t.id), default=None
        )
        if latest is None or not (latest.choices or latest.variants):
            return None
        codes = {digest for _, digest in latest.codes}
        if any(t.failure is not None and t.digest in codes for t in self.of(key)):
            return None
        measured = (t for t in self.of(key) if t.stage == "model" and t.codes == latest.codes)
        inside = max(measured, key=lambda t: (t.date, t.id), default=None)
        return None if inside is not None and (inside.lower or 0.0) <= 1.0 else latest

    @property
    def keys(self) -> tuple[KernelKey, ...]:
        """The keys of all trials."""
        return tuple(self._by_key)

    def seeds(self, key: KernelKey, most: int = 8) -> list[dict[str, Any]]:
        """Choices worth trying first, at most `most`: the best of this key and of others of its kernel or
        family, the nearest first.
        """
        found: list[dict[str, Any]] = []
        near = sorted(
            (k for k in self._by_key if key.distance(k) < math.inf),
            key=lambda k: (key.distance(k), hash_of(asdict(k))),
        )
        for other in near:
            trials = [t for t in self.of(other) if t.stage in ("race", "final")]
            faster = [t for t in trials if t.failure is None and (t.speedup or 0.0) > 1]
            faster.sort(key=lambda t: (-(t.lower or 0.0), t.id))
            for trial in faster[: 3 if other != key else most]:
                if dict(trial.choices) not in found:
                    found.append(dict(trial.choices))
        return found[:most]

    def failure_of(self, key: KernelKey, choices: Mapping[str, Any], digest: str = "") -> Trial | None:
        """An earlier failure of the same code of a kernel, by its `key` and the code's `digest`, or, where
        this version could not compile them, of the same choices. A candidate that failed is not tried again.
        """
        for trial in self.of(key):
            if trial.failure == "compile error":
                if dict(trial.choices) == dict(choices) and trial.version == __version__:
                    return trial
            elif trial.failure is not None and digest and trial.matches(digest):
                return trial
        return None

    def replayed(
        self, key: KernelKey, digest_of: Callable[[Mapping[str, Any]], str]
    ) -> tuple[Trial, bool] | None:
        """The best entry of a key, and whether its choices still give the code that was measured:
        `digest_of` gives the digest of the code of choices.
        """
        best = self.best(key)
        return None if best is None else (best, best.matches(digest_of(best.choices)))


def _ends_a_line(handle: int) -> bool:
    size = os.lseek(handle, 0, os.SEEK_END)
    if size == 0:
        return True
    os.lseek(handle, size - 1, os.SEEK_SET)
    return os.read(handle, 1) == b"\n"
