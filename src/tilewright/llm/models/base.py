"""`LanguageModel` and `CausalLM`: what the definitions of all families are; and their registry."""

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
from ..cache import Cache
from ..config import Config
from ..layers import Attention, Block, GatedMLP, Rotary


@dataclass(frozen=True)
class Target:
    """Where an array of a checkpoint belongs: to a parameter, or to its slice number `part`; `transposed`: as the array's transpose."""

    name: str
    part: int | None = None
    transposed: bool = False


class LanguageModel(Module):
    """A definition: reads its numbers from a `Config`, names its parameters like the checkpoints of its family.

    `renamed` are regular expressions for parts of names that differ, with what stands instead, applied one after the other. ``[3]`` at the
    end of a name is slice 3 of a parameter, ``.T`` the transpose. `ignored` are expressions for names of checkpoints that nothing here needs.
    """

    renamed: ClassVar[Mapping[str, str]] = {}
    ignored: ClassVar[Iterable[str]] = (r"rotary_emb\.inv_freq$",)
    left_out: ClassVar[Mapping[str, str]] = {}
    """Expressions for names that belong to what the model can do beside, and a definition does not; with what that is."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        """Values for keys that config.json may leave out."""
        return {}

    def target(self, name: str) -> Target | None:
        """The place of a checkpoint's array of that name; None: it is not needed."""
        if any(re.search(pattern, name) for pattern in (*self.ignored, *self.left_out)):
            return None
        for pattern, other in self.renamed.items():
            name = re.sub(pattern, other, name)
        plain = re.fullmatch(r"(.*?)(?:\[(\d+)\])?(\.T)?", name)
        assert plain is not None
        return Target(plain[1], None if plain[2] is None else int(plain[2]), plain[3] is not None)


def lost(model: LanguageModel, names: Iterable[str]) -> list[str]:
    """What a checkpoint with arrays of these names can do and the model cannot."""
    names = list(names)
    return [what for pattern, what in model.left_out.items() if any(re.search(pattern, name) for name in names)]


_Model = TypeVar("_Model", bound=type[LanguageModel])
_REGISTERED: dict[str, type[LanguageModel]] = {}


def register(*names: str) -> Callable[[_Model], _Model]:
    """Makes a class the definition for a `model_type` or one of the `architectures` of config.json."""

    def registered(cls: _Model) -> _Model:
        _REGISTERED.update(dict.fromkeys(names, cls))
        return cls

    return registered


def families() -> dict[str, type[LanguageModel]]:
    """All definitions by the names they are registered under."""
    from tilewright.llm import models

    for module in pkgutil.iter_modules(models.__path__):
        importlib.import_module(f"{models.__name__}.{module.name}")
    return dict(_REGISTERED)


def family_of(config: Config) -> type[LanguageModel]:
    """The definition for a config.json. Raises CompileError: there is none."""
    known = families()
    names = [config.model_type, *map(str, config.get("architectures", ()))]
    if config.outer is not None and config.outer not in known:
        raise CompileError(
            f"no model definition for {config.outer!r}, which wraps a {config.model_type!r}; of such models read are those of "
            f"{', '.join(sorted(n for n, cls in known.items() if cls.left_out))}. Save the language model alone, with transformers: "
            "model.language_model.save_pretrained(...)"
        )
    cls = next((known[n] for n in names if n in known), None)
    if cls is None:
        raise CompileError(
            f"no model definition for {' or '.join(map(repr, names))}; known: {', '.join(sorted(known))}. docs/llm/adding-a-model.md tells how to write one"
        )
    return cls


def build(
    config: Config | Mapping[str, Any] | str | Path, *, context: int | None = None, dtype: Any = float
) -> LanguageModel:
    """The model that a config.json (its path, its folder or its content) describes, without weights: `load_weights` gives it some.

    `context` is how many tokens sequences have at most, if less than the model can; `dtype` that of the parameters.

    Raises:
        CompileError: no definition is registered for it, or it asks for something that its definition does not have.
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
    """The stack of a causal model: an embedding, layers, a normalization."""

    def __init__(self, config: Config, block: Callable[[Config, int], Module], norm: Callable[[], Module]) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocabulary, config.hidden)
        self.layers = ModuleList(block(config, k) for k in range(config.layers))
        self.norm = norm()


class CausalLM(LanguageModel):
    """A model that predicts the next token: most families differ from it in `block` alone.

    `rotary` computes what layers turn heads by, from the positions.
    """

    has_state: ClassVar[bool] = False
    """Whether layers ask for `Cache.state`: sequences then have state beside their keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.model = Decoder(config, self.block, lambda: self.norm(config.hidden))
        self.lm_head = None if config.tied else Linear(config.hidden, config.vocabulary, bias=False)
        self.rotary = self.make_rotary()

    def norm(self, size: int) -> Module:
        return RMSNorm(size, self.config.eps)

    def block(self, config: Config, layer: int) -> Module:
        """Layer number `layer`: called with hidden states, cache and turns."""
        attention = Attention(config, layer, bias=bool(config.get("attention_bias", False)))
        return Block(
            attention, GatedMLP(config, bias=bool(config.get("mlp_bias", False))), lambda: self.norm(config.hidden)
        )

    def make_rotary(self) -> Module | None:
        return Rotary(self.config.rope())

    def target(self, name: str) -> Target | None:
        # A tied head is kept by some as well.
        return None if self.lm_head is None and name.endswith("lm_head.weight") else super().target(name)

    def embed(self, tokens: Any, cache: Cache) -> Tensor:
        return self.model.embed_tokens(tokens)  # type: ignore[no-any-return]

    def hidden(self, tokens: Any, cache: Cache) -> Tensor:
        """What the head sees of `tokens` [batch, n]: [batch, n, hidden]."""
        x = self.embed(tokens, cache)
        turns = None if self.rotary is None else self.rotary(cache.positions)
        for layer in self.model.layers:
            x = layer(x, cache, turns)
        return self.model.norm(x)  # type: ignore[no-any-return]

    def head(self, x: Tensor) -> Tensor:
        """Logits of hidden states."""
        if self.lm_head is not None:
            return self.lm_head(x)  # type: ignore[no-any-return]
        return self.model.embed_tokens.attend(x)  # type: ignore[no-any-return]

    def forward(self, tokens: Any, cache: Cache) -> Tensor:
        """The logits [batch, n, vocabulary] after each of `tokens` [batch, n], i32 or i64."""
        return self.head(self.hidden(tokens, cache))


__all__ = ["CausalLM", "Decoder", "LanguageModel", "Target", "build", "families", "family_of", "lost", "register"]
