"""Candidates that crash, hang or are wrong: kept with all that is needed to see the failure again,
wherever they were measured.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..artifact.choices import Knob
from ..driver.tuning_database import KernelKey
from ..errors import TilewrightError
from . import worker
from .execution import Task
from .harness import KernelDescription
from .measure import Built, Measurement, Measurer

_FORMAT = 1
_FILE = "failure.json"


@dataclass(frozen=True)
class Failure:
    """A failure that was kept, and its replay."""

    kernel: str
    """The kernel's name in its model."""
    choices: Mapping[str, Knob]
    """The knobs' values that differ from the defaults."""
    recorded: str
    """The failure when it was recorded, in words."""
    again: Measurement
    """The result of measuring it again."""


@dataclass(frozen=True)
class Failures:
    """Keeps the failures of a kernel's candidates, each in a folder of its own."""

    folder: Path
    kernel: str = ""
    """The kernel's name in its model."""
    structure: str = ""
    """The text of the unscheduled kernel: see `tilewright.lowering.kernel_forms.structure_of`."""

    def keep(self, task: Task, choices: Mapping[str, Knob], found: Measurement) -> Measurement:
        """Save the libraries of a task, the structure and the choices; return its failure with the command
        that replays it.

        Raises:
            TilewrightError: The folder cannot be written.
        """
        own = self.folder / f"{found.failure}-{task.candidate.digest or task.candidate.library.stem}"
        fields: dict[str, Any] = {
            "format": _FORMAT,
            "failure": found.failure,
            "message": found.message,
            "kernel": self.kernel,
            "choices": dict(choices),
            "structure": self.structure,
            "key": asdict(task.key),
            "blocks": task.blocks,
        }
        try:
            own.mkdir(parents=True, exist_ok=True)
            for side, built in (("default", task.default), ("candidate", task.candidate)):
                name = f"{side}{built.library.suffix}"
                shutil.copyfile(built.library, own / name)
                fields[side] = {"library": name, "kernel": built.kernel.to_json(), "digest": built.digest}
            (own / _FILE).write_text(json.dumps(fields, indent=1) + "\n")
        except OSError as error:
            raise TilewrightError(
                f"the failed candidate cannot be kept in {own}: {error.strerror or error}; free space, or "
                "put the database elsewhere"
            ) from error
        command = f"tilewright tune --replay {shlex.quote(str(own.absolute()))}"
        return replace(found, message=f"{found.message}; to see it again: {command}")


def replay(folder: Path, measurer: Measurer | None = None) -> Failure:
    """Measure a kept failure again on this machine.

    Raises:
        TilewrightError: There is none in the folder, this machine cannot run it, or its default fails too.
    """
    try:
        fields = json.loads((folder / _FILE).read_text())
        if fields["format"] != _FORMAT:
            raise ValueError(f"its format is {fields['format']}, this Tilewright reads {_FORMAT}")
        key = KernelKey.from_json(fields["key"])
        default, candidate = (
            Built(
                folder / fields[side]["library"],
                KernelDescription.from_json(fields[side]["kernel"]),
                fields[side]["digest"],
            )
            for side in ("default", "candidate")
        )
        told = fields["kernel"], fields["choices"], f"{fields['failure']}: {fields['message']}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TilewrightError(
            f"{folder} holds no failed candidate ({error}); give a folder that `tilewright tune` names in "
            "its database"
        ) from error
    here = worker.describe()
    missing = sorted(set(key.features) - set(here["features"]))
    if here["triple"] != key.triple or missing:
        lacks = f" with {', '.join(missing)}" if missing else ""
        raise TilewrightError(
            f"the code in {folder} is for {key.triple}{lacks}, which this machine is not; replay it on such "
            "a machine"
        )
    measurer = replace(measurer or Measurer(), cache_bytes=max(key.caches, default=0))
    return Failure(*told, measurer.measure(default, candidate, int(fields["blocks"])))


__all__ = ["Failure", "Failures", "replay"]
