"""`tilewright compile MODEL -o OUT`: compile a model to an artifact."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from tilewright.driver.opt_levels import DEFAULT

from .common import (
    ARTIFACT_SUFFIXES,
    ProgressFunction,
    add_row,
    cache_wanted,
    check_output,
    compile_options,
    compile_source,
    console,
    is_artifact,
    number,
    opt_option,
    progress_display,
    source_of,
)

if TYPE_CHECKING:
    from tilewright.driver.report import Report
    from tilewright.runtime.model import CompiledModel


@click.command("compile")
@click.argument("model")
@click.option("-o", "--output", required=True, help=f"Artifact to write: {', '.join(ARTIFACT_SUFFIXES)}.")
@compile_options
@click.option(
    "--weights",
    type=click.Choice(["inside", "beside"]),
    default="inside",
    show_default=True,
    help="Write the weights into the artifact, or to a file next to it.",
)
@click.option(
    "--prefix",
    help="Prefix of the exported C functions, for programs that link several models (default: tw).",
)
@opt_option
@click.option(
    "--no-checks",
    is_flag=True,
    help="Omit the run-time checks of indices (out of range) and of integer divisors (zero).",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare the outputs with those of the model in its own framework, on random inputs.",
)
@click.option(
    "--passes",
    "show_passes",
    is_flag=True,
    help="List the passes that ran, with their times. The cache is not used.",
)
@click.option(
    "--tuned", metavar="FILE", help="Database of `tilewright tune`, whose choices for this machine are used."
)
@click.option("--disable", metavar="PASS", multiple=True, help="Pass to leave out. May be repeated.")
@click.option("--dump", metavar="FOLDER", help="Folder to write the module to after each pass.")
@click.option(
    "--check",
    is_flag=True,
    help="Run the interpreter on the module before and after each pass, and report the first pass that "
    "changes results.",
)
def command(
    model: str,
    output: str,
    target: str,
    dims: tuple[Any, ...],
    threads: int | None,
    precision: str | None,
    weights: str,
    prefix: str | None,
    opt: str,
    no_checks: bool,
    verify: bool,
    show_passes: bool,
    tuned: str | None,
    disable: tuple[str, ...],
    dump: str | None,
    check: bool,
) -> int:
    """Compile MODEL to an artifact.

    MODEL is a file (.onnx, .pt2, .mlir, .tw), or MODULE:NAME or FILE.py:NAME: a model in Python, or a
    function that returns one with a tuple of example inputs.
    """
    import tilewright as tw

    if is_artifact(model):
        raise click.UsageError(f"{model} is an artifact already; compile takes a model")
    source = source_of(model)
    check_output(output, target)

    def save(library: CompiledModel, progress: ProgressFunction) -> None:
        progress("writing")
        library.save(output, weights=weights, prefix=prefix)

    begin = time.perf_counter()
    library = compile_source(
        source,
        target,
        dims,
        threads,
        precision,
        finish=save,
        opt=opt,
        checks=not no_checks,
        cache=cache_wanted() and not show_passes,
        tuned=tuned,
        disable=disable,
        dump=dump,
        check=check,
    )
    seconds = time.perf_counter() - begin
    out = console()
    kernels = len(library.metadata.get("kernels", []))
    size = number(Path(output).stat().st_size, "B")
    out.print(f"{output}: {size}, {kernels} kernels, compiled in {seconds:.1f} s", highlight=False)
    report: Report = library.report
    lines = [*(report.opt_lines() if opt != DEFAULT and not show_passes else []), *report.precision_lines()]
    if tuned is not None:
        lines += report.tuned_lines() or [f"no kernel of this model has measured choices in {tuned}"]
    if report.uncached:
        lines.append(f"not cached: {report.uncached}")
    if lines:
        out.print("\n".join(lines), highlight=False, markup=False)
    if show_passes:
        out.print(passes_table(report))
    if not verify:
        return 0
    from tilewright.tools.verify import verify as compare

    # The written file is compared, not the library in memory.
    with progress_display() as progress:
        comparison = compare(tw.load(output), source.model, source.args, progress=progress)
    out.print(comparison.text(), highlight=False, markup=False)
    return 0 if comparison.passed else 1


def passes_table(report: Report) -> Table:
    """The passes in the order in which each ran first, with level and time; then the passes left out."""
    from tilewright.passes.registry import all_passes

    levels: dict[str, str] = {}
    for info in all_passes():
        levels.setdefault(info.name, info.level)
    table = Table("pass", "level", box=None)
    table.add_column("ms", justify="right")
    for name in report.passes:
        add_row(table, name, levels.get(name, ""), f"{report.pass_seconds.get(name, 0.0) * 1e3:.1f}")
    for name in report.left_out:
        add_row(table, name, levels.get(name, ""), "left out")
    return table
