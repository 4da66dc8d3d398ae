"""`Log`: the record of a training run, for TensorBoard and on the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import TrainingError
from ..runtime.inspection import InspectedValue
from .program import OWN
from .step import TrainStep

LINES_EVERY = 10.0
"""Seconds between two lines of progress where stderr is no terminal. A larger value makes shorter logs."""


class Log:
    """Writes the course of a training run to a folder that TensorBoard reads, and shows its progress.

    ``with Log("runs/first", step, total=300) as log:`` around the loop, and ``log(step(x, y))`` in it. Every
    `every` steps the mean loss since the last time, further results of the loss, the norm of the gradient and
    the factor of the loss (where the step computes them) and the steps per second are written. On a terminal
    a bar shows the loss, the speed and the time that is left; elsewhere a line from time to time does. Both
    go to stderr. The horizontal axis is `TrainStep.steps`, so that a run continued from a checkpoint
    continues its curves; what the interrupted run wrote beyond the checkpoint is hidden.

    In several processes all make a `Log`, and that of rank 0 writes and shows.

    Args:
        folder: The folder, which is made; None only shows the progress. ``tensorboard --logdir runs``
            compares the runs in the folders below ``runs``.
        step: The training step.
        total: The number of steps of the run, those before a checkpoint included; None: not known.
        every: Steps between two writes.
        progress: Whether to show the progress.

    Raises:
        TrainingError: tensorboardX is not installed, or the folder cannot be made.
    """

    def __init__(
        self,
        folder: str | Path | None,
        step: TrainStep,
        *,
        total: int | None = None,
        every: int = 10,
        progress: bool = True,
    ) -> None:
        self._step, self._every = step, max(every, 1)
        self._first = step.rank == 0
        self._writer = None if folder is None or not self._first else _writer(Path(folder), step.steps)
        self._shown = _shown(step.steps, total) if progress and self._first else None
        self._seen, self._since = 0, time.perf_counter()
        self._sums: dict[str, float] = {}

    def __call__(self, results: Any) -> Any:
        """Take note of a step.

        Args:
            results: The result of the step: the loss, or a pair of it and a dictionary of further results.

        Returns:
            `results`.
        """
        loss, more = results if isinstance(results, tuple) else (results, {})
        if self._first:
            scalars = {n: x for n, x in more.items() if np.size(x) == 1}
            for name, value in {"loss": loss, **scalars}.items():
                self._sums[name] = self._sums.get(name, 0.0) + float(value)
            self._seen += 1
            if self._seen == self._every:
                self._write()
            if self._shown is not None:
                self._shown.advance(float(loss))
        return results

    def scalar(self, name: str, value: Any) -> None:
        """Write a number beside the present step, such as the loss on other data.

        Args:
            name: Its name; ``validation/loss`` stands in a group of its own.
            value: A number, or a tensor of one element.
        """
        if self._writer is not None:
            self._writer.add_scalar(name, float(value), self._step.steps)

    def histograms(self, values: Mapping[str, Any]) -> None:
        """Write how the finite elements of tensors are distributed beside the present step.

        Args:
            values: Tensors by name, such as ``step.state_dict()`` or what `tilewright.grad` returns, or
                values inside of a run: ``step.library.inspect(x, y, "layers.*")``.
        """
        if self._writer is None:
            return
        for name, value in values.items():
            array = value.array if isinstance(value, InspectedValue) else np.asarray(value)
            elements = array.astype(np.float64).ravel()
            finite = elements[np.isfinite(elements)]
            if finite.size:
                self._writer.add_histogram(name.replace(".", "/"), finite, self._step.steps)

    def close(self) -> None:
        """Write what is left and end the progress. May be called twice."""
        if self._seen:
            self._write()
        if self._writer is not None:
            self._writer.close()
        if self._shown is not None:
            self._shown.close()
        self._writer = self._shown = None

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self) -> None:
        now = time.perf_counter()
        scalars = {n: s / self._seen for n, s in self._sums.items()}
        state = self._step.library.state
        scalars |= {n: float(state[OWN + n]) for n in ("gradient_norm", "loss_scale") if OWN + n in state}
        for name, value in {**scalars, "steps_per_second": self._seen / (now - self._since)}.items():
            self.scalar(f"training/{name}", value)
        self._seen, self._since, self._sums = 0, now, {}


def _writer(folder: Path, steps: int) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ModuleNotFoundError:
        raise TrainingError(
            "the files of TensorBoard are written with tensorboardX: pip install 'tilewright[tensorboard]', "
            "or give None in place of the folder"
        ) from None
    try:
        # The names of two files that are begun in one second would be equal without the suffix.
        return SummaryWriter(str(folder), purge_step=steps + 1, flush_secs=10, filename_suffix=f".{steps}")
    except OSError as error:
        raise TrainingError(f"{folder}: cannot be written: {error.strerror or error}") from error


class _Bar:
    """A bar on a terminal."""

    def __init__(self, done: int, total: int | None) -> None:
        from rich import progress
        from rich.console import Console

        self.bar = progress.Progress(
            progress.TextColumn("step"),
            progress.MofNCompleteColumn(),
            progress.BarColumn(),
            progress.TextColumn("loss {task.fields[loss]:.4g}, {task.fields[speed]:.3g} steps/s"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            refresh_per_second=4,
        )
        self.task = self.bar.add_task("", total=total, completed=done, loss=float("nan"), speed=0.0)
        self.bar.start()

    def advance(self, loss: float) -> None:
        """Show one step more, with its loss."""
        speed = self.bar.tasks[0].speed or 0.0
        self.bar.update(self.task, advance=1, loss=loss, speed=speed)

    def close(self) -> None:
        """Leave the bar as it is."""
        self.bar.stop()


class _Lines:
    """A line from time to time, for files and pipes."""

    def __init__(self, done: int, total: int | None) -> None:
        self.done, self.first, self.total = done, done, total
        self.start = self.last = time.perf_counter()
        self.loss = float("nan")

    def advance(self, loss: float) -> None:
        """Count a step with this loss."""
        self.done, self.loss = self.done + 1, loss
        if time.perf_counter() - self.last >= LINES_EVERY:
            self._print()

    def close(self) -> None:
        """Print the last step."""
        if self.done > self.first:
            self._print()

    def _print(self) -> None:
        self.last = time.perf_counter()
        speed = (self.done - self.first) / (self.last - self.start)
        parts = [f"step {self.done}" + ("" if self.total is None else f" of {self.total}")]
        parts += [f"loss {self.loss:.4g}", f"{speed:.3g} steps/s"]
        if self.total is not None and self.total > self.done:
            parts.append(f"about {(self.total - self.done) / speed:.0f} s left")
        print(", ".join(parts), file=sys.stderr, flush=True)


def _shown(done: int, total: int | None) -> _Bar | _Lines:
    return _Bar(done, total) if sys.stderr.isatty() else _Lines(done, total)


__all__ = ["Log"]
