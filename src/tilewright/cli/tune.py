"""`tilewright tune MODEL`: measure schedules of a model's kernels on this machine and keep the best."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from .common import (
    add_row,
    compile_arguments,
    compile_options,
    console,
    is_artifact,
    opt_option,
    require_file,
    source_of,
)

if TYPE_CHECKING:
    from tilewright.tuning.session import KernelState, Progress

_LINES_EVERY = 10.0
"""Seconds between two lines of progress where standard error is no terminal."""


@click.command("tune")
@click.argument("model", nargs=-1, required=True)
@compile_options
@opt_option
@click.option(
    "--budget", default="10m", show_default=True, help="Time to spend on the search: 90s, 10m, 1h30m."
)
@click.option(
    "--database",
    default="tuned.jsonl",
    show_default=True,
    help="File of trials, to which new ones are appended.",
)
@click.option(
    "--shapes",
    type=click.IntRange(min=2),
    help="Number of sizes of the dynamic dimensions to tune for, between the bounds of --dims.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Measure on the workers of the Dask scheduler at ADDRESS, such as tcp://10.0.0.5:8786.",
)
@click.option("--live", is_flag=True, help="Serve a page on this machine that follows the search.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the search.")
@click.option(
    "--merge", is_flag=True, help="Join the databases given in place of MODEL, without measuring anything."
)
@click.option(
    "--replay",
    is_flag=True,
    help="Measure a failed candidate again, kept in the folder given in place of MODEL.",
)
@click.option("-o", "--output", help="With --merge: the database to write.")
def command(
    model: tuple[str, ...],
    target: str,
    dims: tuple[Any, ...],
    threads: int | None,
    precision: str | None,
    opt: str,
    budget: str,
    database: str,
    shapes: int | None,
    scheduler: str | None,
    live: bool,
    seed: int,
    merge: bool,
    replay: bool,
    output: str | None,
) -> int:
    """Measure schedules of the kernels of MODEL (.onnx, .pt2, FILE.py:NAME) on this machine.

    Trials go to the database, and `tilewright compile --tuned` compiles with the best. Ctrl-C ends the search
    and loses no trial; the same command goes on.

    `tilewright tune --merge A B -o C` joins databases. `tilewright tune --replay FOLDER` runs a candidate
    that has failed again; its exit status is 1 if it fails again.
    """
    if replay:
        return _replay(model)
    if merge:
        return _merge(model, output)
    if output is not None:
        raise click.UsageError("-o is for --merge; the trials of a model go to --database")
    if len(model) != 1:
        raise click.UsageError("give one MODEL, or --merge with databases")
    if is_artifact(model[0]):
        raise click.UsageError(f"{model[0]} is an artifact; tune takes a model")
    import tilewright as tw

    source = source_of(model[0])
    last: list[Progress] = []
    interrupted = False
    with _display() as show, _followed(model[0], live) as follow:

        def report(progress: Progress) -> None:
            last[:] = [progress]
            show(progress)
            follow(progress)

        try:
            tw.tune(
                source.model,
                source.args,
                budget=budget,
                database=database,
                opt=opt,
                seed=seed,
                shapes=shapes,
                executor=scheduler,
                progress=report,
                **compile_arguments(target, dims, threads, precision),
            )
        except KeyboardInterrupt:
            interrupted = True
    if last:
        _summary(last[0], database, model[0], interrupted)
    return 130 if interrupted else 0


def _merge(paths: tuple[str, ...], output: str | None) -> int:
    from tilewright.driver.tuning_database import Database

    if output is None:
        raise click.UsageError("--merge needs -o, the database to write")
    for path in paths:
        require_file(path)
    found = Database(output)
    found.check_writable()
    counts = []
    for path in paths:
        database = Database(path)
        for damage in (*database.damages, *([database.torn] if database.torn else ())):
            print(f"tilewright: warning: {damage}", file=sys.stderr)
        counts.append(f"{path} {len(database)} trials, {found.merge(database)} of them new")
    console().print(f"{output}: {len(found)} trials ({'; '.join(counts)})", highlight=False, markup=False)
    return 0


def _replay(folders: tuple[str, ...]) -> int:
    from tilewright.tuning.failures import replay

    if len(folders) != 1:
        raise click.UsageError("--replay needs one folder")
    found = replay(Path(folders[0]))
    choices = ", ".join(f"{name}={value!r}" for name, value in found.choices.items())
    again = found.again
    now = f"again {again.failure}: {again.message}" if again.failure else "now it runs, with equal results"
    lines = f"kernel {found.kernel} with {choices or 'its defaults'}", f"recorded: {found.recorded}", now
    console().print("\n".join(lines), highlight=False, markup=False)
    return 1 if again.failure else 0


@contextmanager
def _display() -> Iterator[Callable[[Progress], None]]:
    """A function that shows the progress on stderr: a table on a terminal, else lines."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield lambda progress: live.update(_table(progress))


@contextmanager
def _followed(model: str, live: bool) -> Iterator[Callable[[Progress], None]]:
    """A function that sends the progress to a page, if one is wanted."""
    if not live:
        yield lambda _: None
        return
    import tilewright as tw

    with tw.Live(f"tuning {Path(model.partition(':')[0]).name}") as page:
        print(f"the search can be followed at {page.address}", file=sys.stderr, flush=True)
        yield page.progress


def _lines() -> Callable[[Progress], None]:
    states: dict[str, str] = {}
    stage, at = "", 0.0

    def show(progress: Progress) -> None:
        nonlocal stage, at
        if progress.stage != stage:
            stage, at = progress.stage, progress.elapsed
            print(f"{progress.stage} ...", file=sys.stderr, flush=True)
        for state in progress.kernels:
            if states.get(state.kernel.name) != state.state and state.state in ("searches", "done"):
                states[state.kernel.name] = state.state
                print(f"  {_line(state)}", file=sys.stderr, flush=True)
        if progress.elapsed - at >= _LINES_EVERY:
            at = progress.elapsed
            now = [_line(s) for s in progress.kernels if s.state in ("searches", "is compared")]
            print(f"  {_clock(progress)}; {'; '.join(now)}", file=sys.stderr, flush=True)

    return show


def _line(state: KernelState) -> str:
    return (
        f"{state.kernel.name} {state.state}: {state.trials} candidates, {state.failures} failed, "
        f"best {state.speedup:.3f}x"
    )


def _clock(progress: Progress) -> str:
    return f"{progress.elapsed:.0f} s, about {progress.left:.0f} s left"


def _table(progress: Progress) -> Table:
    table = Table(box=None, title=f"{progress.stage}: {_clock(progress)}", title_justify="left")
    for column in ("kernel", "of the time", "state", "candidates", "failed", "best"):
        table.add_column(column, justify="left" if column in ("kernel", "state") else "right")
    total = sum(s.seconds for s in progress.kernels) or 1.0
    for s in sorted(progress.kernels, key=lambda s: -s.weight):
        share = f"{s.seconds / total:.0%}"
        best = "" if s.state in ("waits", "left out") else f"{s.speedup:.3f}x"
        add_row(table, s.kernel.name, share, s.state, str(s.trials), str(s.failures), best)
    return table


def _summary(progress: Progress, database: str, model: str, interrupted: bool) -> None:
    out = console()
    searched = [s for s in progress.kernels if s.state not in ("waits", "left out")]
    if searched:
        out.print(_table(progress))
    for note in progress.notes:
        out.print(note, highlight=False, markup=False)
    trials = sum(s.trials for s in progress.kernels)
    where = Path(database)
    if interrupted:
        text = f"interrupted; {trials} candidates so far are kept in {where}; the same command goes on"
    else:
        faster = sum(s.speedup > 1 for s in searched)
        text = (
            f"{faster} of {len(searched)} kernels searched are faster than by default; "
            f"tilewright compile {model} --tuned {where} uses them"
        )
    out.print(text, highlight=False, markup=False)
