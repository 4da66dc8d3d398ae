"""`tilewright run MODEL`: one run on given or random inputs."""

from __future__ import annotations

import time
from typing import Any

import click
import numpy as np
from rich.table import Table

from .common import (
    add_row,
    compile_options,
    console,
    function_of,
    gather_inputs,
    input_options,
    obtain,
    shape_text,
)


@click.command("run")
@click.argument("model")
@compile_options
@input_options
@click.option("-o", "--output", help="Write all outputs to this .npz file.")
@click.option(
    "--simulate",
    is_flag=False,
    flag_value="on",
    type=click.Choice(["on", "checked"]),
    help="Let the CPU simulate the device, for CUDA, HIP and Metal. --simulate=checked also finds faults of "
    "kernels, such as races.",
)
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
    output: str | None,
    simulate: str | None,
) -> None:
    """Run MODEL and show its outputs: an artifact, or a model that is compiled first (a file, FILE.py:NAME or
    MODULE:NAME).
    """
    whole = obtain(model, target, dims, threads, precision, simulate)
    library = function_of(whole, function)
    inputs = gather_inputs(library.metadata, files, sizes, seed)
    begin = time.perf_counter()
    results = library(*inputs.values())
    seconds = time.perf_counter() - begin
    results = results if isinstance(results, tuple) else (results,)
    named = {spec.name: np.asarray(result) for spec, result in zip(library.outputs, results, strict=True)}
    table = Table("", "name", "dtype", "shape", "min", "mean", "max", box=None)
    for kind, tensors in (("in", inputs), ("out", named)):
        for name, array in tensors.items():
            add_row(table, kind, name, str(array.dtype), shape_text(array.shape), *_summary(array))
    out = console()
    out.print(table)
    out.print(
        f"{seconds * 1e3:.3f} ms (the first call, which also allocates memory and starts threads)",
        highlight=False,
    )
    if output:
        from tilewright.driver.random_inputs import write_npz

        write_npz(output, named)


def _summary(array: np.ndarray) -> tuple[str, str, str]:
    if not array.size:
        return "", "", ""
    wide = array.astype(np.float64)
    return f"{wide.min():.6g}", f"{wide.mean():.6g}", f"{wide.max():.6g}"
