"""`tilewright inspect MODEL`: an artifact's metadata, or the IR of a model at a level."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from tilewright.artifact.structure import KEY, read_structure
from tilewright.driver.random_inputs import symbol_bounds
from tilewright.errors import ArtifactError
from tilewright.runtime.expressions import evaluate

from .common import (
    add_row,
    compile_options,
    console,
    is_artifact,
    kernel_label,
    number,
    obtain,
    require_file,
    shape_text,
    show_device_code,
)

if TYPE_CHECKING:
    from tilewright.runtime.expressions import Formula
    from tilewright.runtime.model import CompiledModel


@click.command("inspect")
@click.argument("model")
@compile_options
@click.option(
    "--ir",
    "level",
    help="Print the IR of this level: graph, tensor, loop, host, or the target's code: llvm, asm; wgsl; "
    "cuda, ptx, sass; ...",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole metadata as JSON.")
def command(
    model: str,
    target: str,
    dims: tuple[Any, ...],
    threads: int | None,
    precision: str | None,
    level: str | None,
    as_json: bool,
) -> None:
    """Show inputs, outputs, kernels and memory of MODEL: an artifact, or a model that is compiled first (a
    file, FILE.py:NAME or MODULE:NAME).
    """
    if level and is_artifact(model):
        raise click.UsageError(
            f"{model} is an artifact, which has no IR: give --ir the model that it was compiled from"
        )
    metadata = metadata_of(model) if is_artifact(model) and not (dims or precision) else None
    library = None
    if metadata is None:
        library = obtain(model, target, dims, threads, precision)
        if level:
            click.echo(library.ir(level))
            return
        metadata = library.metadata
    if as_json:
        metadata = {**metadata, **({KEY: read_structure(metadata)} if KEY in metadata else {})}
        if metadata.get("llm"):
            from tilewright.llm.memory import planned

            metadata["llm"] = {**metadata["llm"], "memory": planned(metadata).to_metadata()}
        click.echo(json.dumps(metadata, indent=2, ensure_ascii=False))
        return
    _show(metadata, library)


def metadata_of(path: str) -> dict[str, Any] | None:
    """An artifact's metadata, read without loading it, so it may be for another machine; None where they
    cannot be read so.
    """
    from tilewright.artifact.trailer import read_metadata, verify_file

    require_file(path)
    verify_file(Path(path))
    return read_metadata(Path(path))


def _show(metadata: dict[str, Any], library: CompiledModel | None) -> None:
    out = console()
    functions = metadata.get("functions")
    if functions is None:
        _show_interface(metadata)
    else:
        if "states" in metadata:
            out.print("states of all functions", style="bold")
            _show_interface({"states": metadata["states"]})
            out.print()
        for name, entry in functions.items():
            out.print(f"function {name}", style="bold")
            _show_interface(entry)
            arena = entry["memory"]["arena"]
            out.print(f"arena: {arena} bytes, at most {entry['memory']['arena_bytes']}\n", highlight=False)
    plain = {k: v for k, v in metadata.items() if isinstance(v, str | int | float | bool) and k != KEY}
    if plain:
        out.print()
    for key, value in plain.items():
        out.print(f"{key.replace('_', ' ')}: {value}", highlight=False, markup=False)
    if metadata.get("llm"):
        _show_language_model(metadata)
    for key in ("target", "memory", "weights", "fusion"):
        section = metadata.get(key)
        if isinstance(section, dict):
            out.print(f"\n{key}", style="bold")
            for name, entry in section.items():
                shown = (
                    entry
                    if not isinstance(entry, list)
                    else f"{len(entry)} entries"
                    if len(entry) > 40
                    else entry
                )
                out.print(f"  {name.replace('_', ' ')}: {shown}", highlight=False, markup=False)
    if metadata.get("parameters"):
        _show_parameters(metadata["parameters"])
    kernels = metadata.get("kernels", [])
    if kernels:
        variants = sum("variant_of" in kernel for kernel in kernels)
        more = f" and {variants} variants" if variants else ""
        out.print(f"\nkernels ({len(kernels) - variants}{more})", style="bold")
        table = Table(box=None)
        for column in ("name", "kind", "launches", "bytes", "flop", "operators"):
            table.add_column(
                column, justify="right" if column in ("launches", "bytes", "flop") else "left", no_wrap=True
            )
        bounds = {
            s: b for entry in (metadata, *(functions or {}).values()) for s, b in symbol_bounds(entry).items()
        }
        largest = {name: high for name, (_, high) in bounds.items() if high is not None}
        for kernel in kernels:
            costs = (_cost(kernel.get(key), largest, unit) for key, unit in (("bytes", "B"), ("flops", "")))
            operators = ", ".join(kernel.get("operators", ()))
            add_row(
                table,
                kernel_label(kernel),
                kernel.get("kind", ""),
                str(kernel.get("launches", "")),
                *costs,
                operators,
            )
        out.print(table)
        out.print("bytes and flop are those of one launch at the largest sizes", highlight=False)
        show_device_code(metadata, largest, library)


def _show_language_model(metadata: dict[str, Any]) -> None:
    from tilewright.llm.memory import planned

    out = console()
    out.print("\nlanguage model", style="bold")
    for name, entry in metadata["llm"].items():
        if not isinstance(entry, dict):
            shown = ", ".join(map(str, entry)) if isinstance(entry, list) else entry
            out.print(f"  {name.replace('_', ' ')}: {shown}", highlight=False, markup=False)
    memory = planned(metadata)
    out.print(f"  memory, {memory}", highlight=False, markup=False, soft_wrap=True)


def _show_parameters(parameters: list[dict[str, Any]]) -> None:
    """Show parameters in a table. Parameters that differ only in numbers in their names (equal layers) share
    a line."""
    alike: dict[tuple[str, ...], int] = {}
    for entry in parameters:
        names = ", ".join(re.sub(r"\b\d+\b", "*", of["name"]) for of in entry["of"])
        types = ", ".join(f"{of['dtype']}{shape_text(of['shape'])}" for of in entry["of"])
        line = (names, types, "; ".join(entry["steps"]), f"{entry['dtype']}{shape_text(entry['shape'])}")
        alike[line] = alike.get(line, 0) + 1
    out = console()
    out.print(f"\nparameters ({len(parameters)})", style="bold")
    table = Table("name", "", "in the model", "transformations", "stored as", box=None)
    for (names, types, steps, stored), count in alike.items():
        add_row(table, names, f"x {count}" if count > 1 else "", types, steps, stored)
    out.print(table)


def _show_interface(metadata: dict[str, Any]) -> None:
    out = console()
    table = Table("", "name", "dtype", "shape", box=None)
    kinds = {"inputs": "in", "states": "state", "outputs": "out"}
    for side, kind in kinds.items():
        for entry in metadata.get(side, ()):
            label = "updated in" if entry.get("updated") else kind
            add_row(table, label, entry["name"], entry["dtype"], shape_text(tuple(entry["shape"])))
    out.print(table)
    for name, (low, high) in symbol_bounds(metadata).items():
        out.print(f"{low} <= {name}{'' if high is None else f' <= {high}'}", highlight=False)


def _cost(formula: Formula, largest: dict[str, int], unit: str) -> str:
    """A kernel's cost at the largest sizes; empty where a size has no bound."""
    try:
        return number(evaluate(formula, largest), unit)
    except (ArtifactError, TypeError):
        return ""
