"""`tilewright profile MODEL`: time, bytes, arithmetic and share of the roofline, kernel by kernel."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from tilewright.errors import ArtifactError, DeviceError, TilewrightError

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
    write_text,
)

if TYPE_CHECKING:
    from tilewright.runtime.model import CompiledModel, KernelProfile
    from tilewright.runtime.timeline import Grouping, Timeline
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
@click.option(
    "--flame",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the launches of a call as collapsed stacks of modules, for flame graphs.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page of the call: a flame graph by module, tables of kernels, layers and lines.",
)
@click.option(
    "--counters",
    is_flag=True,
    help="Count cycles, instructions and cache misses of each kernel, where Linux allows it.",
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
    flame: Path | None,
    html: Path | None,
    counters: bool,
    as_json: bool,
) -> None:
    """Show the time of each kernel of MODEL: an artifact, or a model that is compiled first (a file,
    FILE.py:NAME or MODULE:NAME).
    """
    library = function_of(obtain(model, target, dims, threads, precision), function)
    inputs = gather_inputs(library.metadata, files, sizes, seed)
    if counters and (grouping != "kernel" or cold):
        raise click.UsageError("--counters counts warm calls by kernel: leave out --by and --cold")
    files_of_call = {"trace": trace, "flame graph": flame, "page": html}
    if grouping != "kernel" or cold or any(files_of_call.values()):
        timeline = _timeline(library, list(inputs.values()), cold)
        if trace is not None:
            write_text(trace, json.dumps(timeline.trace_events()))
        if flame is not None:
            write_text(flame, "".join(f"{stack} {count}\n" for stack, count in timeline.stacks().items()))
        if html is not None:
            _write_page(html, library, timeline, list(inputs.values()), Path(model.partition(":")[0]).name)
        if counters:
            _show_counters(library, list(inputs.values()), top, as_json)
        else:
            _show_timeline(timeline, grouping, cold, top, as_json)
        for what, path in files_of_call.items() if not as_json else ():
            if path is not None:
                console().print(f"{what}: {path}", highlight=False, soft_wrap=True)
        return
    if counters:
        _show_counters(library, list(inputs.values()), top, as_json)
        return
    symbols = library.symbols_of([x.shape for x in inputs.values()])
    on_device = any("device" in kernel for kernel in library.metadata.get("kernels", ()))
    here = None if on_device else _this_machine(threads)
    call = _timeline_if_measured(library, list(inputs.values()))
    try:
        profiled = _profile(library, list(inputs.values()), call)
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
        measured = {} if call is None else {"call": call.seconds, "outside": _outside(call)}
        click.echo(
            json.dumps({"seconds": total, **measured, "machine": described, "kernels": rows}, indent=2)
        )
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
    if call is not None:
        parts = {"kernels": call.in_kernels, **_outside(call)}
        text = ", ".join(f"{name} {seconds * 1e3:.3f}" for name, seconds in parts.items())
        out.print(f"a call takes {call.seconds * 1e3:.3f} ms: {text}", highlight=False, soft_wrap=True)
    show_device_code(library.metadata, symbols, library)


def _show_counters(library: CompiledModel, inputs: Sequence[Any], top: int, as_json: bool) -> None:
    """Show the events of each kernel, and why others are not counted."""
    from tilewright.tools.counters import counts_of

    with progress_display() as progress:
        progress("counting")
        found, refused = counts_of(library, inputs)
    if as_json:
        events = {x.event: {"kernels": x.kernels, "outside": x.outside} for x in found}
        click.echo(json.dumps({"events": events, "refused": refused}, indent=2))
        return
    out = console()
    by_event = {x.event: x for x in found}
    if found:
        table = Table(box=None)
        table.add_column("kernel", overflow="fold")
        both = {"cycles", "instructions"} <= by_event.keys()
        for column in (*by_event, *(("instructions a cycle",) if both else ())):
            table.add_column(column, justify="right", no_wrap=True)
        names = sorted(found[-1].kernels, key=lambda name: -found[-1].kernels[name])
        for name in names[:top]:
            counts = {event: x.kernels.get(name, 0.0) for event, x in by_event.items()}
            cells = [number(n, "ns" if event == "cpu time" else "") for event, n in counts.items()]
            if both:
                cells.append(f"{counts['instructions'] / counts['cycles']:.2f}" if counts["cycles"] else "")
            add_row(table, name, *cells)
        add_row(table, "outside of kernels", *(number(x.outside, "") for x in found))
        out.print(table)
    for event, reason in refused.items():
        out.print(f"{event}: not counted: {reason}", highlight=False, markup=False, soft_wrap=True)


def _timeline(library: CompiledModel, inputs: Sequence[Any], cold: bool) -> Timeline:
    with progress_display() as progress:
        progress("profiling")
        return library.timeline(*inputs, cold=cold)


def _timeline_if_measured(library: CompiledModel, inputs: Sequence[Any]) -> Timeline | None:
    """The launches of a call; None for a target that measures none, and without its device."""
    try:
        return _timeline(library, inputs, cold=False)
    except TilewrightError:
        return None


def _profile(library: CompiledModel, inputs: Sequence[Any], call: Timeline | None) -> list[KernelProfile]:
    """The kernels of a call, the slowest first. Where the call's host program is measured, their times are of
    this call, so that they and the parts outside of kernels add up to it.
    """
    with progress_display() as progress:
        progress("profiling")
        if call is not None and call.host is not None:
            rows = library.profile(*inputs, repeat=1)
            if sum(row.calls for row in rows) == len(call.launches):
                working = {share.name: share.seconds for share in call.by("kernel")}
                rows = [replace(row, seconds=working.get(row.name, 0.0)) for row in rows]
                return sorted(rows, key=lambda row: -row.seconds)
        return library.profile(*inputs)


def _write_page(
    path: Path, library: CompiledModel, timeline: Timeline, inputs: Sequence[Any], title: str
) -> None:
    """Write the page of `tilewright explore` for this call; it opens at the view of the times."""
    from tilewright.explorer.document import document
    from tilewright.explorer.page import write_page

    on_device = any("device" in kernel for kernel in library.metadata.get("kernels", ()))
    page = document(
        library.metadata,
        title=title,
        library=library,
        timeline=timeline,
        machine=None if on_device else _this_machine(None),
        sizes=library.symbols_of([x.shape for x in inputs]),
    )
    write_page([{**page, "opens": "time"}], path)


def _outside(timeline: Timeline) -> dict[str, float]:
    """The seconds of a call outside of kernels, by part."""
    return {share.name: share.seconds for share in timeline.outside()}


def _show_timeline(timeline: Timeline, grouping: Grouping, cold: bool, top: int, as_json: bool) -> None:
    """Show one call by its launches."""
    rows = timeline.by(grouping)
    if as_json:
        shares = [asdict(row) for row in rows]
        about = {"seconds": timeline.seconds, "cold": cold, "outside": _outside(timeline)}
        click.echo(json.dumps({**about, grouping: shares}, indent=2))
        return
    table = Table(box=None)
    table.add_column(grouping, overflow="fold")
    for column in ("launches", "ms", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("" if grouping == "line" else "lines", overflow="fold")
    # The parts outside of kernels are always shown, so that the rows add up to the call.
    outside = [replace(row, name=f"({row.name})") for row in timeline.outside()]
    for row in (*rows[:top], *outside):
        lines = "" if grouping == "line" else ", ".join(row.sources[:3])
        share = row.seconds / timeline.seconds
        add_row(table, row.name, str(row.launches or ""), f"{row.seconds * 1e3:.3f}", f"{share:.1%}", lines)
    out = console()
    out.print(table)
    more = f"; the {top} slowest of {len(rows)} are shown" if len(rows) > top else ""
    called = f"{timeline.seconds * 1e3:.3f} ms a {'cold ' if cold else ''}call"
    kernels = f"{timeline.in_kernels * 1e3:.3f} ms in {len(timeline.launches)} launches"
    out.print(f"{called}, {kernels}{more}", highlight=False, soft_wrap=True)


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
