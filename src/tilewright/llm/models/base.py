"""`LanguageModel` and `CausalLM`, the base classes of model definitions, and the registry of families."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from ...errors import CompileError
from ...frontends.nn import Embedding, Linear, Module, ModuleList, RMSNorm, placeholders
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ...frontends.trace.dtypes import DTypeLike
from ...frontends.trace.tensor import TensorLike
from ...ir.plugins import call_plugins
from ..cache import Bidirectional, Cache, NoCache
from ..config import Config, shortened
from ..layers import Attention, Block, GatedMLP, RotaryEmbedding, RotaryEmbeddingByKind, pooled
from .vision import VISION, Vision, prepared, renamed_by, vision_of, visions


@dataclass(frozen=True)
class Destination:
    """Where an array of a checkpoint is stored: in the parameter `name`, or in its slice number `part`.

    With `transposed`, the parameter holds the array's transpose.
    """

    name: str
    part: int | None = None
    transposed: bool = False


class LanguageModel(Module):
    """A model definition.

    It reads its sizes from a `Config` and names its parameters like the checkpoints of its family.

    `renamed` maps regular expressions for parts of checkpoint names that differ to their replacements, which
    are applied in order. ``[3]`` at the end of a replaced name is slice 3 of a parameter, ``.T`` the
    transpose. `ignored` are expressions for names of arrays that are not needed.

    Args:
        config: The configuration of the model.
    """

    renamed: ClassVar[Mapping[str, str]] = {}
    ignored: ClassVar[Iterable[str]] = (r"rotary_emb\.inv_freq$",)
    left_out: ClassVar[Mapping[str, str]] = {}
    """Expressions for names of arrays that belong to abilities that the definition lacks, each with the
    ability's name.
    """

    state_kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of layers that keep a state in place of keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.vision: Vision | None = None
        """The image encoder beside the model; None: the model takes text only."""
        self.vision_family: type[Vision] | None = None
        """The class of the image encoder that the model's checkpoints have, also where `vision` is None."""

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        """Return values for keys that config.json may leave out."""
        return {}

    @classmethod
    def complete(cls, config: Config) -> Config:
        """Return the configuration with values for the keys that config.json leaves out."""
        return config.with_defaults(cls.defaults(config))

    @classmethod
    def holder(cls, config: Config, layer: int) -> int:
        """Return the number of the layer whose keys and values a layer reads: its own, unless layers share
        them.

        Args:
            config: The complete configuration of the model.
            layer: The number of the layer.

        Raises:
            CompileError: The layer has no keys and values, nor does an earlier one that it could read.
        """
        return layer

    @classmethod
    def kept(cls, config: Config, layer: int) -> tuple[int, int]:
        """Return what a layer keeps of a token in the KV cache: how many keys and values, and their size.

        Args:
            config: The complete configuration of the model.
            layer: The number of the layer.
        """
        if config.layer_type(layer) in cls.state_kinds or cls.holder(config, layer) != layer:
            return 0, 0
        return 2 * config.kv_heads, config.head_dim if config.kv_heads else 0

    @property
    def task(self) -> str:
        """The model's purpose: ``generate`` text, which includes ``embed``; ``embed`` texts as vectors; or
        ``score`` texts by a classifier.
        """
        return "score" if self.config.classifies else "embed"

    def states(
        self, tokens: TensorLike, mask: TensorLike | None = None, types: TensorLike | None = None
    ) -> Tensor:
        """Return the last hidden states [batch, n, hidden] of whole texts, of the parameters' type.

        Args:
            tokens: Integers [batch, n].
            mask: Nonzero where there is a token, numbers or bools [batch, n]; None: everywhere. Padding
                follows a text.
            types: The numbers of segments [batch, n]; None: 0. Ignored by models without segments.
        """
        raise NotImplementedError

    def classes(
        self, tokens: TensorLike, mask: TensorLike | None = None, types: TensorLike | None = None
    ) -> Tensor:
        """Return the logits [batch, labels] of whole texts, of the parameters' type, if `task` is ``score``;
        arguments as of `states`.
        """
        raise NotImplementedError

    @property
    def segments(self) -> int:
        """The number of kinds of segments that `types` of `states` tells apart; 0: `types` is ignored."""
        return 0

    def adapt(self, names: Iterable[str]) -> None:
        """Leave out what a checkpoint with arrays of these names lacks by right, before it is loaded."""
        if self.vision_family is not None and not self.has_images(names):
            self.vision = None

    def has_images(self, names: Iterable[str]) -> bool:
        """Whether there are arrays of the image encoder among those of these names."""
        family = self.vision_family
        return family is not None and any(renamed_by(family, n).startswith(VISION) for n in names)

    def destination(self, name: str) -> Destination | None:
        """Return where the checkpoint's array of that name is stored; None if it is not needed."""
        if self.vision_family is not None:
            name = renamed_by(self.vision_family, name)
            if name.startswith(VISION):
                counted = name.endswith((".position_ids", ".inv_freq"))
                found = None if self.vision is None or counted else self.vision.destination(name)
                return None if found is None else Destination(found)
        return self.own_destination(name)

    def own_destination(self, name: str) -> Destination | None:
        """Return where an array of the language model is stored; None if it is not needed.

        Args:
            name: Its name in a checkpoint without an image encoder.
        """
        if any(re.search(pattern, name) for pattern in (*self.ignored, *self.left_out)):
            return None
        return self.translated(name)

    @classmethod
    def translated(cls, name: str) -> Destination:
        """Return where `renamed` alone, without what a model leaves out, puts an array of that name."""
        for pattern, other in cls.renamed.items():
            name = re.sub(pattern, other, name)
        plain = re.fullmatch(r"(.*?)(?:\[(\d+)\])?(\.T)?", name)
        assert plain is not None
        return Destination(plain[1], None if plain[2] is None else int(plain[2]), plain[3] is not None)


def missing_abilities(model: LanguageModel, names: Iterable[str]) -> list[str]:
    """Return the abilities that a checkpoint with arrays of these names has and the model lacks."""
    names = list(names)
    missing = [
        what for pattern, what in model.left_out.items() if any(re.search(pattern, name) for name in names)
    ]
    return [*missing, *(["images"] if model.vision is None and model.has_images(names) else [])]


_Model = TypeVar("_Model", bound=type[LanguageModel])
_REGISTERED: dict[str, type[LanguageModel]] = {}


def register(*names: str) -> Callable[[_Model], _Model]:
    """Register a class as the definition for names: each a `model_type` or one of the `architectures` of
    config.json.
    """

    def registered(cls: _Model) -> _Model:
        _REGISTERED.update(dict.fromkeys(names, cls))
        return cls

    return registered


def families() -> dict[str, type[LanguageModel]]:
    """Return all definitions by the names under which they are registered: those of the project, those of
    imported modules, and those that installed packages register in a function that they name as an entry
    point of the group `tilewright.llm_families`.

    Raises:
        CompileError: Such a package cannot be loaded, or its function fails.
    """
    package = importlib.import_module(__name__.rpartition(".")[0])
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    call_plugins("tilewright.llm_families", "language model families", "tilewright.llm.models.register")
    return dict(_REGISTERED)


def family_of(config: Config) -> type[LanguageModel]:
    """Return the definition for a config.json.

    Raises:
        CompileError: There is none.
    """
    known = families()
    names = [config.model_type, *map(str, config.get("architectures", ()))]
    if config.outer is not None and config.outer not in known and vision_of(config) is None:
        wrapping = {*visions(), *(name for name, cls in known.items() if cls.left_out)}
        raise CompileError(
            f"no model definition for {config.outer!r}, which wraps a {config.model_type!r}; of such models "
            f"these are supported: {', '.join(sorted(wrapping))}. Save the language model alone, with "
            "transformers: model.language_model.save_pretrained(...)"
        )
    cls = next((known[n] for n in names if n in known), None)
    if cls is None:
        raise CompileError(
            f"no model definition for {' or '.join(map(_short, names))}; {_near(names, known)}all are listed "
            "in docs/llm/families.md. docs/extending/adding-a-language-model.md describes how to write one, "
            "which --import MODULE names on the command line"
        )
    return cls


def _short(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:60]}...")


def _near(names: Iterable[str], known: Iterable[str]) -> str:
    """The known names that resemble some of `names`, for messages."""
    near = dict.fromkeys(k for n in names for k in difflib.get_close_matches(n[:60], known, 4, 0.5))
    return f"names like it: {', '.join(near)}; " if near else ""


def build(
    config: Config | Mapping[str, Any] | str | Path, *, context: int | None = None, dtype: DTypeLike = float,
    images: bool = True,
) -> LanguageModel:  # fmt: skip
    """Build the model that a config.json describes, without weights; `load_weights` loads them.

    Args:
        config: The file's path, its folder, or its content.
        context: Most tokens of a sequence, if less than the model supports.
        dtype: The parameters' type.
        images: Whether the model has the image encoder that the file describes.

    Raises:
        CompileError: No definition is registered for the model, or config.json asks for a feature that the
            definition lacks.
    """
    if not isinstance(config, Config):
        config = Config(config, context) if isinstance(config, Mapping) else Config.read(config, context)
    cls = family_of(config)
    try:
        sees = vision_of(config)
        completed = cls.complete(prepared(config))
        with placeholders(dtype):
            model = cls(completed)
            model.vision_family = sees
            if sees is not None and images and config.get("vision_config") is not None:
                model.vision = sees(completed)
        if unread := completed.unread():
            raise CompileError(
                f"config.json of a {config.model_type or 'model'} asks for what {cls.__name__} lacks: "
                + ", ".join(f"{name}={shortened(completed.values[name])}" for name in unread)
            )
        return model
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise CompileError(
            f"config.json does not describe a {config.model_type or 'model'}: {type(error).__name__}: {error}"
        ) from error


def alternating(period: int, layers: int) -> list[str]:
    """Return layer types: sliding attention, except for the last layer of each `period`.

    Args:
        period: The number of layers after which the kinds repeat.
        layers: The number of all layers.
    """
    return ["sliding_attention" if (k + 1) % period else "full_attention" for k in range(layers)]


def rotates(config: Config, layer: int) -> bool:
    """Whether a layer has rotary embedding, in families some of whose layers have none.

    Args:
        config: The configuration of the model, with ``no_rope_layers`` or ``no_rope_layer_interval``.
        layer: The number of the layer.
    """
    listed = config.get("no_rope_layers")
    if listed:
        return bool(listed[layer])
    return (layer + 1) % int(config.get("no_rope_layer_interval", 4)) != 0


class Decoder(Module):
    """The layers of a causal model: an embedding, blocks, a normalization.

    Args:
        config: The configuration of the model.
        block: Makes a layer from the configuration and its number.
        norm: Makes the last normalization.
    """

    def __init__(
        self, config: Config, block: Callable[[Config, int], Module], norm: Callable[[], Module]
    ) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocabulary, config.hidden)
        self.layers = ModuleList(block(config, k) for k in range(config.layers))
        self.norm = norm()


class MakesNorm(Protocol):
    """A class of normalizations of the last dimension."""

    def __call__(self, size: int, eps: float, /) -> Module:
        """Make a normalization of `size` elements that adds `eps` to variances or mean squares."""
        ...


class CausalLM(LanguageModel):
    """A model that predicts the next token. Most families override only some of `attention`, `mlp` and
    `block`, and the class attributes.

    `rotary` computes the rotary embedding's cosines and sines from the positions.

    Args:
        config: The configuration of the model.

    Raises:
        CompileError: The configuration asks for something that the layers lack, such as another activation.
    """

    has_state: ClassVar[bool] = False
    """Whether layers use `Cache.state`: sequences then have state besides their keys and values."""
    layer_kinds: ClassVar[tuple[str, ...]] = ("full_attention", "sliding_attention")
    """The kinds of layers that the definition knows."""
    norm_class: ClassVar[MakesNorm] = RMSNorm
    """Makes a normalization from its size and the constant of the configuration."""
    interleaved: ClassVar[bool] = False
    """Whether rotary embedding rotates pairs of neighboring elements."""

    grouped: ClassVar[bool] = True
    """Whether several heads of queries may share a head of keys and values."""

    @property
    def bidirectional(self) -> bool:
        """Whether tokens see later ones, too. Such a model generates no text."""
        return False

    @classmethod
    def complete(cls, config: Config) -> Config:
        result = super().complete(config)
        return result if cls.grouped else result.with_values(num_key_value_heads=result.heads)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.check_layers()
        self.model = Decoder(config, self.block, lambda: self.norm(config.hidden))
        self.lm_head = (
            None
            if config.tied or self.task != "generate"
            else Linear(config.hidden, config.vocabulary, self.head_bias())
        )
        self.score = Linear(config.hidden, config.labels, False) if config.classifies else None
        self.rotary = self.make_rotary()
        self.embedding_scale = float(config.get("embedding_multiplier", 1.0))
        self.logits_scale = float(config.get("logit_scale", config.get("lm_head_multiplier", 1.0)))
        self.logits_scale /= float(config.get("logits_scaling", 1.0))
        self.logits_cap = config.get("final_logit_softcapping")

    def check_layers(self) -> None:
        """Check that the kinds of layers are known.

        Raises:
            CompileError: A kind is unknown.
        """
        for kind in (self.config.layer_type(k) for k in range(self.config.layers)):
            if kind not in self.layer_kinds:
                raise CompileError(
                    f"layer_types of config.json has {kind!r}; {type(self).__name__} knows "
                    f"{', '.join(self.layer_kinds)}"
                )

    def norm(self, size: int) -> Module:
        """Make a normalization layer of this family.

        Args:
            size: The elements of the last dimension, which is normalized.
        """
        return type(self).norm_class(size, self.config.eps)

    def head_bias(self) -> bool:
        """Return whether the head adds a bias."""
        return False

    def attention(self, layer: int) -> Module:
        """Make the attention of a layer, called with hidden states, cache and rotations.

        Args:
            layer: The number of the layer.
        """
        return Attention(self.config, layer, bias=bool(self.config.get("attention_bias", False)))

    def mlp(self, layer: int) -> Module:
        """Make the feed-forward block of a layer, called with hidden states.

        Args:
            layer: The number of the layer.

        Raises:
            CompileError: The configuration's activation is unknown.
        """
        return GatedMLP(self.config, bias=bool(self.config.get("mlp_bias", False)))

    def block(self, config: Config, layer: int) -> Module:
        """Make layer number `layer` of the model that `config` describes; it is called with hidden states,
        cache and rotations.

        Raises:
            CompileError: The configuration's activation is unknown.
        """
        return Block(
            self.attention(layer), self.mlp(layer), lambda: self.norm(config.hidden),
            scale=float(config.get("residual_multiplier", 1.0)),
        )  # fmt: skip

    def make_rotary(self) -> Module | None:
        """Make the rotary embedding that the layers share; None if the family has none.

        Raises:
            CompileError: The configuration's kind of scaling is unknown, or one of its settings is missing.
        """
        if self.config.ropes_by_kind:
            return RotaryEmbeddingByKind(self.config)
        return RotaryEmbedding(self.config.rope(), self.interleaved)

    def own_destination(self, name: str) -> Destination | None:
        # Checkpoints of embedding models have no prefix.
        if re.match(r"(embed_tokens|layers|norm)\.", name):
            name = f"model.{name}"
        # Some checkpoints contain a tied head as well.
        if self.lm_head is None and name.endswith("lm_head.weight"):
            return None
        # Layers after the last one predict further tokens.
        ahead = self.config.get("num_nextn_predict_layers")
        if (
            ahead
            and (layer := re.match(r"model\.layers\.(\d+)\.", name))
            and int(layer[1]) >= self.config.layers
        ):
            return None
        return super().own_destination(name)

    def embed(self, tokens: TensorLike, cache: Cache) -> Tensor:
        """Return embeddings [batch, n, hidden], of the parameters' type, of token ids `tokens` [batch, n].
        Families whose embeddings depend on positions read them from `cache`.
        """
        result: Tensor = self.model.embed_tokens(tokens)
        return result if self.embedding_scale == 1.0 else result * self.embedding_scale

    def hidden(self, tokens: TensorLike, cache: Cache) -> Tensor:
        """Return the head's input [batch, n, hidden] for integers `tokens` [batch, n]; layers read and extend
        `cache`.
        """
        x = self.embed(tokens, cache)
        if (given := cache.given) is not None:
            rows = tnp.astype(given.rows, x.dtype)[tnp.maximum(given.row_of, 0)]
            x = tnp.where((given.row_of >= 0)[..., None], rows, x)
        rotation = None if self.rotary is None else self.rotary(cache.places)
        for layer in self.model.layers:
            x = layer(x, cache, rotation)
        result: Tensor = self.model.norm(x)
        return result

    @property
    def task(self) -> str:
        task = super().task
        generates = task == "embed" and not self.bidirectional and not self.config.headless
        return "generate" if generates else task

    def states(
        self, tokens: TensorLike, mask: TensorLike | None = None, types: TensorLike | None = None
    ) -> Tensor:
        """Return hidden states [batch, n, hidden] of the parameters' type; arguments as of
        `LanguageModel.states`.
        """
        # Padding follows the tokens, which see only earlier ones unless the model is bidirectional.
        return self.hidden(tokens, Bidirectional(tokens, mask) if self.bidirectional else NoCache(tokens))

    def classes(
        self, tokens: TensorLike, mask: TensorLike | None = None, types: TensorLike | None = None
    ) -> Tensor:
        """Return logits [batch, labels] of the parameters' type; arguments as of `LanguageModel.states`."""
        assert self.score is not None
        result: Tensor = self.score(pooled(self.states(tokens, mask), mask, "last"))
        return result

    def head(self, x: Tensor) -> Tensor:
        """Return logits [..., vocabulary] of hidden states `x` [..., hidden], in their common type with the
        weight.
        """
        y: Tensor = self.model.embed_tokens.attend(x) if self.lm_head is None else self.lm_head(x)
        y = y if self.logits_scale == 1.0 else y * self.logits_scale
        cap = self.logits_cap
        result: Tensor = y if cap is None else cap * tnp.tanh(y / cap)
        return result

    def forward(self, tokens: TensorLike, cache: Cache) -> Tensor:
        """Return the logits [batch, n, vocabulary] after each of `tokens` [batch, n], i32 or i64, which
        extend `cache`.
        """
        return self.head(self.hidden(tokens, cache))


__all__ = [
    "CausalLM",
    "Decoder",
    "LanguageModel",
    "Destination",
    "alternating",
    "build",
    "families",
    "family_of",
    "missing_abilities",
    "register",
    "rotates",
]
