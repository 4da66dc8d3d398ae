"""Parts that the `llm` commands share: opening a compiled model, reading texts, options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tilewright.llm.engine.engine import Engine
    from tilewright.llm.runner import Ints
    from tilewright.llm.tokenizer import Tokenizer
    from tilewright.llm.vision.reader import ImageReader
    from tilewright.llm.weights import Checkpoint, Conversion

Command = TypeVar("Command", bound=Callable[..., Any])

CACHE_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "int8": "int8", "int4": "int4"}

cache_dtype_option = click.option(
    "--kv-dtype",
    type=click.Choice(list(CACHE_DTYPES)),
    default="bf16",
    show_default=True,
    help="Data type of the KV cache.",
)
precision_option = click.option(
    "--precision",
    type=click.Choice(["f32", "bf16"]),
    default="bf16",
    show_default=True,
    callback=lambda context, parameter, value: None if value == "f32" else value,
    help="Data type of products whose weights are not quantized.",
)


def read_tokens(path: str, tokenizer: Tokenizer, most: int | None = None) -> Ints:
    """The tokens of a text file, at most `most`. Raises click.ClickException: it is not UTF-8."""
    import numpy as np

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path}: {error}") from None
    return np.asarray(tokenizer.encode(text)[:most], np.int32)


def calibrated(
    checkpoint: Checkpoint, calibration: str, how: Conversion, progress: Callable[..., None]
) -> Checkpoint:
    """A checkpoint scaled for a conversion by a text's activations, or by their statistics in a file
    (.safetensors).
    """
    from tilewright.llm.calibration import calibrate
    from tilewright.llm.library import tokenizer_of
    from tilewright.llm.weights import read_statistics, rescaled

    if calibration.endswith(".safetensors"):
        statistics = read_statistics(calibration)
    else:
        statistics = calibrate(
            checkpoint, read_tokens(calibration, tokenizer_of(checkpoint)), progress=progress
        )
    progress("activation-aware scaling")
    return rescaled(checkpoint, statistics, how)


def open_engine(
    path: str,
    max_batch: int | None,
    chunk: int | None,
    prefix_cache: bool,
    speculate: int | None,
    draft: str | None,
    device: int | None = None,
    simulate: bool | None = None,
    **more: Any,
) -> Engine:
    """An engine, not yet started, for the model library at `path`, with the values of `engine_options`.
    `more` are other options of the engine.
    """
    from tilewright.llm.engine.engine import Engine, EngineOptions
    from tilewright.llm.engine.speculative import Speculation
    from tilewright.llm.library import open_library
    from tilewright.llm.parallel.launch import open_runner
    from tilewright.llm.parallel.runner import Leader

    if draft is not None and speculate is None:
        raise click.UsageError("--draft needs --speculate, the number of draft tokens per step")

    where: dict[str, Any] = {"device": device or 0, "simulate": bool(simulate)}
    runner, tokenizer = open_runner(path, **where)
    if isinstance(runner, Leader) and (context := click.get_current_context(silent=True)) is not None:
        context.call_on_close(runner.close)  # lets the other processes end
    speculation = None
    if speculate is not None:
        guesses = None if draft is None else open_library(draft, **where)[0]
        speculation = Speculation(guesses, speculate)
    options = EngineOptions(
        max_batch=max_batch, chunk=chunk, prefix_cache=prefix_cache, speculation=speculation, **more
    )
    return Engine(runner, tokenizer, options)


def check_processes(path: str, tensor: int | None, pipeline: int | None) -> None:
    """Check that a library was compiled for numbers of processes, where they are given. Raises
    click.UsageError: it was compiled for others.
    """
    if tensor is None and pipeline is None:
        return
    from tilewright.artifact.trailer import read_metadata
    from tilewright.llm.parallel.place import place_of

    place = place_of(read_metadata(Path(path)) or {})
    for option, wanted, has in (
        ("--tensor-parallel", tensor, place.tensor),
        ("--pipeline-parallel", pipeline, place.pipeline),
    ):
        if wanted is not None and wanted != has:
            raise click.UsageError(
                f"{option} {wanted}: {path} was compiled for {has}; compile it again with `llm compile "
                f"{option} {wanted}`"
            )


def image_reader(engine: Engine, path: str) -> ImageReader | None:
    """The reader of images of the library at `path`; None: its model takes text only.

    Args:
        engine: The library's engine.
        path: The library's file.
    """
    from tilewright.llm.vision.reader import ImageReader

    return None if engine.runner.sight is None else ImageReader.of_library(engine, path)


chat_template_option = click.option(
    "--chat-template",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Jinja template in place of the model's own.",
)


def set_chat_template(tokenizer: Tokenizer, path: str | None) -> None:
    """Use the template in a file, if one is named. Raises click.ClickException: it cannot be read, or is not
    a template.
    """
    if path is None:
        return
    from tilewright.errors import RequestError
    from tilewright.llm.chat_template import compiled

    try:
        source = Path(path).read_text(encoding="utf-8")
        compiled(source)
    except (OSError, UnicodeDecodeError, RequestError) as error:
        raise click.ClickException(f"{path}: {error}") from None
    tokenizer.chat_templates = {"default": source}


def engine_options(command: Command) -> Command:
    """The options of commands that run an engine."""
    count = click.IntRange(min=1)
    for decorate in (
        click.option(
            "--max-batch",
            type=count,
            help="Largest number of answers at a time (default: what the library was compiled for).",
        ),
        click.option(
            "--prefill-chunk",
            "chunk",
            type=count,
            help="Largest number of prompt tokens in a step (default: what the library was compiled for).",
        ),
        click.option(
            "--prefix-cache/--no-prefix-cache",
            default=True,
            help="Reuse the KV cache of equal beginnings of prompts.",
        ),
        click.option(
            "--speculate",
            type=count,
            metavar="N",
            help="Speculative decoding with N draft tokens per step, by prompt lookup or from the model of "
            "--draft.",
        ),
        click.option(
            "--draft",
            type=click.Path(exists=True),
            metavar="LIBRARY",
            help="Draft model for --speculate, with the same vocabulary.",
        ),
        click.option(
            "--device",
            type=click.IntRange(min=0),
            metavar="N",
            help="Number of the GPU, of a library for GPUs.  [default: 0]",
        ),
        click.option(
            "--simulate",
            is_flag=True,
            default=None,
            help="Let the CPU simulate the GPU of the library: slow, for tests.",
        ),
    ):
        command = decorate(command)
    return command


def sampling_options(command: Command) -> Command:
    """The options of commands that generate text: how tokens are chosen."""
    for decorate in (
        click.option(
            "--temperature", type=click.FloatRange(min=0), help="Sampling temperature; 0 is greedy decoding."
        ),
        click.option(
            "--top-p",
            type=click.FloatRange(min=0, min_open=True, max=1),
            help="Nucleus sampling: the total probability of the tokens to sample from.",
        ),
        click.option(
            "--top-k", type=click.IntRange(min=1), help="Number of most probable tokens to sample from."
        ),
        click.option(
            "--min-p",
            type=click.FloatRange(min=0, max=1),
            help="Least probability of a sampled token, relative to the most probable one's.",
        ),
        click.option(
            "--repetition-penalty",
            type=click.FloatRange(min=0, min_open=True),
            help="Penalty for repeated tokens; values above 1 reduce repetition.",
        ),
    ):
        command = decorate(command)
    return command


def chosen(**values: float | None) -> dict[str, Any]:
    """The sampling parameters that were given, by the names of `SamplingParameters`."""
    return {name: value for name, value in values.items() if value is not None}
