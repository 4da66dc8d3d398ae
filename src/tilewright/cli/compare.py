"""`tilewright compare MODEL`: a compiled model beside its own framework, layer by layer."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from .common import (
    add_row,
    cache_wanted,
    compile_arguments,
    compile_options,
    console,
    dims_argument,
    is_artifact,
    json_option,
    opt_option,
    progress_display,
    random_input_options,
    read_inputs,
    shape_text,
    source_of,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.tools.compare import ComparedValue


@click.command("compare")
@click.argument("model")
@compile_options
@opt_option
@random_input_options
@click.option("--rtol", type=float, help="Relative tolerance (default: by the type of each value).")
@click.option(
    "--atol", type=float, help="Absolute tolerance, as a share of the largest magnitude (default: by type)."
)
@json_option
def command(
    model: str,
    target: str,
    dims: tuple[Any, ...],
    threads: int | None,
    precision: str | None,
    opt: str,
    files: tuple[tuple[str, str], ...],
    sizes: tuple[tuple[str, int], ...],
    seed: int,
    rtol: float | None,
    atol: float | None,
    json_path: str | None,
) -> int:
    """Run MODEL (a file, FILE.py:NAME or MODULE:NAME) in its own framework and compiled, and compare the
    values of each layer. Where they differ, show the first operator at which the numbers part, with its line.
    The exit code is 1 then.
    """
    if is_artifact(model):
        raise click.UsageError(f"{model} is an artifact: compare takes the model that it was compiled from")
    from tilewright.tools.compare import compare

    source = source_of(model)
    options = {**compile_arguments(target, dims, threads, precision), "opt": opt, "cache": cache_wanted()}
    options["dims"] = dims_argument(dims)
    with progress_display() as progress:
        found = compare(
            source.model,
            source.args,
            inputs=read_inputs(files),
            sizes=dict(sizes),
            seed=seed,
            rtol=rtol,
            atol=atol,
            progress=progress,
            **options,
        )
    described = {**asdict(found), "passed": found.passed, "verdict": found.verdict()}
    if write_json(described, json_path):
        out = console()
        _show("layer", found.layers)
        if found.operators:
            out.print()
            _show("operator", found.operators)
        out.print()
        _show("output", found.outputs)
        out.print()
        for line in found.verdict():
            out.print(line, highlight=False, markup=False, soft_wrap=True)
    return 0 if found.passed else 1


def _show(what: str, rows: Sequence[ComparedValue]) -> None:
    table = Table(box=None)
    table.add_column(what, overflow="fold")
    table.add_column("shape")
    table.add_column("dtype")
    for column in ("max abs", "max rel"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("" if what == "output" else "line", overflow="fold")
    for row in rows:
        verdict = "ok" if row.passed else row.note or "differs"
        errors = f"{row.max_abs:.1e}", f"{row.max_rel:.1e}"
        add_row(table, row.layer, shape_text(row.shape), row.dtype, *errors, verdict, row.place.source)
    console().print(table)


__all__ = ["command"]
