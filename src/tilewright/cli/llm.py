"""`tilewright llm COMMAND`: language models."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from . import llm_bench, llm_chat, llm_chat_page, llm_perplexity, llm_serve, llm_transcribe
from .common import check_output, console, import_option, number, opt_option, progress_display, target_option
from .llm_model import CACHE_DTYPES, cache_dtype_option, calibrated, precision_option, read_tokens

if TYPE_CHECKING:
    from tilewright.llm.memory import MemoryEstimate
    from tilewright.llm.weights import Checkpoint


@click.group("llm")
def command() -> None:
    """Language models: from weights to a server."""


class Size(click.ParamType):
    """A number of bytes, such as ``500MB`` or ``2GB``."""

    name = "SIZE"
    _UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", str(value).strip().lower())
        size = int(float(match[1]) * self._UNITS[match[2]]) if match else 0
        if size < 1:
            self.fail(f"'{value}' is not a size: write it as 500MB or 2GB", param, ctx)
        return size


@command.command("convert")
@click.argument("source", type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(file_okay=False), help="Folder to write.")
@click.option(
    "--quantization",
    required=True,
    metavar="NAME",
    help="Quantization of matrices: none, f32, bf16, f16, int8, int4_g32, int4_g64, int4_g128, each int "
    "with _asym, int3_g..., fp8_e4m3.",
)
@click.option(
    "--embedding-quantization",
    metavar="NAME",
    help="Quantization of the embedding (default: int8 if --quantization has fewer bits, else the same).",
)
@click.option(
    "--head-quantization",
    metavar="NAME",
    help="Quantization of the output head (default: that of the embedding).",
)
@click.option("--shard-size", type=Size(), default="2GB", show_default=True, help="Largest size of a shard.")
@click.option(
    "--calibration",
    type=click.Path(dir_okay=False),
    help="Sample text, or activation statistics (.safetensors), for activation-aware scaling.",
)
@click.option(
    "--adapter",
    type=click.Path(exists=True, file_okay=False),
    metavar="FOLDER",
    help="Low-rank adapter (LoRA) that PEFT saved, to add to the weights.",
)
@click.option(
    "--perplexity",
    "held_out",
    type=click.Path(exists=True, dir_okay=False),
    metavar="TEXT",
    help="Text file to measure the perplexity on, before and after; it should not be the calibration text.",
)
def convert_command(
    source: str,
    output: str,
    quantization: str,
    embedding_quantization: str | None,
    head_quantization: str | None,
    shard_size: int,
    calibration: str | None,
    adapter: str | None,
    held_out: str | None,
) -> None:
    """Convert and quantize the weights of SOURCE: a Hugging Face folder, a GGUF file, or a converted folder.

    After an interruption the same command continues where it stopped.
    """
    from tilewright.llm.weights import Conversion, changes, convert, merged, open_checkpoint, read_adapter

    how = Conversion(quantization, embedding_quantization, head_quantization, shard_size)
    before = open_checkpoint(source)
    if adapter is not None:
        before = merged(before, read_adapter(adapter))
    for change in changes(before, how):
        what = f"kept: {change.before}" if change.kept else f"converted: {change.before} to {change.after}"
        count = f"{change.tensors} tensor{'s' if change.tensors != 1 else ''}"
        sizes = f"{number(change.source_bytes, 'B')} to {number(change.bytes, 'B')}"
        console().print(f"{what}, {count}, {sizes}", highlight=False, markup=False)
    sys.stdout.flush()
    with progress_display() as progress:
        checkpoint = calibrated(before, calibration, how, progress) if calibration else before
        folder = convert(checkpoint, output, how, progress=progress)
        rows = (
            _perplexities({"original": before, quantization: folder}, held_out, progress) if held_out else {}
        )
    out = console()
    size = sum(path.stat().st_size for path in folder.sources)
    shards = f"{len(folder.sources)} shard{'s' if len(folder.sources) != 1 else ''}"
    out.print(
        f"{output}: {len(folder)} tensors, {number(size, 'B')} in {shards}", highlight=False, markup=False
    )
    if rows:
        llm_perplexity.show(rows)
    sys.stdout.flush()


def _perplexities(
    checkpoints: Mapping[str, Checkpoint], text: str, progress: Callable[..., None]
) -> dict[str, llm_perplexity.Row]:
    from tilewright.llm.library import LibraryOptions, tokenizer_of

    tokens = read_tokens(text, tokenizer_of(next(iter(checkpoints.values()))))
    options = LibraryOptions(context=512)
    return {
        name: llm_perplexity.perplexities(checkpoint, tokens, options, progress=progress)
        for name, checkpoint in checkpoints.items()
    }


@command.command("compile")
@click.argument("model", type=click.Path(exists=True))
@import_option
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(),
    help="Library to write, such as model.so; or a folder for pages (webgpu, wasm32).",
)
@click.option(
    "--quantization",
    metavar="NAME",
    help="Quantization to apply first, as by `llm convert`, into a folder next to the library.",
)
@click.option(
    "--context-window-size",
    type=click.IntRange(min=1),
    default=4096,
    show_default=True,
    help="Largest number of tokens of a sequence.",
)
@click.option(
    "--prefill-chunk-size",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Largest number of prompt tokens in one call.",
)
@click.option(
    "--max-batch-size",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Largest number of sequences in one call.",
)
@click.option(
    "--guesses",
    type=click.IntRange(min=0),
    default=0,
    help="Largest number of tokens that a draft model chooses in one call (default: one).",
)
@click.option(
    "--max-adapters",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Largest number of low-rank adapters (LoRA) that are loaded at a time.",
)
@click.option(
    "--max-adapter-rank",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Largest rank of these.",
)
@click.option(
    "--adapter-targets",
    metavar="NAME,...",
    help="Linear layers that adapters may change, such as q_proj,v_proj (default: all but the head).",
)
@click.option(
    "--kv-cache",
    type=Size(),
    metavar="SIZE",
    help="Size of the KV cache (default: full contexts of all sequences).",
)
@click.option(
    "--shard-size",
    type=Size(),
    default="64MB",
    show_default=True,
    help="Largest size of a file of weights in a folder for pages.",
)
@click.option(
    "--task",
    type=click.Choice(["generate", "embed", "score"]),
    help="Purpose of the library: chats and texts, embeddings, or scores of a query and a document "
    "(default: what the model is made for).",
)
@click.option(
    "--images/--no-images",
    default=True,
    show_default=True,
    help="Whether a model that takes images keeps its image encoder. Pages take text only.",
)
@click.option(
    "--image-tokens",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Largest number of tokens of an image, in models where it depends on the image's size; larger "
    "images are scaled down.",
)
@click.option(
    "--pooling",
    metavar="NAME",
    help="Pooling of embeddings: mean, cls, lasttoken, max (default: the model's own, or mean).",
)
@cache_dtype_option
@precision_option
@target_option
@opt_option
@click.option(
    "--tensor-parallel",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of processes among which matrices, heads and the KV cache are divided.",
)
@click.option(
    "--pipeline-parallel",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of stages of processes among which layers are divided.",
)
@click.option(
    "--no-memory-check",
    is_flag=True,
    help="Compile even if the library needs more memory than this machine has. Libraries for GPUs are not "
    "checked.",
)
def compile_command(
    model: str,
    output: str,
    quantization: str | None,
    context_window_size: int,
    prefill_chunk_size: int,
    max_batch_size: int,
    guesses: int,
    max_adapters: int,
    max_adapter_rank: int,
    adapter_targets: str | None,
    kv_cache: int | None,
    shard_size: int,
    task: str | None,
    images: bool,
    image_tokens: int,
    pooling: str | None,
    kv_dtype: str,
    precision: str | None,
    target: str,
    opt: str,
    no_memory_check: bool,
    tensor_parallel: int,
    pipeline_parallel: int,
) -> None:
    """Compile the model library of MODEL: a folder from `llm convert`, a Hugging Face folder, or a GGUF file.

    The weights (model.weights) and the tokenizer (model.tokenizer) are written next to the library. For
    webgpu and wasm32 the output may be a folder, which then has all that a page needs.
    """
    from dataclasses import replace
    from pathlib import Path

    from tilewright.errors import CompileError
    from tilewright.llm.library import (
        LibraryOptions,
        checker,
        compile_library,
        missing_files,
        page_bytes,
        save_library,
    )
    from tilewright.llm.memory import MemoryEstimate, planned
    from tilewright.llm.web_folder import runs_in_pages, save_web_folder
    from tilewright.llm.weights import Conversion, convert, open_checkpoint

    for_page = runs_in_pages(target) and not Path(output).suffix
    if runs_in_pages(target) and tensor_parallel * pipeline_parallel > 1:
        raise click.UsageError(
            "--tensor-parallel, --pipeline-parallel: only libraries for CPUs can be divided among processes"
        )
    if for_page and max_adapters:
        raise click.UsageError(
            "--max-adapters: pages have no adapters; merge one with `llm convert --adapter`"
        )
    if not for_page:
        check_output(output, target)
    out = console()

    def show(label: str, text: object) -> None:
        out.print(f"{label}: {text}", highlight=False, markup=False, soft_wrap=True)

    def estimate(memory: MemoryEstimate) -> None:
        show("estimated memory", memory)
        sys.stdout.flush()
        if not no_memory_check:
            check(memory)

    check = checker(target)
    if kv_cache is not None and not no_memory_check:
        check(MemoryEstimate(0, kv_cache, 0))
    with progress_display() as progress:
        checkpoint = open_checkpoint(model)
        for line in missing_files(checkpoint):
            warnings.warn(line, stacklevel=2)
        if quantization is not None:
            checkpoint = convert(
                checkpoint,
                Path(output).with_suffix(".converted"),
                Conversion(quantization),
                progress=progress,
            )
        pages = None
        if kv_cache is not None:
            size = page_bytes(checkpoint.config, CACHE_DTYPES[kv_dtype])
            if not size:
                raise CompileError(f"{model}: no layer of the model has a KV cache: leave --kv-cache out")
            pages = max(1, kv_cache // size)
        options = LibraryOptions(
            context=context_window_size,
            chunk=prefill_chunk_size,
            max_batch=max_batch_size,
            guesses=guesses,
            cache_dtype=CACHE_DTYPES[kv_dtype],
            precision=precision,
            pages=pages,
            task=task,
            pooling=pooling,
            images=images and not for_page,
            source=image_tokens,
            max_adapters=max_adapters,
            max_adapter_rank=max_adapter_rank,
            adapter_targets=None if adapter_targets is None else tuple(adapter_targets.split(",")),
            tensor_parallel=tensor_parallel,
            pipeline_parallel=pipeline_parallel,
        )
        for rank in reversed(range(options.place.size)):  # rank 0 last: its figures are shown
            library = compile_library(
                checkpoint,
                replace(options, rank=rank),
                target=target,
                opt=opt,
                progress=progress,
                estimate=estimate,
            )
            progress("writing")
            if for_page:
                path = save_web_folder(library, checkpoint, output, Path(model).resolve().stem, shard_size)
            else:
                path = save_library(library, checkpoint, output)
    show("memory", planned(library.metadata))
    for line in library.report.opt_lines():
        out.print(line, highlight=False, markup=False)
    weights = list(path.parent.glob(f"{path.stem}.weights*"))  # in shards, where they are large
    files = f" in {len(weights)} files" if len(weights) > 1 else ""
    sizes = [number(sum(file.stat().st_size for file in some), "B") for some in ([path], weights)]
    show(str(path), f"{sizes[0]}, weights {sizes[1]}{files}")
    sys.stdout.flush()


for _module in (llm_chat, llm_chat_page, llm_serve, llm_transcribe, llm_bench, llm_perplexity):
    command.add_command(_module.command)
