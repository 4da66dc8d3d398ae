"""`tilewright quantize MODEL`: a model in 8-bit integers, from sample inputs in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from .common import (
    Dims,
    console,
    dims_argument,
    is_artifact,
    json_option,
    progress_display,
    source_of,
    write_json,
)


@click.command("quantize")
@click.argument("model")
@click.option("--data", required=True, help="Folder of .npz files (arrays by input) or .npy files.")
@click.option("-o", "--output", required=True, help="The file to write: .onnx or .tw.")
@click.option(
    "--dims", type=Dims(), multiple=True, help='Dynamic dimensions, e.g. "x:batch<=8". May be repeated.'
)
@click.option(
    "--observer",
    default="minmax",
    show_default=True,
    type=click.Choice(["minmax", "percentile", "entropy", "mse"]),
    help="How ranges of activations follow from the data.",
)
@click.option(
    "--percentile",
    type=float,
    default=99.99,
    show_default=True,
    help="Percentage of elements that percentile keeps.",
)
@click.option(
    "--activations",
    type=click.Choice(["asymmetric", "symmetric"]),
    default="asymmetric",
    show_default=True,
    help="Whether activations have zero points.",
)
@click.option("--per-tensor", is_flag=True, help="One scale for each weight, not one for each channel.")
@click.option("--weight-observer", type=click.Choice(["minmax", "mse"]), default="minmax", show_default=True,
              help="How scales of weights are chosen.")  # fmt: skip
@click.option("--weight-bits", type=click.Choice(["4", "8"]), default="8", show_default=True,
              help="Bits of weights.")  # fmt: skip
@click.option("--equalize", is_flag=True, help="Equalize ranges of weights across layers.")
@click.option("--smooth", type=float, help="Strength of SmoothQuant, from 0 to 1.")
@click.option("--no-bias-correction", is_flag=True, help="Leave biases as they are.")
@click.option("--skip", multiple=True, help="Name of a layer to leave in floating point. May be repeated.")
@click.option("--min-sqnr", type=float, help="Least signal-to-noise ratio of the outputs, in decibels.")
@click.option("--threads", type=click.IntRange(min=1), help="Number of threads (default: all cores).")
@json_option
def command(
    model: str,
    data: str,
    output: str,
    dims: tuple[Any, ...],
    per_tensor: bool,
    weight_bits: str,
    no_bias_correction: bool,
    json_path: str | None,
    **options: Any,
) -> int:
    """Quantize MODEL (.onnx, .pt2, FILE.py:NAME) with the samples in a folder, and print the error of each
    layer.
    """
    import tilewright as tw

    if is_artifact(model):
        raise click.UsageError("quantize takes a model, not an artifact")
    if Path(output).suffix not in (".onnx", ".tw"):
        raise click.UsageError(f"--output {output}: the suffix is none of .onnx, .tw")
    source = source_of(model)
    with progress_display() as progress:
        quantized = tw.quantize(
            source.model,
            batches(data),
            args=source.args,
            dims=dims_argument(dims),
            weights="per_tensor" if per_tensor else "per_channel",
            weight_bits=int(weight_bits),
            bias_correction=not no_bias_correction,
            progress=progress,
            **options,
        )
        progress("save")
        quantized.save(output)
    if write_json(quantized.report.to_dict(), json_path):
        console().print(str(quantized.report), highlight=False, markup=False, soft_wrap=True)
    return 0


def batches(folder: str) -> list[Any]:
    """The batches of a folder's files in the order of their names: dictionaries of .npz files, arrays of .npy
    files.

    Raises:
        click.ClickException: There is no such folder, or a file is damaged.
    """
    if not Path(folder).is_dir():
        raise click.ClickException(f"--data {folder}: there is no such folder")
    found: list[Any] = []
    for path in sorted(Path(folder).iterdir()):
        if path.suffix not in (".npz", ".npy"):
            continue
        try:
            loaded = np.load(path, allow_pickle=False)
            found.append(loaded if path.suffix == ".npy" else {name: loaded[name] for name in loaded.files})
        except (ValueError, OSError, EOFError, AttributeError) as error:
            raise click.ClickException(f"{path}: not a {path.suffix} file: {error}") from None
    if not found:
        raise click.ClickException(f"--data {folder}: there is no .npz or .npy file in it")
    return found
