"""`tilewright reduce MODEL`: a model that fails, made as small as it can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from .common import (
    compile_options,
    console,
    dims_argument,
    imported,
    is_artifact,
    progress_display,
    require_file,
    source_of,
)


@click.command("reduce")
@click.argument("model")
@click.option("-o", "--output", default="reduced", show_default=True, help="Name of the files, without suffix.")
@compile_options
@click.option("--inputs", help="The inputs that it fails on, arrays by name in a .npz file (default: random).")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, help="Seconds for each attempt; more is a failure.")  # fmt: skip
@click.option("--check", is_flag=True, help="Only say whether and how MODEL fails: exit code 1 if it does.")
def command(
    model: str,
    output: str,
    target: str,
    dims: tuple[Any, ...],
    threads: int | None,
    precision: str | None,
    inputs: str | None,
    timeout: float,
    check: bool,
) -> int:
    """Reduce MODEL, which is refused, crashes, hangs, or gives other results than the interpreter, to a few operations."""
    import tilewright as tw

    if is_artifact(model):
        raise click.UsageError("reduce takes a model, not an artifact")
    source = source_of(model)
    given = None if inputs is None else _arrays(inputs)
    with progress_display() as progress:
        found = tw.reduce(
            source.model, source.args, target=target, precision=precision, dims=dims_argument(dims), threads=threads, inputs=given, output=output,
            timeout=timeout, imports=(*imported(), *([source.python] if source.python else [])), check=check, progress=progress,
        )  # fmt: skip
    out = console()
    if found is None:
        out.print(f"{model} does not fail: it compiles, and its results are the interpreter's", highlight=False)
        return 0 if check else 1
    out.print(found.failure if check else str(found), highlight=False, markup=False, soft_wrap=True)
    return 1 if check else 0


def _arrays(path: str) -> dict[str, np.ndarray]:
    require_file(path)
    try:
        found = np.load(path, allow_pickle=False)
        return {name: found[name] for name in found.files}
    except (ValueError, OSError, EOFError, AttributeError) as error:
        raise click.ClickException(f"{Path(path)}: not a .npz file: {error}") from None
