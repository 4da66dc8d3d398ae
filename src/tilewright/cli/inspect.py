"""`tilewright inspect MODEL`: what an artifact says about itself, or the IR of a model at a level."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Table

from .common import add_row, compile_options, console, is_artifact, number, obtain, shape_text


@click.command("inspect")
@click.argument("model")
@compile_options
@click.option("--ir", "level", help="Print the IR of this level: graph, tensor, loop, llvm (or wgsl), asm.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole metadata as JSON.")
def command(
    model: str, target: str, dims: tuple[Any, ...], threads: int | None, level: str | None, as_json: bool
) -> None:
    """Show inputs, outputs, kernels and memory of MODEL (an artifact, or a model that is compiled first)."""
    if level and is_artifact(model):
        raise click.UsageError("an artifact holds no IR: give --ir the model that it was compiled from")
    library = obtain(model, target, dims, threads)
    if level:
        click.echo(library.ir(level))
        return
    if as_json:
        click.echo(json.dumps(library.metadata, indent=2, ensure_ascii=False))
        return
    _show(library.metadata, library)


def _show(metadata: dict[str, Any], library: Any) -> None:
    out = console()
    table = Table("", "name", "dtype", "shape", box=None)
    for kind, specs in (("in", library.inputs), ("out", library.outputs)):
        for spec in specs:
            add_row(table, kind, spec.name, spec.dtype, shape_text(spec.shape))
    out.print(table)
    from tilewright.samples import symbol_bounds

    for name, (low, high) in symbol_bounds(metadata).items():
        out.print(f"{low} <= {name}{'' if high is None else f' <= {high}'}", highlight=False)
    plain = {k: v for k, v in metadata.items() if isinstance(v, str | int | float | bool)}
    if plain:
        out.print()
    for key, value in plain.items():
        out.print(f"{key.replace('_', ' ')}: {value}", highlight=False, markup=False)
    for key in ("target", "memory", "fusion"):
        section = metadata.get(key)
        if isinstance(section, dict):
            out.print(f"\n{key}", style="bold")
            for name, entry in section.items():
                shown = entry if not isinstance(entry, list) else f"{len(entry)} entries" if len(entry) > 40 else entry
                out.print(f"  {name.replace('_', ' ')}: {shown}", highlight=False, markup=False)
    kernels = metadata.get("kernels", [])
    if kernels:
        out.print(f"\nkernels ({len(kernels)})", style="bold")
        columns = [c for c in dict.fromkeys(k for entry in kernels if isinstance(entry, dict) for k in entry)]
        table = Table(*columns, box=None)
        for kernel in kernels:
            entry = kernel if isinstance(kernel, dict) else {"name": kernel}
            add_row(table, *(_cell(c, entry.get(c, "")) for c in columns or ["name"]))
        out.print(table)


def _cell(column: str, value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool) and column in ("bytes", "flops"):
        return number(value, "B" if column == "bytes" else "")
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
