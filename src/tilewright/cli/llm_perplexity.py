"""`tilewright llm perplexity MODEL`: a model's perplexity on a text, with the arithmetic that serves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click
from rich.table import Table

from .common import (
    add_row,
    console,
    import_option,
    is_artifact,
    json_option,
    progress_display,
    target_option,
    write_json,
)
from .llm_model import CACHE_DTYPES, cache_dtype_option, calibrated, precision_option, read_tokens

if TYPE_CHECKING:
    from tilewright.llm.library import LibraryOptions
    from tilewright.llm.perplexity import Perplexity
    from tilewright.llm.runner import Ints
    from tilewright.llm.weights import Checkpoint

KINDS = ("prefill", "decode")
Row = dict[str, "Perplexity"]
"""Perplexities by the kind of arithmetic."""


@click.command("perplexity")
@click.argument("model", type=click.Path(exists=True))
@import_option
@click.option(
    "--text",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Text file to measure on, in UTF-8.",
)
@click.option(
    "--window",
    type=click.IntRange(min=2),
    default=512,
    show_default=True,
    help="Length of a window in tokens, at most the model's context.",
)
@click.option(
    "--stride",
    type=click.IntRange(min=1),
    help="Tokens from the beginning of a window to that of the next (default: half the window).",
)
@click.option(
    "--tokens", type=click.IntRange(min=2), metavar="N", help="Use only the first N tokens of the text."
)
@click.option(
    "--quantization",
    "quantizations",
    multiple=True,
    metavar="NAME",
    help="Quantization to measure too, as by `llm convert`. May be repeated.",
)
@click.option(
    "--calibration",
    type=click.Path(exists=True, dir_okay=False),
    metavar="TEXT",
    help="Sample text, or activation statistics (.safetensors), for activation-aware scaling.",
)
@click.option(
    "--numerics",
    type=click.Choice(["both", "prefill", "decode"]),
    default="both",
    show_default=True,
    help="Arithmetic of quantized products: that of prompts (prefill: bf16), that of generated tokens "
    "(decode: int8 activations), or both.",
)
@cache_dtype_option
@precision_option
@target_option
@json_option
def command(
    model: str,
    text: str,
    window: int,
    stride: int | None,
    tokens: int | None,
    quantizations: tuple[str, ...],
    calibration: str | None,
    numerics: str,
    kv_dtype: str,
    precision: str | None,
    target: str,
    json_path: str | None,
) -> None:
    """Perplexity of MODEL on a text: a folder from `llm convert`, a Hugging Face folder, a GGUF file, or a
    compiled library.

    Perplexity is exp(mean negative log-likelihood of a token). Windows overlap by window - stride tokens;
    each counts the tokens that the window before it did not have.
    """
    from tilewright.llm.library import LibraryOptions, tokenizer_of
    from tilewright.llm.weights import Conversion, convert, open_checkpoint

    kinds = KINDS if numerics == "both" else (numerics,)
    if is_artifact(model) and (quantizations or calibration):
        raise click.UsageError(
            f"{model} is a compiled library: give --quantization the folder that it was compiled from"
        )
    if calibration and not quantizations:
        raise click.UsageError("--calibration needs --quantization")
    rows: dict[str, Row] = {}
    with progress_display() as progress:
        if is_artifact(model):
            rows["library"] = _of_library(model, text, tokens, window, stride, kinds, progress)
        else:
            checkpoint = open_checkpoint(model)
            ids = read_tokens(text, tokenizer_of(checkpoint), tokens)
            options = LibraryOptions(
                context=window,
                chunk=min(window, 256),
                cache_dtype=CACHE_DTYPES[kv_dtype],
                precision=precision,
            )
            rows["original"] = perplexities(
                checkpoint, ids, options, stride, kinds, target, progress=progress
            )
            for name in quantizations:
                how = Conversion(name)
                source = calibrated(checkpoint, calibration, how, progress) if calibration else checkpoint
                with TemporaryDirectory() as folder:
                    converted = convert(source, folder, how, progress=progress)
                    rows[name] = perplexities(
                        converted, ids, options, stride, kinds, target, progress=progress
                    )
    result = {
        name: {kind: asdict(p) | {"perplexity": p.value} for kind, p in row.items()}
        for name, row in rows.items()
    }
    if write_json({"text": text, "perplexity": result}, json_path):
        show(rows)


def perplexities(
    checkpoint: Checkpoint,
    ids: Ints,
    options: LibraryOptions,
    stride: int | None = None,
    kinds: tuple[str, ...] = KINDS,
    target: str = "cpu",
    *,
    progress: Callable[..., None],
) -> Row:
    """The perplexity of a checkpoint on the tokens `ids` for each kind of arithmetic in `kinds`;
    `options.context` is the window.
    """
    from tilewright.llm.perplexity import CompiledScorer, perplexity

    with CompiledScorer(checkpoint, options, kinds, target=target, progress=progress) as compiled:
        return {k: perplexity(compiled.scorer(k), ids, stride=stride, progress=progress) for k in kinds}


def _of_library(
    path: str,
    text: str,
    tokens: int | None,
    window: int,
    stride: int | None,
    kinds: tuple[str, ...],
    progress: Callable[..., None],
) -> Row:
    from tilewright.llm.library import open_library
    from tilewright.llm.perplexity import LibraryScorer, perplexity

    runner, tokenizer, _ = open_library(path)
    with runner.library:
        ids = read_tokens(text, tokenizer, tokens)
        row = {}
        for kind in kinds:
            scorer = LibraryScorer(runner, kind)
            size = min(window, scorer.context)
            row[kind] = perplexity(scorer, ids, window=size, stride=stride, progress=progress)
        return row


def show(rows: dict[str, Row]) -> None:
    """Print a table, with the difference of each row from the first."""
    first = next(iter(rows.values()))
    table = Table(box=None)
    table.add_column("quantization")
    for kind in first:
        table.add_column(kind, justify="right")
        table.add_column("", justify="right")
    for name, row in rows.items():
        cells = [name]
        for kind, score in row.items():
            cells += [
                f"{score.value:.3f}",
                "" if row is first else f"{score.value / first[kind].value - 1:+.2%}",
            ]
        add_row(table, *cells)
    out = console()
    out.print(table)
    out.print(f"perplexity of {next(iter(first.values())).tokens} tokens", highlight=False)


__all__ = ["Row", "command", "perplexities", "show"]
