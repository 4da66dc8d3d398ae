"""`tilewright.tune`: measure schedules of a model's kernels on this machine, and keep the best."""

from __future__ import annotations

import re
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifact import temporary
from ..driver.compile import Compilation, compile
from ..driver.cores import usable_cores
from ..driver.opt_levels import DEFAULT, opt_level
from ..driver.random_inputs import LARGEST_SIZE, random_inputs, symbol_bounds
from ..driver.tuned import Tuned, keys_for
from ..driver.tuning_database import Database, Trial
from ..errors import CompileError, TilewrightError, TunedWarning
from ..lowering.kernel_forms import structure_of
from ..runtime.model import CompiledModel
from ..runtime.tensors import to_numpy
from ..schedule.tuned import TUNED
from ..targets.registry import resolve
from ..tools.roofline import machine
from .confirm import Confirmation, compare, speedup
from .distributed import DaskExecutor
from .execution import Executor, LocalExecutor
from .failures import Failures
from .kernels import Builder, ModelKernel, kernels_of
from .measure import Measurer
from .runner import Runner
from .search import Search, Settings
from .session import KernelState, Progress, Session
from .shapes import candidates_for, measure_shapes, sample_evenly, shapes_to_measure, verdict_of
from .space import Point

if TYPE_CHECKING:
    from ..dialects.kernels import KernelDefinition
    from ..frontends.dims import DimsArgument
    from ..schedule.kernel_schedule import KernelSchedule

_BUDGET = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)
CONFIRMING = 0.1
"""The part of the budget for comparing whole models."""
ANCHORS = 3
"""Shapes at which candidates are searched for, where there are several."""
SERVING = 0.5
"""The part of the budget for measuring the candidates at all shapes, where there are several."""
COMPARED = 4
"""Shapes at which whole models are compared."""
SETTINGS = Settings(trials=300)
"""The searches' settings. They do not depend on the budget, so that a longer session takes up a shorter one's
trials."""

Report = Callable[[Progress], None]
"""Called with the progress, several times a second."""


def tune(
    model: object,
    args: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    budget: str | float = "10m",
    database: str | Path | Database = "tuned.jsonl",
    target: str = "cpu",
    threads: int | None = None,
    precision: str | None = None,
    dims: DimsArgument | None = None,
    kwargs: Mapping[str, Any] | None = None,
    opt: str = DEFAULT,
    checks: bool = True,
    replace: Sequence[KernelDefinition] = (),
    schedules: Sequence[KernelSchedule] = (),
    seed: int = 0,
    progress: Report | None = None,
    executor: Executor | str | None = None,
    shapes: int | Sequence[Mapping[str, int]] | None = None,
) -> Database:
    """Search for faster schedules of a model's kernels by measuring them on this machine.

    Each kernel of the model gets a part of the budget. A candidate is compiled, measured in a process of its
    own beside the compiler's default, and its results are compared with the default's. All trials are
    appended to the database at once: an interrupted call loses none, and a later call goes on from there.
    Give the database to `tilewright.compile`, with the same target and number of threads:

        database = tw.tune(model, args, budget="10m")
        library = tw.compile(model, args, tuned=database)

    Args:
        model: A model, as for `tilewright.compile`.
        args: Example inputs. Dynamic dimensions are measured at their sizes, unless there are `shapes`.
        budget: The time to spend, from the end of the first compilation on: seconds, or a text such as "90s",
            "10m" or "1h30m".
        database: The file of trials, or an open database.
        target: The target to tune for, which this machine must be able to run.
        threads: The number of threads to tune for. The default is all cores of the process.
        precision: See `tilewright.compile`.
        dims: See `tilewright.compile`.
        kwargs: Example inputs by name.
        opt: See `tilewright.compile`.
        checks: See `tilewright.compile`.
        replace: See `tilewright.compile`.
        schedules: Schedules of your own. Their kernels are not tuned.
        seed: The seed of the searches' random decisions.
        progress: Called with the progress: see `tilewright.tuning.session.Progress`.
        executor: Measures candidates: the address of a Dask scheduler, whose workers do it (see
            `tilewright.tuning.distributed.DaskExecutor`), or an executor of your own. The default measures in
            processes of this machine, one at a time.
        shapes: The sizes of dynamic dimensions to tune for, by name: ``[{"batch": 1, "seq": 64}, ...]``; or
            their number, for sizes that are spread between the bounds of `dims`. A kernel then has up to four
            variants, which a run chooses by the sizes of its inputs.

    Returns:
        The database.

    Raises:
        CompileError: The model or an option is wrong, or nothing can be measured for the target.
        TilewrightError: The database cannot be read or written.
    """
    seconds = seconds_of(budget)
    resolved = resolve(target)
    _check_target(resolved, executor)
    trials = open_database(database)
    report = progress or (lambda _: None)
    report(Progress("compiling", 0.0, seconds))
    options: dict[str, Any] = {
        "target": target, "precision": precision, "dims": dims, "kwargs": kwargs, "threads": threads,
        "opt": opt, "checks": checks, "replace": replace, "schedules": schedules,
    }  # fmt: skip
    library = compile(model, args, cache=False, **options)
    compilation = library.origin
    if not isinstance(compilation, Compilation):
        raise CompileError("tune: the interpreter runs parts of this model; it cannot be tuned")
    tuning = _Tuning(compilation, library, trials, threads or usable_cores(), seed, seconds, report)
    if shapes is not None:
        tuning.shapes = shapes_to_measure(shapes, symbol_bounds(library.metadata))
    own: Executor | None = None
    try:
        with tempfile.TemporaryDirectory(dir=temporary.folder(), prefix="tune-") as folder:
            if executor is None:
                caches = compilation.target.info.machine.caches
                measurer = Measurer(cache_bytes=max((c.size for c in caches), default=0))
                executor = own = LocalExecutor(measurer)
            elif isinstance(executor, str):
                executor = own = DaskExecutor(executor)
            tuning.search(args, executor, Path(folder), opt_level(opt).llvm)
    finally:
        if own is not None:
            own.close()
    if tuning.can_run:
        tuning.confirm()
    tuning.tell("done")
    return trials


def seconds_of(budget: str | float) -> float:
    """The seconds of a budget.

    Raises:
        CompileError: It is no time.
    """
    if isinstance(budget, (int, float)) and not isinstance(budget, bool):
        seconds = float(budget)
    else:
        found = _BUDGET.fullmatch(str(budget).strip())
        parts = found.groups() if found else ()
        seconds = sum(float(n) * u for n, u in zip(parts, (3600.0, 60.0, 1.0), strict=False) if n)
    if not 0 < seconds < float("inf"):
        raise CompileError(f"budget: {budget!r} is no time; write seconds, or 90s, 10m, 1h30m")
    return seconds


def open_database(database: str | Path | Database) -> Database:
    """A database that can be written; damaged lines are warned of.

    Raises:
        TilewrightError: It cannot be read or written.
    """
    if isinstance(database, Database):
        return database
    found = Database(database)
    for damage in (*found.damages, *([found.torn] if found.torn else ())):
        warnings.warn(str(damage), TunedWarning, stacklevel=3)
    found.check_writable()
    return found


def _check_target(target: Any, executor: Executor | str | None) -> None:
    if not target.measures_kernels:
        raise CompileError(
            f"tune: kernels for the target {target.name} cannot be measured apart from a model; targets that "
            "can be tuned are cpu and its variants"
        )
    if not target.runs_here and executor is None:
        raise CompileError(
            f"tune: this machine cannot run code for {target.name}, so nothing can be measured; run tune on "
            "such a machine and use its database here, or give it workers that are such machines (executor)"
        )


class _Tuning:
    """One call of `tune`."""

    def __init__(
        self,
        compilation: Compilation,
        library: CompiledModel,
        database: Database,
        threads: int,
        seed: int,
        seconds: float,
        report: Report,
    ) -> None:
        self.compilation, self.library, self.database = compilation, library, database
        self.threads, self.seed, self.seconds = threads, seed, seconds
        self.begun = time.monotonic()
        self.report = report
        self.states: list[KernelState] = []
        self.notes: list[str] = []
        self.inputs: list[list[np.ndarray]] = []
        """Inputs of the sizes at which whole models are compared."""
        self.shapes: list[dict[str, int]] = []
        """The sizes to find variants for; empty: one size is searched for."""
        self.can_run = compilation.target.runs_here and list(library.functions) == ["main"]

    def tell(self, stage: Any) -> None:
        elapsed = time.monotonic() - self.begun
        self.report(Progress(stage, elapsed, self.seconds, tuple(self.states), tuple(self.notes)))

    def search(self, args: Any, executor: Executor, folder: Path, llvm_opt_level: int) -> None:
        """Search for all kernels within the budget, without the part for the comparison of whole models."""
        self.begun = time.monotonic()
        left = self.seconds * (1 - CONFIRMING)
        if not self.shapes:
            self._search_at(self._sizes(args), args, executor, folder, llvm_opt_level, left)
            return
        anchors = sample_evenly(self.shapes, ANCHORS)
        for sizes in anchors:
            part = left * (1 - SERVING) / len(anchors)
            self._search_at(sizes, None, executor, folder, llvm_opt_level, part)
        self._serve_shapes(executor, folder, llvm_opt_level, self.begun + left)

    def _search_at(
        self,
        sizes: Mapping[str, int],
        args: Any,
        executor: Executor,
        folder: Path,
        llvm_opt_level: int,
        seconds: float,
    ) -> None:
        """Search for all kernels at one size of each dynamic dimension."""
        target = self.compilation.target
        kernels, others = kernels_of(self.compilation, keys_for(target, self.threads), sizes)
        notes = [f"kernel '{other.name}' is left out: {other.reason}" for other in others]
        self.notes += [note for note in notes if note not in self.notes]
        times = self._times(args, sizes)
        self.states = [self._state(kernel, times) for kernel in kernels]
        if not kernels:
            self.notes.append("no kernel of this model has a schedule with choices: there is nothing to tune")

        def start(kernel: ModelKernel) -> Runner:
            builder = Builder(kernel, target, folder, self.threads, llvm_opt_level)
            seeds = self.database.seeds(kernel.key)
            search = Search(kernel.space(), seed=self.seed, settings=SETTINGS, seeds=seeds)
            return Runner(search, kernel.key, builder, self.database, self._failures(kernel))

        if not self.shapes:
            self.begun = time.monotonic()
        session = Session(
            self.states, self.database, executor, start, seconds, lambda: self.tell("searching")
        )
        session.run()
        for state in self.states:
            if state.state == "left out" and not self.shapes:
                self.notes.append(f"kernel '{state.kernel.name}' is left out: {state.reason}")

    def _failures(self, kernel: ModelKernel) -> Failures | None:
        """The folder of failed candidates, beside the database; None if the database has no file."""
        path = self.database.path
        if path is None:
            return None
        folder = path.with_name(f"{path.stem}-failures")
        return Failures(folder, kernel.name, structure_of(kernel.form.group))

    def _serve_shapes(self, executor: Executor, folder: Path, llvm_opt_level: int, end: float) -> None:
        """Measure the best candidates of the searches at all shapes, and choose variants."""
        target = self.compilation.target
        key = keys_for(target, self.threads)
        at = [{k.name: k for k in kernels_of(self.compilation, key, sizes)[0]} for sizes in self.shapes]
        states = [s for s in self.states if self.database.of(s.kernel.key)]
        states.sort(key=lambda s: -s.weight)

        def build(kernel: ModelKernel, points: Sequence[Point]) -> Sequence[Any]:
            return Builder(kernel, target, folder, self.threads, llvm_opt_level)(points)

        for number, state in enumerate(states):
            name = state.kernel.name
            own = {tuple(kernels[name].sizes.items()): kernels[name] for kernels in at}
            if len(own) < 2:
                continue  # its sizes do not change
            if time.monotonic() >= end:
                self.notes.append(f"kernel '{name}' has no variants: the budget is used")
                continue
            state.state = "is compared"
            self.tell("searching")
            weight = state.weight / (sum(s.weight for s in states[number:]) or 1.0)
            until = time.monotonic() + weight * (end - time.monotonic())
            points = candidates_for(self.database, state.kernel)
            try:
                shares, digests = measure_shapes(list(own.values()), points, build, executor, until)
            except TilewrightError as error:
                state.state, state.reason = "left out", str(error)
                self.notes.append(f"kernel '{name}' is left out: {state.reason}")
                continue
            trial, variants = verdict_of(state.kernel, [dict(s) for s in own], points, shares, digests)
            self.database.add(trial)
            state.state, state.speedup = "done", trial.speedup or 1.0
            if len(variants) > 1:
                ranges = "; ".join(v.when or "otherwise" for v in variants)
                self.notes.append(f"kernel '{name}' has variants: {ranges}")
        if self.can_run:
            few = sample_evenly(self.shapes, COMPARED)
            self.inputs = [list(random_inputs(self.library.metadata, sizes).values()) for sizes in few]

    def confirm(self) -> None:
        """Keep only choices that make their kernels faster within the model, and the model as a whole."""
        for _ in range(3):
            chosen = self._chosen()
            if not chosen:
                return
            self.tell("confirming")
            if self._confirm(chosen):
                return

    def _chosen(self) -> list[tuple[KernelState, Trial]]:
        found = [(state, self.database.chosen(state.kernel.key)) for state in self.states]
        return [(state, trial) for state, trial in found if trial is not None]

    def _confirm(self, chosen: list[tuple[KernelState, Trial]]) -> bool:
        """Compare the model with the choices with the default; return whether all of them stay."""
        target = self.compilation.target
        library = self.compilation.with_choices(Tuned(self.database, target, self.threads))
        with library:
            tuned = library.report.tuned
            used = [(s, t) for s, t in chosen if tuned.get(s.kernel.name, TUNED) == TUNED]
            left = self.seconds - (time.monotonic() - self.begun)
            found = Confirmation.of(
                [
                    compare(
                        self.library,
                        library,
                        inputs,
                        [state.kernel.name for state, _ in used],
                        any(self._reorders(state, trial) for state, trial in used),
                        max(1.0, left / 2) / len(self.inputs),
                    )
                    for inputs in self.inputs
                ]
            )
        if found.wrong:
            self.notes.append(f"no choice is kept: within the model {found.wrong}")
        slower = found.whole.upper < 0
        if slower and not found.wrong:
            self.notes.append("no choice is kept: the model as a whole is slower with them")
        dropped = False
        for state, trial in used:
            if found.wrong or slower:
                median, lower, upper = 1.0, 0.0, 1.0
            else:
                median, lower, upper = speedup(found.estimate(state.kernel.name))
            drop = lower <= 1.0
            dropped |= drop
            samples = () if found.wrong else found.kernels[state.kernel.name]
            fields: dict[str, Any] = {"speedup": median, "lower": lower, "upper": upper, "samples": samples}
            fields["variants"] = trial.variants
            self.database.add(Trial(trial.key, trial.choices, trial.digest, "model", **fields))
            state.speedup = 1.0 if drop else median
            if drop and not (found.wrong or slower):
                state.reason = f"alone {trial.speedup:.2f}×, but not faster within the model ({median:.3f}×)"
                self.notes.append(f"kernel '{state.kernel.name}': {state.reason}; it keeps its default")
        if not dropped:
            whole = exp(found.whole.median)
            self.notes.append(
                f"the kernels of the model together are {whole:.3f}× as fast as by default "
                f"({exp(found.whole.lower):.3f} to {exp(found.whole.upper):.3f})"
            )
        return not dropped

    @staticmethod
    def _reorders(state: KernelState, trial: Trial) -> bool:
        return any(c.reorders_sums and c.name in trial.choices for c in state.kernel.default)

    def _state(self, kernel: ModelKernel, times: Mapping[str, float]) -> KernelState:
        flops, moved = kernel.flops * kernel.launches, kernel.bytes * kernel.launches
        if not times:  # no machine at hand: shares by work alone
            return KernelState(kernel, max(flops / 1e11, moved / 1e10), 0.0)
        dtypes = self.library.metadata.get("contractions", {})
        floor = machine(self.threads).floor_seconds(flops, moved, kernel.bytes, dtypes)
        return KernelState(kernel, times.get(kernel.name, 0.0), min(floor, times.get(kernel.name, 0.0)))

    def _sizes(self, args: Any) -> dict[str, int]:
        """The sizes of dynamic dimensions: those of the examples, or large ones within their bounds."""
        symbols = symbol_bounds(self.library.metadata)
        sizes = {
            n: max(lo, min(LARGEST_SIZE, LARGEST_SIZE if hi is None else hi))
            for n, (lo, hi) in symbols.items()
        }
        arrays = self._example(args)
        if arrays is not None:
            sizes.update(self.library.symbols_of([a.shape for a in arrays]))
        return sizes

    def _example(self, args: Any) -> list[np.ndarray] | None:
        """The examples as arrays, if they are the model's inputs one by one."""
        entries = self.library.metadata.get("inputs", [])
        if not isinstance(args, (tuple, list)) or len(args) != len(entries):
            return None
        try:
            return [
                np.ascontiguousarray(to_numpy(value, spec.name, dtype))
                for value, spec, dtype in zip(args, self.library.inputs, self.library._dtypes, strict=True)
            ]
        except (TilewrightError, TypeError, ValueError):
            return None

    def _times(self, args: Any, sizes: Mapping[str, int]) -> dict[str, float]:
        """The seconds of each kernel in a run of the model; none where it does not run here."""
        if not self.can_run:
            return {}
        found = self._example(args)
        inputs = list(random_inputs(self.library.metadata, sizes).values()) if found is None else found
        self.inputs = [inputs]
        try:
            return {row.name: row.seconds for row in self.library.profile(*inputs, repeat=5)}
        except TilewrightError as error:
            self.notes.append(f"the model does not run on random inputs ({error}); give it examples")
            self.can_run = False
            return {}


__all__ = ["open_database", "seconds_of", "tune"]
