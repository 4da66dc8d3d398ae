"""`tilewright minimize MODEL`: the smallest model that fails in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from .common import (
    compile_arguments,
    compile_options,
    console,
    imported,
    is_artifact,
    progress_display,
    require_file,
    source_of,
)


@click.command("minimize")
@click.argument("model")
@click.option(
    "-o",
    "--output",
    default="minimized",
    show_default=True,
    help="Path of the files to write, without suffix.",
)
@compile_options
@click.option(
    "--inputs",
    help="A .npz file of the inputs on which MODEL fails, arrays by name (default: random values).",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Time limit of an attempt in seconds; an attempt that takes longer counts as a failure.",
)
@click.option(
    "--check", is_flag=True, help="Only report whether and how MODEL fails: exit code 1 if it does."
)
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
    """Reduce MODEL to the smallest model that fails in the same way: compilation is refused, the compiler or
    the compiled model crashes or exceeds the time limit, or results differ from the interpreter's.
    """
    import tilewright as tw

    if is_artifact(model):
        raise click.UsageError("minimize takes a model, not an artifact")
    source = source_of(model)
    given = None if inputs is None else _arrays(inputs)
    with progress_display() as progress:
        minimized = tw.minimize(
            source.model,
            source.args,
            inputs=given,
            output=output,
            timeout=timeout,
            imports=(*imported(), *([source.python] if source.python else [])),
            check=check,
            progress=progress,
            **compile_arguments(target, dims, threads, precision),
        )
    out = console()
    if minimized is None:
        out.print(
            f"{model} does not fail: it compiles, and its results agree with the interpreter's",
            highlight=False,
        )
        return 0 if check else 1
    out.print(minimized.failure if check else str(minimized), highlight=False, markup=False, soft_wrap=True)
    return 1 if check else 0


def _arrays(path: str) -> dict[str, np.ndarray]:
    require_file(path)
    try:
        arrays = np.load(path, allow_pickle=False)
        return {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, EOFError, AttributeError) as error:
        raise click.ClickException(f"{Path(path)}: not a .npz file: {error}") from None
