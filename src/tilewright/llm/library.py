"""`compile_library`: a checkpoint becomes a model library, functions on tokens that share weights and a paged KV cache; `LibraryRunner` calls them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np

from ..compiler import compile, import_model, load
from ..errors import ArtifactError, CompileError
from ..frontends.nn import Deferred, Embedding, Linear
from ..frontends.trace import Tensor
from ..frontends.trace.tensor import concrete
from ..ir.constant import Constant
from ..ir.types import bf16
from ..opt_levels import DEFAULT
from ..transforms.pack_quantized import fits_panels
from .cache import NoCache
from .config import Config
from .layers import GroupedLinear, pooled
from .load_weights import load_weights
from .memory import MemoryEstimate, estimated, must_fit
from .models.base import CausalLM, LanguageModel, build, family_of, lost
from .paged_cache import PagedCache, Pages, token_bytes
from .quantization import Quantized
from .quantization.packing import unpack_bits
from .quantized_linear import QuantizedEmbedding, QuantizedGroupedLinear, QuantizedLinear, factors, replace_linears
from .runner import PAGE, Floats, Ints
from .sample import sample
from .slot_states import Rows, SlotStates
from .tokenizer import Tokenizer
from .weights import Checkpoint, LazyTensor, open_checkpoint
from .work import decode_work

PREFILL = bf16
"""What ``prefill`` multiplies codes in, but for the head."""
TOKENIZER = ".tokenizer"
"""Suffix of the folder beside a library."""


@dataclass(frozen=True)
class LibraryOptions:
    """Bounds, for which all memory is planned, and data types."""

    context: int = 4096
    """Most tokens of a sequence; less where the model's own limit is less."""
    chunk: int = 256
    """Most tokens of one call of ``prefill``."""
    max_batch: int = 8
    """Most sequences at a time."""
    pages: int | None = None
    """Pages of `PAGE` tokens that the cache has; None: as many as `max_batch` sequences of the whole context need."""
    speculated: int = 8
    """``decode`` takes so many times `max_batch` tokens, so that several of a sequence can be verified at once."""
    cache_dtype: str = "bfloat16"
    """Of cached keys and values: a float type, or "int8" or "int4", codes with a scale for each token and head."""
    precision: str | None = "bf16"
    """Of products that are not quantized: None is float32."""
    pooling: str = "mean"
    """What ``embed`` makes of a text's tokens: see `layers.pooled`."""

    @property
    def pages_of_sequence(self) -> int:
        return -(-self.context // PAGE)

    @property
    def page_count(self) -> int:
        return self.max_batch * self.pages_of_sequence if self.pages is None else self.pages

    @property
    def rows(self) -> int:
        """Most tokens of one call of ``decode``."""
        return self.max_batch * self.speculated


def compile_library(
    source: str | Path | Checkpoint,
    options: LibraryOptions | None = None,
    *,
    target: str = "cpu",
    opt: str = DEFAULT,
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
    estimate: Callable[[MemoryEstimate], None] = must_fit,
) -> Any:
    """The library of a checkpoint: functions ``prefill``, ``decode``, ``copy_page``, ``sample``, and ``embed``, the only one of an encoder; see `LibraryRunner`.

    A model that keeps state beside its pages has ``reset`` instead of ``copy_page``: what came cannot be taken back, nor be another's beginning.

    `estimate` is called with what is known of its memory before it is compiled; `opt` as in `tilewright.compile`.

    Raises:
        CompileError: there is no definition for the model, its weights do not fit, or this machine has less memory than the library needs; WeightsError: files are missing or damaged.
    """
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    options = options or LibraryOptions()
    model = model_of(checkpoint, options.context)
    for what in lost(model, checkpoint):
        warnings.warn(
            f"the model in {checkpoint.path} also takes {what}; its library does not: that part of its weights is left out",
            stacklevel=2,
        )
    options = replace(options, context=min(options.context, model.config.context))
    has_state = isinstance(model, CausalLM) and model.has_state
    if has_state:  # guesses cannot be taken back
        options = replace(options, speculated=1)
    module = import_model(functions_of(model, options), None, {}, None)
    estimate(estimated(module, options.page_count, options.precision))
    about = {
        **described(model.config),
        **decode_work(module, model.config, options.precision),
        "config": checkpoint.config,
        "vocabulary": model.config.vocabulary,
        "has_state": has_state,
        "quantization": checkpoint.quantization.name,
        **asdict(options),
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
        checks=False,  # the engine gives tokens and places that there are
        about={"llm": about},
        cache=False,  # which keeps whole artifacts
    )


def described(config: Config) -> dict[str, Any]:
    """What a library's metadata say of its model."""
    windows = [config.window(k) for k in range(config.layers)]
    return {
        "model_type": config.model_type,
        "architectures": list(config.get("architectures", ())),
        "layers": config.layers,
        "sliding_window": min((w for w in windows if w is not None), default=None),
        "sliding_layers": [k for k, w in enumerate(windows) if w is not None],
    }


def save_library(library: Any, checkpoint: Checkpoint, path: str | Path) -> Path:
    """Write a library, its weights beside it (``model.weights``), and the files of the tokenizer (folder ``model.tokenizer``).

    Raises:
        ArtifactError: a file cannot be written.
    """
    path = Path(path)
    _write_files(checkpoint, path.with_suffix(TOKENIZER))
    saved: Path = library.save(path, weights="beside")
    return saved


def _write_files(checkpoint: Checkpoint, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, read in checkpoint.files.items():
            (folder / name).write_bytes(read())
        (folder / "config.json").write_text(json.dumps(checkpoint.config, indent=1))
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be written: {error.strerror or error}") from error


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """A checkpoint's tokenizer. Raises ArtifactError: it has none."""
    with TemporaryDirectory() as folder:
        _write_files(checkpoint, Path(folder))
        return Tokenizer.from_folder(folder)


def missing_files(checkpoint: Checkpoint) -> list[str]:
    """What a library of a checkpoint cannot be used for, since its files lack something; told in sentences."""
    if "tokenizer.json" not in checkpoint.files:
        return [
            f"{checkpoint.path} has no tokenizer.json: neither chat nor serve open its library without a tokenizer. With transformers, "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...) writes one"
        ]
    if not tokenizer_of(checkpoint).chat_templates:
        return [
            f"{checkpoint.path} has no chat template: its library continues texts, but chats only with --chat-template FILE of chat and serve"
        ]
    return []


def open_library(path: str | Path, *, threads: int | None = None) -> tuple[LibraryRunner, Tokenizer, dict[str, Any]]:
    """What serves the library at `path`: its runner, its tokenizer, and the model's config.json.

    Raises:
        ArtifactError: it is damaged or of another machine, or its weights or tokenizer are not beside it; CompileError: it is of no language model.
    """
    runner = LibraryRunner(load(path, threads=threads))
    return runner, Tokenizer.from_folder(Path(path).with_suffix(TOKENIZER)), runner.about["config"]


def model_of(checkpoint: Checkpoint, context: int | None = None) -> LanguageModel:
    """A checkpoint's model with its weights; linear layers, those of experts too, whose weights are codes in groups that products take stay such."""
    model = build(checkpoint.config, context=context)
    quantized: dict[str, dict[int | None, LazyTensor]] = {}
    for name, tensor in checkpoint.items():
        place = model.target(name)
        keeps = place is not None and place.transposed == tensor.transposed and _stays(tensor)
        if place is not None and keeps and place.name.endswith(".weight"):
            quantized.setdefault(place.name.removesuffix(".weight"), {})[place.part] = tensor
    kept: set[str] = set()

    def replacement(path: str, layer: Linear | Embedding) -> QuantizedLinear | QuantizedEmbedding | None:
        tensor = quantized.get(path, {}).get(None)
        if tensor is None:
            return None
        weights = tensor.read_quantized()
        codes, scales, offsets = codes_of(weights)
        order = None if weights.permutation is None else concrete(weights.permutation)
        if isinstance(layer, Linear):
            kept.add(tensor.name)
            return QuantizedLinear(codes, scales, layer.bias, offsets=offsets, permutation=order)
        if order is not None:
            return None
        kept.add(tensor.name)
        return QuantizedEmbedding(codes, scales, offsets)

    def grouped(path: str, layer: GroupedLinear) -> QuantizedGroupedLinear | None:
        """Of matrices that all are stored in one way."""
        tensors = quantized.get(path, {})
        if tensors.keys() != {*range(layer.count)} or len({t.scheme for t in tensors.values()}) > 1:
            return None
        weights = [tensors[k].read_quantized() for k in range(layer.count)]
        if any(w.permutation is not None for w in weights):
            return None
        kept.update(t.name for t in tensors.values())
        codes, scales, offsets = zip(*map(codes_of, weights), strict=True)
        return QuantizedGroupedLinear(
            _stacked(codes), _stacked(scales), None if offsets[0] is None else _stacked(offsets)
        )

    replace_linears(model, replacement)
    replace_linears(model, replacement, Embedding)
    replace_linears(model, grouped, GroupedLinear)
    load_weights(model, {name: tensor for name, tensor in checkpoint.items() if name not in kept})
    return model


def _stays(tensor: LazyTensor) -> bool:
    """Whether products take a tensor's codes as they are."""
    scheme = tensor.scheme
    if (
        scheme is None
        or len(tensor.shape) != 2
        or scheme.kind != "integer"
        or not (scheme.symmetric or scheme.bits <= 4)
    ):
        return False
    columns = tensor.shape[0 if tensor.transposed else 1]
    size = scheme.group or columns
    return columns % size == 0 and fits_panels(max(4, scheme.bits), size)


def codes_of(quantized: Quantized) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes (int8, or int4 of 4 bits and fewer, [out, in]), scales and, where zeros are not in the middle, offsets [out, groups], see `QuantizedMatrix`; what
    is not stored so is made whenever it is needed."""
    bits, packed, scales, zeros = quantized.scheme.bits, quantized.qweight, quantized.scales, quantized.zeros
    if bits == 8:
        return concrete(packed), concrete(scales), None
    middle = 1 << (bits - 1)

    def write_codes(out: np.ndarray[Any, Any]) -> None:
        out[...] = (unpack_bits(packed, bits, quantized.shape[1]).view(np.int8) - middle).astype(out.dtype)

    def write_offsets(out: np.ndarray[Any, Any]) -> None:
        out[...] = scales * (zeros.astype(np.float32) - middle)  # type: ignore[union-attr]

    codes = _deferred(quantized.shape, ml_dtypes.int4, write_codes, ("unpacked", id(packed)))
    if zeros is None:
        return codes, concrete(scales), None
    return codes, concrete(scales), _deferred(scales.shape, np.float32, write_offsets, ("offsets", id(zeros)))


def _deferred(shape: tuple[int, ...], dtype: Any, write: Callable[[Any], None], recipe: Hashable) -> Tensor:
    made = Constant.made(shape, dtype, write, recipe=recipe)
    return Deferred(made) if made.is_made else concrete(made.array)


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape behind one another; the widest type of theirs."""
    dtype = np.result_type(*{p.dtype for p in parts})

    def write(out: np.ndarray[Any, Any]) -> None:
        for k, part in enumerate(parts):
            out[k] = part.numpy()

    return _deferred((len(parts), *parts[0].shape), dtype, write, ("stacked", tuple(map(id, parts))))


def page_bytes(config: Mapping[str, Any], dtype: str) -> int:
    """Bytes of a page of the KV cache, of all layers; 0 where no layer attends."""
    about = complete(config)
    return about.layers * PAGE * token_bytes(about.kv_heads, about.head_dim, dtype) if about.kv_heads else 0


def cache_bytes(config: Mapping[str, Any], dtype: str, tokens: int) -> int:
    """Bytes of keys and values that a step reads of a sequence of so many tokens: of layers with a window, as far as that goes."""
    about = complete(config)
    windows = [about.window(k) for k in range(about.layers)]
    held = sum(tokens if window is None else min(tokens, window) for window in windows)
    return held * page_bytes(config, dtype) // (about.layers * PAGE)


def complete(config: Mapping[str, Any]) -> Config:
    """What config.json says, with what its family leaves out."""
    found = Config(config)
    return found.with_defaults(family_of(found).defaults(found))


def functions_of(model: LanguageModel, options: LibraryOptions) -> dict[str, Any]:
    """What `compile` takes: each function with example arguments and the bounds of its sizes. Of a model with state, `options.speculated` is to be 1."""

    def embed(tokens: Tensor) -> Tensor:
        whole = tokens[None]
        with factors(PREFILL):
            hidden = model.hidden(whole, NoCache(whole)) if isinstance(model, CausalLM) else model(whole)
        return pooled(hidden, kind=options.pooling)[0]

    embedding = {"embed": (embed, (np.zeros(2, np.int32),), {"tokens": {0: f"tokens<={options.context}"}})}
    if not isinstance(model, CausalLM):
        return embedding
    pages = Pages(options.page_count, options.cache_dtype)
    states = SlotStates(options.max_batch) if model.has_state else None
    table = f"pages<={options.pages_of_sequence}"
    batch = f"batch<={options.rows}"
    i32, f32 = np.int32, np.float32

    def beside(slots: Tensor | None) -> Rows | None:
        return None if states is None or slots is None else states.of(slots)

    def prefill(tokens: Tensor, start: Tensor, table: Tensor, slot: Tensor | None = None) -> Tensor:
        cache = PagedCache(
            pages, tokens.shape[0], start[None], table[None], beside(None if slot is None else slot[None])
        )
        with factors(PREFILL):
            hidden = model.hidden(tokens[None], cache)
        return model.head(hidden[0, -1:])[0]  # for one row, as a step of decoding reads it

    def decode(tokens: Tensor, lengths: Tensor, table: Tensor, slots: Tensor | None = None) -> Tensor:
        return model(tokens[:, None], PagedCache(pages, 1, lengths, table, beside(slots)))[:, 0]  # type: ignore[no-any-return]

    def copy_page(source: Tensor, target: Tensor) -> None:
        pages.copy(source, target)

    def reset(slot: Tensor) -> None:
        assert states is not None
        states.reset(slot[None])

    slot, slots = ((np.zeros((), i32),), (np.zeros(2, i32),)) if states is not None else ((), ())
    own = {"slots": {0: batch}} if states is not None else {}
    functions = {
        "prefill": (
            prefill,
            (np.zeros(2, i32), np.zeros((), i32), np.zeros(2, i32), *slot),
            {"tokens": {0: f"tokens<={options.chunk}"}, "table": {0: table}},
        ),
        "decode": (
            decode,
            (np.zeros(2, i32), np.zeros(2, i32), np.zeros((2, 2), i32), *slots),
            {"tokens": {0: batch}, "lengths": {0: batch}, "table": {0: batch, 1: table}, **own},
        ),
        "sample": (
            sample,
            (np.zeros((2, model.config.vocabulary), f32), *(np.zeros(2, t) for t in (f32, i32, f32, f32, np.float64))),
            {name: {0: batch} for name in ("logits", "temperature", "top_k", "top_p", "min_p", "uniform")},
        ),
        **embedding,
    }
    if states is not None:
        return {**functions, "reset": (reset, (np.zeros((), i32),))}
    return {**functions, "copy_page": (copy_page, (np.zeros(1, i32), np.zeros(1, i32)))}


class LibraryRunner:
    """The `Runner` of a library that `compile_library` made."""

    uniform = False
    """`prefill` multiplies other factors than `decode`, or by other kernels."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.about = about = library.metadata.get("llm")
        if about is None:
            raise CompileError("this library was not made of a language model: see `tilewright llm compile`")
        self.vocabulary, self.pages, self.context = about["vocabulary"], about["pages"], about["context"]
        self.chunk, self.max_batch, self.rows = about["chunk"], about["max_batch"], about["rows"]
        self.has_state = about["has_state"]
        self.weight_bytes, self.flops = about.get("weight_bytes", 0), about.get("flops", 0)
        self._functions = library.functions

    def _call(self, name: str, *arguments: Any) -> Any:
        if name not in self._functions:
            about = (
                "keeps state that cannot be taken back"
                if self.has_state
                else "is an encoder, which has embeddings only"
            )
            raise CompileError(
                f"this library has no function {name!r}: {self.about['config'].get('model_type')} {about}"
            )
        return self._functions[name](*arguments)

    def cache_bytes(self, tokens: int) -> int:
        """What a step of decoding reads of a sequence of so many tokens."""
        return cache_bytes(self.about["config"], self.about["cache_dtype"], tokens)

    def prefill(self, tokens: Ints, start: int, pages: Ints, slot: int) -> Floats:
        own = (np.asarray(slot, np.int32),) if self.has_state else ()
        return self._call("prefill", tokens, np.asarray(start, np.int32), pages, *own)  # type: ignore[no-any-return]

    def decode(self, tokens: Ints, lengths: Ints, pages: Ints, slots: Ints) -> Floats:
        own = (slots,) if self.has_state else ()
        return self._call("decode", tokens, lengths, pages, *own)  # type: ignore[no-any-return]

    def copy_page(self, source: int, target: int) -> None:
        self._call("copy_page", np.array([source], np.int32), np.array([target], np.int32))

    def reset(self, slot: int) -> None:
        if self.has_state:
            self._call("reset", np.asarray(slot, np.int32))

    def sample(
        self, logits: Floats, temperature: Floats, top_k: Ints, top_p: Floats, min_p: Floats, uniform: Floats
    ) -> tuple[Ints, Floats]:
        """The tokens of logits [batch, vocabulary] and their log-probabilities, see `sample.sample`."""
        return self._call("sample", logits, temperature, top_k, top_p, min_p, uniform)  # type: ignore[no-any-return]

    def embed(self, tokens: Ints) -> Floats:
        return self._call("embed", tokens)  # type: ignore[no-any-return]


__all__ = [
    "LibraryOptions",
    "LibraryRunner",
    "codes_of",
    "compile_library",
    "functions_of",
    "missing_files",
    "model_of",
    "open_library",
    "page_bytes",
    "save_library",
    "tokenizer_of",
]
