"""`tilewright profile MODEL`: time, bytes, arithmetic and share of the roofline, kernel by kernel."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from tilewright.errors import ArtifactError, DeviceError

from .common import (
    add_row,
    compile_options,
    console,
    function_of,
    gather_inputs,
    input_options,
    kernel_label,
    number,
    obtain,
    progress_display,
    show_device_code,
)

if TYPE_CHECKING:
    from tilewright.runtime.model import CompiledModel, KernelProfile
    from tilewright.runtime.timeline import Grouping
    from tilewright.tools.roofline import Roofline


@click.command("profile")
@click.argument("model")
@compile_options
@input_options
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="Number of kernels to show, the slowest first.",
)
@click.option(
    "--by",
    "grouping",
    type=click.Choice(["kernel", "operator", "layer", "line"]),
    default="kernel",
    show_default=True,
    help="Meaning of a row: a kernel, its operators, a module of the model, or a line of the source.",
)
@click.option("--cold", is_flag=True, help="Time calls whose data and weights are in no cache.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the launches of a call in the Trace Event Format, for Perfetto and Chrome.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all rows as JSON.")
def command(
    model: str,
    target: str,
    dims: tuple[Any, ...],
    threads: int | None,
    precision: str | None,
    files: tuple[tuple[str, str], ...],
    sizes: tuple[tuple[str, int], ...],
    seed: int,
    function: str,
    top: int,
    grouping: Grouping,
    cold: bool,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Show the time of each kernel of MODEL: an artifact, or a model that is compiled first (a file,
    FILE.py:NAME or MODULE:NAME).
    """
    library = function_of(obtain(model, target, dims, threads, precision), function)
    inputs = gather_inputs(library.metadata, files, sizes, seed)
    if grouping != "kernel" or cold or trace is not None:
        _show_timeline(library, list(inputs.values()), grouping, cold, trace, top, as_json)
        return
    symbols = library.symbols_of([x.shape for x in inputs.values()])
    on_device = any("device" in kernel for kernel in library.metadata.get("kernels", ()))
    here = None if on_device else _this_machine(threads)
    try:
        with progress_display() as progress:
            progress("profiling")
            profiled = library.profile(*inputs.values())
    except (ArtifactError, DeviceError) as error:
        if not on_device or as_json:
            raise
        show_device_code(library.metadata, symbols, library)
        console().print(f"lower bounds, not measured: {error}", highlight=False, markup=False)
        return
    dtypes = library.metadata.get("contractions", {})
    rows = [{**asdict(row), "roofline": here and _share(here, row, dtypes)} for row in profiled]
    total = sum(row["seconds"] for row in rows)
    if as_json:
        described = here and asdict(here)
        click.echo(json.dumps({"seconds": total, "machine": described, "kernels": rows}, indent=2))
        return
    table = Table(box=None)
    table.add_column("kernel", overflow="fold")
    for column in ("calls", "ms", "share", "bytes", "flop", "GB/s", "GFLOP/s", "of roofline"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows[:top]:
        seconds, size, flops = row["seconds"], row["bytes"], row["flops"]
        add_row(
            table,
            kernel_label(row),
            str(row["calls"]),
            f"{seconds * 1e3:.3f}",
            f"{seconds / total:.1%}" if total else "",
            number(size, "B"),
            number(flops, ""),
            f"{size / seconds / 1e9:.1f}" if seconds else "",
            f"{flops / seconds / 1e9:.1f}" if seconds else "",
            f"{row['roofline']:.0%}" if here else "",
        )
    out = console()
    out.print(table)
    more = f", the slowest {top} of {len(rows)} kernels shown" if len(rows) > top else ""
    roofs = f"; the roofline of {here.threads} threads: {_roofs(here, dtypes)}" if here else ""
    out.print(f"{total * 1e3:.3f} ms in kernels{more}{roofs}", highlight=False, soft_wrap=True)
    show_device_code(library.metadata, symbols, library)


def _show_timeline(
    library: CompiledModel,
    inputs: Sequence[Any],
    grouping: Grouping,
    cold: bool,
    trace: Path | None,
    top: int,
    as_json: bool,
) -> None:
    """Show one call, launch by launch, and write its trace."""
    with progress_display() as progress:
        progress("profiling")
        timeline = library.timeline(*inputs, cold=cold)
    if trace is not None:
        try:
            trace.write_text(json.dumps(timeline.trace_events()))
        except OSError as error:
            raise click.ClickException(f"{trace}: cannot be written: {error.strerror or error}") from error
    rows = timeline.by(grouping)
    if as_json:
        shares = [asdict(row) for row in rows]
        click.echo(json.dumps({"seconds": timeline.seconds, "cold": cold, grouping: shares}, indent=2))
        return
    table = Table(box=None)
    table.add_column(grouping, overflow="fold")
    for column in ("launches", "ms", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("" if grouping == "line" else "lines", overflow="fold")
    for row in rows[:top]:
        lines = "" if grouping == "line" else ", ".join(row.sources[:3])
        share = row.seconds / timeline.seconds
        add_row(table, row.name, str(row.launches), f"{row.seconds * 1e3:.3f}", f"{share:.1%}", lines)
    out = console()
    out.print(table)
    more = f"; the {top} slowest of {len(rows)} are shown" if len(rows) > top else ""
    called = f"{timeline.seconds * 1e3:.3f} ms a {'cold ' if cold else ''}call"
    kernels = f"{timeline.in_kernels * 1e3:.3f} ms in {len(timeline.launches)} launches"
    out.print(f"{called}, {kernels}{more}", highlight=False, soft_wrap=True)
    if trace is not None:
        out.print(f"trace: {trace}", highlight=False, soft_wrap=True)


def _this_machine(threads: int | None) -> Roofline:
    from tilewright.tools.roofline import machine

    with progress_display() as progress:
        progress("measuring this machine")
        return machine(threads)


def _share(here: Roofline, row: KernelProfile, dtypes: Collection[str]) -> float:
    """The roofline's time over the measured time. Runs repeat, so a launch's bytes come from the caches that
    hold them.
    """
    if not row.seconds:
        return 0.0
    return here.floor_seconds(row.flops, row.bytes, row.bytes / row.calls, dtypes) / row.seconds


def _roofs(here: Roofline, dtypes: Collection[str]) -> str:
    text = f"{here.peak_of(dtypes) / 1e9:.0f} GFLOP/s, {here.bandwidth / 1e9:.0f} GB/s from memory"
    again = [
        f"{here.bandwidth_of(size) / 1e9:.0f} from {number(size, 'B')}" for size, _ in reversed(here.cached)
    ]
    return f"{text}; GB/s from caches: {', '.join(again)}" if again else text
