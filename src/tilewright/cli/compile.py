"""`tilewright compile MODEL -o OUT`: a model in, an artifact out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from tilewright.opt_levels import DEFAULT, LEVELS

from .common import (
    ARTIFACT_SUFFIXES,
    cache_wanted,
    check_output,
    compile_options,
    console,
    dims_argument,
    is_artifact,
    number,
    progress_display,
    source_of,
)


@click.command("compile")
@click.argument("model")
@click.option("-o", "--output", required=True, help=f"The artifact: {', '.join(ARTIFACT_SUFFIXES)}.")
@compile_options
@click.option(
    "--weights",
    type=click.Choice(["inside", "beside"]),
    default="inside",
    help="In the artifact, or in a file beside it.",
)
@click.option(
    "--prefix", help="What functions in C begin with in place of tw, for programs linked with several models."
)
@click.option(
    "--opt", type=click.Choice(list(LEVELS)), default=DEFAULT, show_default=True, help="Level of optimization."
)
@click.option("--no-checks", is_flag=True, help="Trust that indices are in range and integer divisors not zero.")
@click.option("--verify", is_flag=True, help="Compare with the model in its own framework on random inputs.")
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
) -> int:
    """Compile MODEL to an artifact.

    MODEL is a file (.onnx, .pt2, .mlir), or MODULE:NAME or FILE.py:NAME: a model in Python, or a function that returns one with a tuple of example inputs.
    """
    import tilewright as tw

    if is_artifact(model):
        raise click.UsageError(f"{model} is an artifact already; compile takes a model")
    source = source_of(model)
    check_output(output, target)
    begin = time.perf_counter()
    with progress_display() as progress:
        library = tw.compile(
            source.model,
            source.args,
            target=target,
            precision=precision,
            dims=dims_argument(dims),
            threads=threads,
            progress=progress,
            opt=opt,
            cache=cache_wanted(),
            checks=not no_checks,
        )
        progress("writing")
        library.save(output, weights=weights, prefix=prefix)
    seconds = time.perf_counter() - begin
    out = console()
    kernels = len(library.metadata.get("kernels", []))
    size = number(Path(output).stat().st_size, "B")
    out.print(f"{output}: {size}, {kernels} kernels, compiled in {seconds:.1f} s", highlight=False)
    lines = [*(library.report.opt_lines() if opt != DEFAULT else []), *library.report.precision_lines()]
    if library.report.uncached:
        lines.append(f"not looked for in the cache: {library.report.uncached}")
    if lines:
        out.print("\n".join(lines), highlight=False, markup=False)
    if not verify:
        return 0
    from tilewright.verify import verify as compare

    # What was written is what is compared.
    with progress_display() as progress:
        report = compare(tw.load(output), source.model, source.args, progress=progress)
    out.print(report.text(), highlight=False, markup=False)
    return 0 if report.passed else 1
