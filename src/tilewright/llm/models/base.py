"""`LanguageModel` and `CausalLM`, the base classes of model definitions, and the registry of families."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ...errors import CompileError
from ...frontends.nn import Embedding, Linear, Module, ModuleList, RMSNorm, placeholders
from ...frontends.trace import Tensor
from ...frontends.trace.dtypes import DTypeLike
from ...frontends.trace.tensor import TensorLike
from ..cache import Cache
from ..config import Config
from ..layers import Attention, Block, GatedMLP, RotaryEmbedding


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

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        """Return values for keys that config.json may leave out."""
        return {}

    def destination(self, name: str) -> Destination | None:
        """Return where the checkpoint's array of that name is stored; None if it is not needed."""
        if any(re.search(pattern, name) for pattern in (*self.ignored, *self.left_out)):
            return None
        for pattern, other in self.renamed.items():
            name = re.sub(pattern, other, name)
        plain = re.fullmatch(r"(.*?)(?:\[(\d+)\])?(\.T)?", name)
        assert plain is not None
        return Destination(plain[1], None if plain[2] is None else int(plain[2]), plain[3] is not None)


def missing_abilities(model: LanguageModel, names: Iterable[str]) -> list[str]:
    """Return the abilities that a checkpoint with arrays of these names has and the model lacks."""
    names = list(names)
    return [
        what for pattern, what in model.left_out.items() if any(re.search(pattern, name) for name in names)
    ]


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
    """Return all definitions by the names under which they are registered."""
    package = importlib.import_module(__name__.rpartition(".")[0])
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(_REGISTERED)


def family_of(config: Config) -> type[LanguageModel]:
    """Return the definition for a config.json.

    Raises:
        CompileError: There is none.
    """
    known = families()
    names = [config.model_type, *map(str, config.get("architectures", ()))]
    if config.outer is not None and config.outer not in known:
        raise CompileError(
            f"no model definition for {config.outer!r}, which wraps a {config.model_type!r}; of such models "
            f"these are supported: {', '.join(sorted(n for n, cls in known.items() if cls.left_out))}. Save "
            "the "
            "language model alone, with transformers: model.language_model.save_pretrained(...)"
        )
    cls = next((known[n] for n in names if n in known), None)
    if cls is None:
        raise CompileError(
            f"no model definition for {' or '.join(map(repr, names))}; known: {', '.join(sorted(known))}. "
            "docs/extending/adding-a-language-model.md describes how to write one"
        )
    return cls


def build(
    config: Config | Mapping[str, Any] | str | Path, *, context: int | None = None, dtype: DTypeLike = float
) -> LanguageModel:
    """Build the model that a config.json describes, without weights; `load_weights` loads them.

    Args:
        config: The file's path, its folder, or its content.
        context: Most tokens of a sequence, if less than the model supports.
        dtype: The parameters' type.

    Raises:
        CompileError: No definition is registered for the model, or config.json asks for a feature that the
            definition lacks.
    """
    if not isinstance(config, Config):
        config = Config(config, context) if isinstance(config, Mapping) else Config.read(config, context)
    cls = family_of(config)
    try:
        with placeholders(dtype):
            return cls(config.with_defaults(cls.defaults(config)))
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise CompileError(
            f"config.json does not describe a {config.model_type or 'model'}: {type(error).__name__}: {error}"
        ) from error


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


class CausalLM(LanguageModel):
    """A model that predicts the next token. Most families override only `block`.

    `rotary` computes the rotary embedding's cosines and sines from the positions.

    Args:
        config: The configuration of the model.

    Raises:
        CompileError: The configuration asks for something that the layers lack, such as another activation.
    """

    has_state: ClassVar[bool] = False
    """Whether layers use `Cache.state`: sequences then have state besides their keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.model = Decoder(config, self.block, lambda: self.norm(config.hidden))
        self.lm_head = None if config.tied else Linear(config.hidden, config.vocabulary, bias=False)
        self.rotary = self.make_rotary()

    def norm(self, size: int) -> Module:
        """Make a normalization layer of this family.

        Args:
            size: The elements of the last dimension, which is normalized.
        """
        return RMSNorm(size, self.config.eps)

    def block(self, config: Config, layer: int) -> Module:
        """Make layer number `layer` of the model that `config` describes; it is called with hidden states,
        cache and rotations.

        Raises:
            CompileError: The configuration's activation is unknown.
        """
        attention = Attention(config, layer, bias=bool(config.get("attention_bias", False)))
        return Block(
            attention,
            GatedMLP(config, bias=bool(config.get("mlp_bias", False))),
            lambda: self.norm(config.hidden),
        )

    def make_rotary(self) -> Module | None:
        """Make the rotary embedding that the layers share; None if the family has none.

        Raises:
            CompileError: The configuration's kind of scaling is unknown, or one of its settings is missing.
        """
        return RotaryEmbedding(self.config.rope())

    def destination(self, name: str) -> Destination | None:
        # Some checkpoints contain a tied head as well.
        return None if self.lm_head is None and name.endswith("lm_head.weight") else super().destination(name)

    def embed(self, tokens: TensorLike, cache: Cache) -> Tensor:
        """Return embeddings [batch, n, hidden], of the parameters' type, of token ids `tokens` [batch, n].
        Families whose embeddings depend on positions read them from `cache`.
        """
        result: Tensor = self.model.embed_tokens(tokens)
        return result

    def hidden(self, tokens: TensorLike, cache: Cache) -> Tensor:
        """Return the head's input [batch, n, hidden] for integers `tokens` [batch, n]; layers read and extend
        `cache`.
        """
        x = self.embed(tokens, cache)
        rotation = None if self.rotary is None else self.rotary(cache.positions)
        for layer in self.model.layers:
            x = layer(x, cache, rotation)
        result: Tensor = self.model.norm(x)
        return result

    def head(self, x: Tensor) -> Tensor:
        """Return logits [..., vocabulary] of hidden states `x` [..., hidden], in their common type with the
        weight.
        """
        if self.lm_head is not None:
            result: Tensor = self.lm_head(x)
        else:
            result = self.model.embed_tokens.attend(x)
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
    "build",
    "families",
    "family_of",
    "missing_abilities",
    "register",
]
