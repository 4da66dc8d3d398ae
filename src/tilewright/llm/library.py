"""`compile_library`: compiles a checkpoint into a model library; `LibraryRunner` calls its functions.

A model library contains functions on tokens that share weights and a paged KV cache.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from ..driver.compile import compile
from ..driver.frontend_registry import import_model
from ..driver.load import load
from ..driver.opt_levels import DEFAULT
from ..errors import ArtifactError, CompileError
from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from ..ir.types import DType, bf16, i8
from ..targets.registry import resolve
from .adapters import LibraryAdapters, adapt, adapters_of
from .cache import Given
from .config import Config
from .cost import decode_work
from .drawing import LibraryDrawing, drawing_functions, random_words
from .guessing import LibraryGuessing, guessing_functions
from .load_model import model_of, parts_of
from .memory import MemoryEstimate, estimated, must_fit
from .models.base import CausalLM, LanguageModel, family_of, missing_abilities
from .models.encoder_decoder import EncoderDecoder
from .models.vision import prepared
from .page_access import LibraryPages
from .paged_cache import PagedCache, Pages, token_bytes
from .parallel.place import Place, part_path, place_of
from .quantized_linear import (
    factors,
)
from .runner import PAGE, AdapterSlots, Drawing, Floats, Guessing, Ints, PageAccess, Sight, SourceKind
from .sentences import Sentence, Texts, judges, modules_of, sentence_of, use_of
from .slot_states import Rows, SlotStates
from .source_functions import SourceSlots, with_source
from .text_use import TextUse
from .token_sampling import sample
from .tokenizer import TOKENIZER, Tokenizer
from .vision.functions import LibrarySight, described_vision, seeing
from .vision.given import GivenRows
from .weights import Checkpoint, open_checkpoint

if TYPE_CHECKING:
    from ..runtime.model import CompiledModel

PROMPT_FACTORS = {"bfloat16": bf16, "int8": i8}
"""The types of operands in which ``prefill`` can multiply quantized weights, by the names of the option."""


@dataclass(frozen=True)
class LibraryOptions:
    """Upper bounds, for which all memory is planned, and data types."""

    context: int = 4096
    """Largest number of tokens of a sequence; limited by the model's own context."""
    chunk: int = 256
    """Largest number of tokens of one call of ``prefill``."""
    max_batch: int = 8
    """Largest number of concurrent sequences."""
    pages: int | None = None
    """Number of pages of `PAGE` tokens in the cache; None: as many as `max_batch` sequences of full context
    need.
    """
    speculated: int = 8
    """``decode`` accepts up to `speculated` times `max_batch` tokens, so that several guesses per sequence
    can be verified.
    """
    guesses: int = 0
    """Largest number of tokens that the library chooses in one call if it is a draft model; 0 or 1: each one
    takes a call.
    """
    cache_dtype: str = "bfloat16"
    """Data type of cached keys and values: a float type, or "int8" or "int4" with a scale for each token and
    head.
    """
    precision: str | None = "bf16"
    """Data type of the operands of products that are not quantized; None is float32."""
    prompt_factors: str | None = None
    """Data type in which ``prefill`` multiplies quantized weights, except in the head: "bfloat16", or "int8"
    as in ``decode``. None: the faster one of the target.
    """
    pooling: str | None = None
    """The pooling of ``embed``: see `layers.pooled`. None: that of the checkpoint, or the mean."""
    task: str | None = None
    """The library's purpose: to ``generate`` and embed texts, to ``embed`` them, or to ``score`` them. A
    generating model scores by the logits of the tokens ``yes`` and ``no``, as Qwen3-Reranker does. None: what
    the checkpoint is made for.
    """
    source: int = 512
    """Largest number of states of an encoder for a sequence, or of vectors of an image, in models whose own
    number is not fixed.
    """
    images: bool = True
    """Whether the library has the image encoder of a model that takes images."""
    max_adapters: int = 0
    """Largest number of low-rank adapters (LoRA) that are loaded at a time; see `LibraryAdapters`."""
    max_adapter_rank: int = 16
    """Largest rank of these."""
    adapter_targets: tuple[str, ...] | None = None
    """The last parts of the names of the linear layers that adapters may change, such as "q_proj"; None: all
    but the head.
    """
    tensor_parallel: int = 1
    """The processes among which matrices, heads and the KV cache are divided; see `parallel.place.Place`."""
    pipeline_parallel: int = 1
    """The stages of processes among which the layers are divided."""
    rank: int = 0
    """The number of the process, of ``tensor_parallel * pipeline_parallel``, that runs the library."""
    draws: bool | None = None
    """Whether tokens are chosen where the logits are, by the functions of `drawing_functions`. None: for
    devices and WebAssembly, whose logits the caller would have to copy.
    """

    @property
    def place(self) -> Place:
        """The place of the library's process."""
        return Place(self.tensor_parallel, self.pipeline_parallel, self.rank)

    @property
    def pages_of_sequence(self) -> int:
        """The most pages that one sequence needs, rounded up."""
        return -(-self.context // PAGE)

    @property
    def page_count(self) -> int:
        """The number of pages of the KV cache."""
        return self.max_batch * self.pages_of_sequence if self.pages is None else self.pages

    @property
    def pages_of_source(self) -> int:
        """The most pages that the encoder's states of one sequence need."""
        return -(-self.source // PAGE)

    @property
    def rows(self) -> int:
        """Largest number of tokens of one call of ``decode``."""
        return self.max_batch * self.speculated


def compile_library(
    source: str | Path | Checkpoint,
    options: LibraryOptions | None = None,
    *,
    target: str = "cpu",
    opt: str = DEFAULT,
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
    estimate: Callable[[MemoryEstimate], None] | None = None,
) -> Any:
    """Compile a checkpoint into a model library with the functions that `LibraryRunner` calls.

    These are ``prefill``, ``decode``, ``copy_page``, ``sample`` and ``embed``; models for embeddings have
    only ``embed``, classifiers and rerankers only ``score``. A model with state besides its pages has
    ``reset`` instead of ``copy_page``: its state can neither be rolled back nor shared as another sequence's
    prefix. An encoder-decoder has ``encode``, and one of audio ``features``.

    Args:
        source: The checkpoint, or the path of its folder or file.
        options: Upper bounds of sizes in tokens and sequences, and data types; None: the defaults.
        target: As for `tilewright.compile`.
        opt: The optimization level, as for `tilewright.compile`.
        threads: As for `tilewright.compile`.
        progress: As for `tilewright.compile`.
        estimate: Called with the estimated memory before compilation; an error that it raises ends the
            compilation. None: `must_fit`, if the library uses this machine's memory and not a device's.

    Raises:
        CompileError: The model has no definition, its weights do not fit it, an option is wrong, or the
            library needs more memory than this machine has.
        WeightsError: Files are missing or damaged.
    """
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    options = options or LibraryOptions()
    images = options.images and options.place.size == 1
    model = model_of(checkpoint, options.context, options.place, images)
    for what in missing_abilities(model, checkpoint) if options.images else ():
        warnings.warn(
            f"the compiled library does not support {what}, which the model in {checkpoint.path} takes: the "
            "weights for them are left out",
            stacklevel=2,
        )
    options = replace(options, context=min(options.context, model.config.context))
    texts = texts_of(model, checkpoint, options)
    has_state = texts.task == "generate" and model.has_state
    encoder: dict[str, Any] = {}
    if isinstance(model, EncoderDecoder):
        options = replace(options, source=model.source_limit(model.config) or options.source)
        encoder = {"source_kind": model.source_kind, "start": model.start()}
    vision = described_vision(model) if texts.task == "generate" else None
    if model.vision is not None and vision is not None:
        least = model.vision.least_chunk(model.config)  # what sees itself must be computed in one call
        options = replace(options, chunk=min(max(options.chunk, least), options.context))
    if has_state or encoder:  # Speculated tokens cannot be rolled back.
        options = replace(options, speculated=1)
    options = for_target(options, target)
    _check_place(options, texts)
    if options.max_adapters:
        _let_adapt(model, options, texts)
    if options.guesses > 1 and (
        texts.task != "generate" or model.has_state or encoder or vision is not None
        or options.max_adapters or options.place.size > 1
    ):  # fmt: skip
        raise CompileError(
            f"guesses={options.guesses}: a draft model that chooses several tokens in one call generates "
            "text, in one process, without state beside its cache, an encoder or adapters; leave --guesses "
            "out"
        )
    if options.place.size > 1:
        encoder["sample"] = checkpoint.sample()  # the libraries of all processes must be of one model
    module = import_model(functions_of(model, options, texts), None, {}, None)
    (estimate or checker(target))(estimated(module, options.page_count, options.precision))
    description = {
        **described(model.config),
        **decode_work(module, model.config, options.precision),
        "config": checkpoint.config,
        "vocabulary": model.config.vocabulary,
        "has_state": has_state,
        "quantization": checkpoint.quantization.name,
        **asdict(options),
        "texts": use_of(checkpoint, texts, model.segments > 1, isinstance(model, CausalLM)).stored(),
        **encoder,
        "vision": vision,
        "page": PAGE,
        "pages": options.page_count,
        "rows": options.rows,
    }
    return compile(
        module,
        target=target,
        precision=options.precision,
        opt=opt,
        threads=threads,
        progress=progress,
        checks=False,  # The engine passes only valid tokens and positions.
        extra_metadata={"llm": description},
        cache=False,  # The cache would keep whole artifacts.
    )


def _check_place(options: LibraryOptions, texts: Texts) -> None:
    """Check that a library of one of several processes has no function that only one process can have.

    Raises:
        CompileError: It has adapters, draws tokens itself, or does not generate text.
    """
    reasons = {
        "only models that generate text can be divided": texts.task != "generate",
        "adapters cannot be divided: leave --max-adapters out": options.max_adapters > 0,
        "only libraries for CPUs, which do not draw tokens themselves, can be divided": bool(options.draws),
    }
    for reason, holds in reasons.items():
        if options.place.size > 1 and holds:
            raise CompileError(f"a library for {options.place.size} processes: {reason}")


def _let_adapt(model: LanguageModel, options: LibraryOptions, texts: Texts) -> None:
    """See `adapt`.

    Raises:
        CompileError: The library does not generate text, an option is below 1, or a layer is missing.
    """
    if texts.task != "generate" or isinstance(model, EncoderDecoder):
        raise CompileError(
            f"max_adapters={options.max_adapters}: only a decoder that generates text has adapters; leave "
            "--max-adapters out"
        )
    if model.vision is not None:
        raise CompileError(
            f"max_adapters={options.max_adapters}: adapters of models that take images are not supported; "
            "compile with --no-images, or leave --max-adapters out"
        )
    if min(options.max_adapters, options.max_adapter_rank) < 1:
        raise CompileError(
            f"max_adapters={options.max_adapters} and max_adapter_rank={options.max_adapter_rank}: both must "
            "be at least 1"
        )
    dtype = "float32" if options.precision is None else DType.named(options.precision).numpy
    adapt(model, options.max_adapters, options.max_adapter_rank, dtype, options.adapter_targets)


def for_target(options: LibraryOptions, target: str) -> LibraryOptions:
    """The options with a known `prompt_factors` and `draws`.

    Raises:
        CompileError: `prompt_factors` is no known name, or the target is unknown.
    """
    info = resolve(target).info
    name = options.prompt_factors
    if name is None:
        name = next(name for name, dtype in PROMPT_FACTORS.items() if dtype is info.quantized_factors)
    elif name not in PROMPT_FACTORS:
        raise CompileError(f"prompt_factors={name!r} is unknown; known: {', '.join(PROMPT_FACTORS)}")
    outside = info.gpu is not None or info.name.startswith("wasm32")
    draws = outside if options.draws is None else options.draws
    return replace(options, prompt_factors=name, draws=draws)


def checker(target: str) -> Callable[[MemoryEstimate], None]:
    """The check of the memory that a library for `target` needs; none for devices."""
    return must_fit if resolve(target).info.gpu is None else lambda estimate: None


def texts_of(model: LanguageModel, checkpoint: Checkpoint, options: LibraryOptions) -> Texts:
    """Choose what a library does with whole texts.

    Raises:
        CompileError: The model cannot do `options.task`, or a module of the checkpoint is unknown.
    """
    possible = {"generate": ("generate", "embed", "score")}.get(model.task, (model.task,))
    compared = judges(checkpoint)
    task = options.task or ("score" if compared else "embed" if modules_of(checkpoint) else model.task)
    if model.task == "score" and options.task is None:
        task = "score"
    if task not in possible:
        raise CompileError(
            f"task={task!r}: {type(model).__name__} in {checkpoint.path} is made for {', '.join(possible)}"
        )
    if task != "score" or model.task == "score":
        return Texts(task, sentence_of(checkpoint, options.pooling))
    if compared is None:
        answers = [tokenizer_of(checkpoint).encode(answer, special=False) for answer in ("yes", "no")]
        if any(len(tokens) != 1 for tokens in answers):
            raise CompileError(f"{checkpoint.path}: 'yes' and 'no' are no tokens, so it cannot score texts")
        compared = answers[0][0], answers[1][0]
    return Texts(task, Sentence(["mean"], []), compared)


def described(config: Config) -> dict[str, Any]:
    """The description of the model in a library's metadata."""
    windows = [config.window(k) for k in range(config.layers)]
    return {
        "model_type": config.model_type,
        "architectures": list(config.get("architectures", ())),
        "layers": config.layers,
        "sliding_window": min((w for w in windows if w is not None), default=None),
        "sliding_layers": [k for k, w in enumerate(windows) if w is not None],
    }


def save_library(library: CompiledModel, checkpoint: Checkpoint, path: str | Path) -> Path:
    """Write a library, its weights (``model.weights``) and its tokenizer (folder ``model.tokenizer``) side by
    side.

    Args:
        library: The compiled library.
        checkpoint: The checkpoint that it was compiled from, which has the tokenizer's files.
        path: The file of the library; the other names follow from it. If the library is one of several
            processes', it is the file of rank 0.

    Returns:
        The path of the library.

    Raises:
        ArtifactError: A file cannot be written.
    """
    path = Path(path)
    rank = library.metadata["llm"]["rank"]
    if rank == 0:
        _write_files(checkpoint, path.with_suffix(TOKENIZER))
    saved: Path = library.save(part_path(path, rank), weights="beside")
    return saved


def _write_files(checkpoint: Checkpoint, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, read in checkpoint.files.items():
            if Path(name) == Path(Path(name).name):  # those in folders are compiled into the library
                (folder / name).write_bytes(read())
        (folder / "config.json").write_text(json.dumps(checkpoint.config, indent=1))
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be written: {error.strerror or error}") from error


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a checkpoint.

    Raises:
        ArtifactError: It has none.
    """
    with TemporaryDirectory() as folder:
        _write_files(checkpoint, Path(folder))
        return Tokenizer.from_folder(folder)


def missing_files(checkpoint: Checkpoint) -> list[str]:
    """Sentences that describe the uses of a library that missing files of its checkpoint prevent."""
    if "tokenizer.json" not in checkpoint.files:
        return [
            f"{checkpoint.path} has no tokenizer.json: `llm chat` and `llm serve` need one. With "
            "transformers, AutoTokenizer.from_pretrained(...).save_pretrained(...) writes one"
        ]
    made_for_texts = modules_of(checkpoint) or Config(checkpoint.config).classifies
    family = family_of(Config(checkpoint.config))
    encodes = not issubclass(family, CausalLM) or issubclass(family, EncoderDecoder)
    if not (made_for_texts or encodes or tokenizer_of(checkpoint).chat_templates):
        return [
            f"{checkpoint.path} has no chat template: its library supports text completion; chats need "
            "--chat-template FILE of `llm chat` and `llm serve`"
        ]
    return []


def open_library(
    path: str | Path, *, threads: int | None = None, device: int = 0, simulate: bool | str = False
) -> tuple[LibraryRunner, Tokenizer, dict[str, Any]]:
    """The runner, the tokenizer and the config.json of a library.

    Args:
        path: The library's file; its tokenizer and its weights are beside it.
        threads: The most threads that a run uses; None: all cores of the process.
        device: As for `tilewright.load`.
        simulate: As for `tilewright.load`.

    Raises:
        ArtifactError: It is damaged or built for another machine, or its weights or tokenizer are missing.
        DeviceError: The driver of its device is missing, or there is no such device.
        CompileError: It is not a language model, or `threads` is not a whole number above 0, or the library
            is one of several processes': see `parallel.launch.open_parallel`.
    """
    runner = LibraryRunner(load(path, threads=threads, device=device, simulate=simulate))
    if (size := place_of(runner.library.metadata).size) > 1:
        raise CompileError(
            f"{path}: this library needs {size} processes, which `tilewright llm serve` and `chat` start"
        )
    return runner, Tokenizer.from_folder(Path(path).with_suffix(TOKENIZER)), runner.description["config"]


def page_bytes(config: Mapping[str, Any], dtype: str) -> int:
    """Bytes of a page of the KV cache over all layers; 0 if no layer attends."""
    settings = complete(config)
    family = family_of(settings)
    return PAGE * sum(token_bytes(*family.kept(settings, k), dtype) for k in range(settings.layers))


def cache_bytes(config: Mapping[str, Any], dtype: str, tokens: int) -> int:
    """Bytes of keys and values that a step reads for a sequence of `tokens` tokens, limited by the layers'
    windows.
    """
    settings = complete(config)
    family = family_of(settings)
    total = 0
    for k in range(settings.layers):
        window = settings.window(k)
        size = token_bytes(*family.kept(settings, family.holder(settings, k)), dtype)
        total += size * (tokens if window is None else min(tokens, window))
    return total


def widest_window(config: Mapping[str, Any]) -> int | None:
    """The widest window of a model's layers; None if one has none."""
    settings = complete(config)
    windows = [settings.window(k) for k in range(settings.layers)]
    found = [window for window in windows if window is not None]
    return max(found) if found and len(found) == len(windows) else None


def complete(config: Mapping[str, Any]) -> Config:
    """The config.json with its family's defaults."""
    parsed = Config(config)
    return family_of(parsed).complete(prepared(parsed))


def functions_of(model: LanguageModel, options: LibraryOptions, texts: Texts) -> dict[str, Any]:
    """The functions to compile, each with example arguments and the bounds of its sizes. `texts` is what
    is done with whole texts.

    `options.speculated` must be 1 for a model with state. Without `options.prompt_factors`, prompts multiply
    quantized weights in bf16.
    """
    of_prompts = PROMPT_FACTORS[options.prompt_factors or "bfloat16"]

    def embed(tokens: Tensor) -> Tensor:
        whole = tokens[None]
        with factors(of_prompts):
            hidden = model.states(whole)
        return texts.sentence(hidden)[0]

    def score(tokens: Tensor, types: Tensor | None = None) -> Tensor:
        whole = tokens[None]
        with factors(of_prompts):
            if texts.compared is None:
                return model.classes(whole, None, None if types is None else types[None])[0]
            assert isinstance(model, CausalLM)
            hidden = model.states(whole)
        logits = model.head(hidden[0, -1:])[0]
        yes, no = texts.compared
        return logits[yes : yes + 1] - logits[no : no + 1]

    text = np.zeros(2, np.int32)
    length = {0: f"tokens<={options.context}"}
    if texts.task == "score":
        if model.segments > 1:
            return {"score": (score, (text, text), {"tokens": length, "types": length})}
        return {"score": (lambda tokens: score(tokens), (text,), {"tokens": length})}
    embedding = {"embed": (embed, (text,), {"tokens": length})}
    if texts.task == "embed":
        return embedding
    assert isinstance(model, CausalLM)
    pages = Pages(options.page_count, options.cache_dtype)
    states = SlotStates(options.max_batch) if model.has_state else None
    table = f"pages<={options.pages_of_sequence}"
    batch = f"batch<={options.rows}"
    i32, f32 = np.int32, np.float32

    def beside(slots: Tensor | None) -> Rows | None:
        return None if states is None or slots is None else states.of(slots)

    def prefill(
        tokens: Tensor,
        start: Tensor,
        table: Tensor,
        slot: Tensor | None = None,
        adapter: Tensor | None = None,
        rows: Tensor | None = None,
        index: Tensor | None = None,
        last: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        given = None
        if rows is not None and index is not None:
            given = Given(rows, index[None], None if last is None else tnp.astype(last, "int64")[None])
        cache = PagedCache(
            pages, tokens.shape[0], start[None], table[None], beside(None if slot is None else slot[None]),
            given=given, places=None if places is None else places[None],
        )  # fmt: skip
        with factors(of_prompts), adapters_of(adapter):
            hidden = model.hidden(tokens[None], cache)
        return model.head(hidden[0, -1:])[0]  # Only one row, as in a decoding step.

    def decode(
        tokens: Tensor, lengths: Tensor, table: Tensor, slots: Tensor | None = None,
        adapters: Tensor | None = None, offsets: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        places = None if offsets is None else tnp.astype(lengths + offsets, "int64")[:, None]
        cache = PagedCache(pages, 1, lengths, table, beside(slots), places=places)
        with adapters_of(adapters):
            result: Tensor = model(tokens[:, None], cache)[:, 0]
        return result

    def copy_page(source: Tensor, target: Tensor) -> None:
        pages.copy(source, target)

    def reset(slot: Tensor) -> None:
        assert states is not None
        states.reset(slot[None])

    used = states is not None, options.max_adapters > 0
    of_one, of_rows = ([np.zeros(shape, i32) if use else None for use in used] for shape in ((), 2))
    row_dims = {name: {0: batch} for name, use in zip(("slots", "adapters"), used, strict=True) if use}
    sees = seeing(model, options.source, options.chunk, of_prompts)
    if sees.offsets is not None:
        row_dims["offsets"] = {0: batch}
    functions: dict[str, Any] = {
        "prefill": (
            prefill,
            (np.zeros(2, i32), np.zeros((), i32), np.zeros(2, i32), *of_one, *sees.given),
            {"tokens": {0: f"tokens<={options.chunk}"}, "table": {0: table}, **sees.sizes},
        ),
        "decode": (
            decode,
            (np.zeros(2, i32), np.zeros(2, i32), np.zeros((2, 2), i32), *of_rows, sees.offsets),
            {"tokens": {0: batch}, "lengths": {0: batch}, "table": {0: batch, 1: table}, **row_dims},
        ),
        **embedding,
        **sees.functions,
    }
    if isinstance(model, EncoderDecoder):
        functions = with_source(model, options, pages, of_prompts)
    functions["sample"] = (
        sample,
        (
            np.zeros((2, model.config.vocabulary), f32),
            *(np.zeros(2, t) for t in (f32, i32, f32, f32, np.uint32)),
        ),
        {name: {0: batch} for name in ("logits", "temperature", "top_k", "top_p", "min_p", "uniform")},
    )
    if options.guesses > 1:
        functions |= guessing_functions(functions["decode"], options.guesses, options.max_batch)
    if options.draws:
        functions |= drawing_functions(
            {name: functions[name] for name in ("prefill", "decode")},
            model.config.vocabulary,
            options.rows,
            options.max_batch,
            options.context,
        )
    if states is not None:
        return {**functions, "reset": (reset, (np.zeros((), i32),))}
    return {**functions, "copy_page": (copy_page, (np.zeros(1, i32), np.zeros(1, i32)))}


class LibraryRunner:
    """The `Runner` of a library that `compile_library` has built."""

    uniform = False
    """`prefill` and `decode` use other operand types or other kernels."""

    def __init__(self, library: CompiledModel) -> None:
        self.library = library
        description = library.metadata.get("llm")
        if description is None:
            raise CompileError(
                "this library was not compiled from a language model: see `tilewright llm compile`"
            )
        self.description: dict[str, Any] = description
        self.vocabulary, self.pages, self.context = (
            description["vocabulary"],
            description["pages"],
            description["context"],
        )
        self.chunk, self.max_batch, self.rows = (
            description["chunk"],
            description["max_batch"],
            description["rows"],
        )
        self._slot_states: bool = description["has_state"]
        kind = description.get("source_kind")
        self.source_kind: SourceKind | None = kind
        self.source = description["source"] if kind else 0
        self.start: list[int] = description.get("start", [])
        self._sources = SourceSlots(self.max_batch, self.source) if kind else None
        self.has_state = self._slot_states or self._sources is not None
        self.weight_bytes, self.flops = description.get("weight_bytes", 0), description.get("flops", 0)
        self.texts = TextUse.of(description.get("texts"))
        self._functions = library.functions
        self._adapters: LibraryAdapters | None = None
        if count := description.get("max_adapters", 0):
            self._adapters = LibraryAdapters(
                library, description["config"], count, description["max_adapter_rank"], self.max_batch
            )
        self.adapters: AdapterSlots | None = self._adapters
        self.window = widest_window(description["config"])
        self.page_access: PageAccess | None = LibraryPages.of(library, self.pages)
        vision = description.get("vision")
        self._sight = None if vision is None else LibrarySight(self._call, vision, self.max_batch)
        self.sight: Sight | None = self._sight
        most = description.get("guesses", 0)
        self.guessing: Guessing | None = LibraryGuessing(self._call, most) if most > 1 else None
        self.drawing: Drawing | None = None
        if "draw" in self._functions:
            self.drawing = LibraryDrawing(
                self._call, self.vocabulary, self.max_batch, self.context, self._of_prompt, self._of_rows
            )

    def close(self) -> None:
        """Free the model's memory; it cannot be called any more."""
        self.library.close()

    def _beside(self, slots: Ints | int) -> tuple[Ints, ...]:
        """The arguments of calls that stand for what sequences in `slots`, one or several, have besides
        pages.
        """
        if self._sources is not None:
            return self._sources.arguments(np.asarray(slots))
        numbers = np.asarray(slots, np.int32)
        of_slots = (numbers,) if self._slot_states else ()
        return of_slots if self._adapters is None else (*of_slots, self._adapters.of(numbers))

    def _call(self, name: str, *arguments: object) -> Any:
        if name not in self._functions:
            made = {
                "generate": "generates text",
                "embed": "has embeddings only",
                "score": "scores texts only",
            }
            reason = made[self.texts.task]
            if self._slot_states and name == "copy_page":
                reason = "keeps state that cannot be rolled back"
            if name in ("encode", "features"):
                reason = "has no encoder beside its decoder"
            raise CompileError(
                f"this library has no function {name!r}: {self.description['config'].get('model_type')} "
                f"{reason}"
            )
        return self._functions[name](*arguments)

    def cache_bytes(self, tokens: int) -> int:
        """Bytes that a decoding step reads for a sequence of `tokens` tokens."""
        return cache_bytes(self.description["config"], self.description["cache_dtype"], tokens)

    def _of_prompt(
        self, tokens: Ints, start: int, pages: Ints, slot: int, given: GivenRows | None
    ) -> tuple[Any, ...]:
        """The arguments of ``prefill``; see `Runner.prefill`."""
        sees = () if self._sight is None else self._sight.of_prompt(len(tokens), start, given)
        return tokens, np.asarray(start, np.int32), pages, *self._beside(slot), *sees

    def _of_rows(self, tokens: Ints, lengths: Ints, pages: Ints, slots: Ints) -> tuple[Any, ...]:
        """The arguments of ``decode``; see `Runner.decode`."""
        sees = () if self._sight is None else self._sight.of_rows(slots)
        return tokens, lengths, pages, *self._beside(slots), *sees

    def prefill(
        self, tokens: Ints, start: int, pages: Ints, slot: int, given: GivenRows | None = None
    ) -> Floats:
        if self.drawing is not None:
            self.drawing.prefill(tokens, start, pages, slot, given)
            return self.drawing.logits(np.zeros(1, np.int32))[0]
        result: Floats = self._call("prefill", *self._of_prompt(tokens, start, pages, slot, given))
        return result

    def decode(self, tokens: Ints, lengths: Ints, pages: Ints, slots: Ints) -> Floats:
        if self.drawing is not None:
            self.drawing.decode(tokens, lengths, pages, slots)
            return self.drawing.logits(np.arange(len(tokens), dtype=np.int32))
        result: Floats = self._call("decode", *self._of_rows(tokens, lengths, pages, slots))
        return result

    def encode(self, source: Floats | Ints, slot: int) -> None:
        if self._sources is None:
            self._call("encode")
        else:
            self._call("encode", source, self._sources.take(slot, source, self.source_kind))

    def features(self, hops: Floats) -> Floats:
        """The logarithms of the spectrogram of a recording: see `speech.features.log_mel`."""
        result: Floats = self._call("features", hops)
        return result

    def copy_page(self, source: int, target: int) -> None:
        self._call("copy_page", np.array([source], np.int32), np.array([target], np.int32))

    def reset(self, slot: int) -> None:
        if self._slot_states:
            self._call("reset", np.asarray(slot, np.int32))

    def sample(
        self, logits: Floats, temperature: Floats, top_k: Ints, top_p: Floats, min_p: Floats, uniform: Floats
    ) -> tuple[Ints, Floats]:
        """The tokens drawn from logits [batch, vocabulary] by random numbers `uniform` in [0, 1), and their
        log-probabilities; see `token_sampling.sample`.
        """
        how = temperature, top_k, top_p, min_p, random_words(uniform)
        result: tuple[Ints, Floats] = self._call("sample", logits, *how)
        return result

    def embed(self, tokens: Ints) -> Floats:
        result: Floats = self._call("embed", tokens)
        return result

    def score(self, tokens: Ints, types: Ints) -> Floats:
        result: Floats = self._call("score", tokens, *((types,) if self.texts.segments else ()))
        return result


__all__ = [
    "LibraryOptions",
    "LibraryRunner",
    "parts_of",
    "compile_library",
    "functions_of",
    "missing_files",
    "model_of",
    "open_library",
    "page_bytes",
    "save_library",
    "tokenizer_of",
]
