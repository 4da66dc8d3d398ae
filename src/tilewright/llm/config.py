"""`Config`: the content of a Hugging Face config.json under uniform names; and `Rope`, its rotary
embedding.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CompileError

ALIASES = {
    "hidden_size": ("n_embd", "n_embed", "d_model", "dim"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "block_ff_dim", "hidden_dim"),
    "max_position_embeddings": ("n_positions",),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_hidden_layers": ("n_layer", "n_layers"),
    "hidden_act": ("hidden_activation", "activation_function", "activation"),
    "rms_norm_eps": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "rope_theta": ("rotary_emb_base",),
    "partial_rotary_factor": ("rotary_pct",),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_topk", "moe_k"),
    "use_qk_norm": ("qk_layernorm",),
}
"""Alternative names of keys."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "alibi": (False,), "apply_residual_connection_post_layernorm": (False,), "attention_bias": (False,),
    "attention_chunk_size": (), "attention_multiplier": (), "attention_out_bias": (False,),
    "attn_logit_softcapping": (), "attn_output_gate": (False,), "attn_temperature_tuning": (False, 0),
    "bias": (False,), "clip_qkv": (), "embedding_multiplier": (1,), "enable_bias": (False,),
    "final_logit_softcapping": (), "is_encoder_decoder": (False,), "kv_lora_rank": (),
    "lm_head_multiplier": (1,), "logit_scale": (1,), "logits_scaling": (1,), "mlp_bias": (False,),
    "moe_num_shared_experts": (0,), "n_group": (1,), "n_shared_experts": (0,), "num_experts": (0, 1),
    "partial_rotary_factor": (1,), "q_lora_rank": (), "qkv_bias": (False,),
    "query_pre_attn_scalar": (), "residual_multiplier": (1,), "routed_scaling_factor": (1,),
    "shared_expert_intermediate_size": (0,), "swiglu_limit": (), "use_bidirectional_attention": (False,),
    "use_parallel_residual": (False,), "use_qk_norm": (False,), "use_qkv_bias": (False,),
}  # fmt: skip
"""Keys of numbers and switches that change the meaning of a model, each with the values (beside null) that
change nothing. A family that does not read such a key refuses files that have another value.
"""

SIZES = {
    "altup_active_idx", "altup_num_inputs", "attention_chunk_size", "attn_layer_period", "conv_L_cache",
    "conv_kernel", "decoder_sparse_step", "expert_layer_period", "first_k_dense_replace", "head_dim",
    "hidden_size", "hidden_size_per_layer_input", "intermediate_size", "intermediate_size_mlp",
    "kv_lora_rank", "laurel_rank", "linear_conv_kernel_dim", "linear_key_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim", "mamba_d_conv",
    "mamba_d_ssm", "mamba_d_state", "mamba_n_groups", "mamba_n_heads", "max_position_embeddings",
    "moe_intermediate_size", "moe_layer_interval", "moe_num_shared_experts", "n_group", "n_groups",
    "n_shared_experts", "num_attention_heads", "num_experts", "num_experts_per_tok", "num_heads",
    "num_hidden_layers", "num_key_value_heads", "num_kv_heads", "num_kv_shared_layers", "num_labels",
    "original_max_position_embeddings", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "shared_expert_intermediate_size", "sliding_window", "sliding_window_pattern", "state_size",
    "topk_group", "type_vocab_size", "v_head_dim", "vocab_size", "vocab_size_per_layer_input",
    "word_embed_proj_dim",
}  # fmt: skip
"""Keys of integers."""
MAY_BE_0 = {
    "altup_active_idx", "decoder_sparse_step", "first_k_dense_replace", "moe_intermediate_size",
    "moe_num_shared_experts", "n_shared_experts", "num_experts", "num_experts_per_tok",
    "num_kv_shared_layers", "shared_expert_intermediate_size", "sliding_window", "type_vocab_size",
}  # fmt: skip
NUMBERS = {
    "activation_sparsity_pattern", "attention_multiplier", "attn_layer_offset", "attn_logit_softcapping",
    "attn_scale", "clip_qkv", "embedding_multiplier", "expand", "expert_layer_offset",
    "final_logit_softcapping", "floor_scale", "key_multiplier", "lm_head_multiplier", "logit_scale",
    "logits_scaling", "mamba_expand", "max_window_layers", "moe_layer_end_index", "moe_layer_start_index",
    "pad_token_id", "partial_rotary_factor", "query_pre_attn_scalar", "residual_multiplier",
    "rms_norm_eps", "rope_local_base_freq", "rope_theta", "routed_scaling_factor", "swiglu_alpha",
    "swiglu_limit",
}  # fmt: skip
LISTS = {
    "architectures",
    "layer_types",
    "mlp_multipliers",
    "mlp_only_layers",
    "moe_layers",
    "no_rope_layers",
    "ssm_multipliers",
    "time_step_limit",
}
OBJECTS = {"rope_parameters", "rope_scaling"}
MOST = {
    "altup_num_inputs": 256,
    "head_dim": 65536,
    "hidden_size": 1 << 20,
    "num_experts": 65536,
    "num_hidden_layers": 4096,
}
"""Upper limits of sizes that determine the time and memory of building a model, if not 2 ** 31 - 1."""


def shortened(value: object) -> str:
    """A value of a file, shortened for messages."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _numbers(value: object) -> Any:
    """Values with floats in place of ``{"__float__": "Infinity"}``, which newer files write for numbers that
    JSON lacks.
    """
    if isinstance(value, Mapping):
        return (
            float(value["__float__"]) if "__float__" in value else {k: _numbers(v) for k, v in value.items()}
        )
    return [_numbers(v) for v in value] if isinstance(value, (list, tuple)) else value


class Config:
    """The keys of a config.json. Keys that all families share are attributes.

    `context` is the largest number of tokens of a sequence in use; by default `max_position_embeddings`.
    Rotary embeddings for long contexts (longrope) differ between short and long contexts.
    """

    def __init__(self, values: Mapping[str, Any], context: int | None = None) -> None:
        inner = values.get("text_config")
        # Multimodal models keep the parameters of their language model in a nested object.
        self.outer = str(values.get("model_type", "")) if isinstance(inner, Mapping) else None
        """The model_type of the enclosing multimodal model."""
        self.values: dict[str, Any] = _numbers(
            {**values, **inner} if isinstance(inner, Mapping) else dict(values)
        )
        if isinstance(inner, Mapping) and values.get("tie_word_embeddings") is not None:
            # The head belongs to the whole, and text_config may have another class's default.
            self.values["tie_word_embeddings"] = values["tie_word_embeddings"]
        self._context = context
        self._defaults: frozenset[str] = frozenset()
        """Keys whose values come from the family, not from the file. They need no check, and may be None."""
        self._read: set[str] = set()

    @staticmethod
    def read(path: str | Path, context: int | None = None) -> Config:
        """The config.json at `path`, or in the folder `path`.

        Raises:
            CompileError: the file is missing or is not a JSON object.
        """
        file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
        try:
            values = json.loads(file.read_text())
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise CompileError(f"{file}: not a model's config.json: {error}") from None
        if not isinstance(values, dict):
            raise CompileError(f"{file}: not a model's config.json: a {type(values).__name__}, not an object")
        return Config(values, context)

    def with_defaults(self, defaults: Mapping[str, Any]) -> Config:
        """A copy with values for missing keys."""
        missing = {k: v for k, v in defaults.items() if k not in self.values and self.get(k) is None}
        completed = Config({**missing, **self.values, "text_config": None}, self._context)
        completed.outer = self.outer
        completed._defaults = self._defaults | missing.keys()
        completed._read = self._read
        return completed

    def with_values(self, **values: object) -> Config:
        """A copy with other values for some keys."""
        changed = self.with_defaults({})
        changed.values |= values
        return changed

    def unread(self) -> list[str]:
        """The names in the file of keys that change the meaning of the model and that nobody has read."""
        return [
            name
            for key, neutral in NEUTRAL.items()
            if key not in self._read
            for name in (key, *ALIASES.get(key, ()))
            if name not in self._defaults
            and (value := self.values.get(name)) is not None
            and value not in neutral
        ]

    def get(self, key: str, default: object = None) -> Any:
        """The value of a key or of its aliases; `default` if it is missing or null.

        Raises:
            CompileError: the value does not have the key's type or range.
        """
        self._read.add(key)
        for name in (key, *ALIASES.get(key, ())):
            if (value := self.values.get(name)) is not None:
                return value if name in self._defaults else self._checked(key, name, value)
        return default

    def _checked(self, key: str, name: str, value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
        if key in SIZES:
            if isinstance(value, list) and value and all(v == value[0] for v in value):
                # A number for each layer, all equal.
                value = value[0]
                number = isinstance(value, int | float) and not isinstance(value, bool)
            most = MOST.get(key, 2**31 - 1)
            least = 0 if key in MAY_BE_0 else 1
            whole = number and least <= value <= most and value == int(value)
            expected = None if whole else f"a whole number of {least} to {most}"
        elif key in NUMBERS:
            expected = None if number else "a number"
        elif key in LISTS:
            expected = None if isinstance(value, list | tuple) else "a list"
        else:
            expected = None if key not in OBJECTS or isinstance(value, Mapping) else "an object"
        if expected:
            model = str(self.values.get("model_type") or "model")
            raise CompileError(f"config.json of a {model}: {name!r} is {shortened(value)}, not {expected}")
        return value

    def __getitem__(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise CompileError(f"config.json of a {self.model_type or 'model'} has no {key!r}")
        return value

    def of_layer(self, key: str, layer: int) -> Any:
        """The value of a key for a layer: files have one for all layers, or a list with one for each.

        Raises:
            CompileError: the value is missing, or the list has another length, or the value does not have the
                key's type or range.
        """
        value = self.values.get(key)
        if not isinstance(value, list | tuple):
            return self[key]
        self._read.add(key)
        if len(value) != self.layers:
            raise CompileError(
                f"config.json of a {self.model_type or 'model'}: {key!r} has {len(value)} values for "
                f"{self.layers} layers"
            )
        return self._checked(key, key, value[layer])

    # Values that all families have.

    @property
    def model_type(self) -> str:
        return str(self.get("model_type", ""))

    @property
    def hidden(self) -> int:
        return int(self["hidden_size"])

    @property
    def layers(self) -> int:
        return int(self["num_hidden_layers"])

    @property
    def heads(self) -> int:
        return int(self["num_attention_heads"])

    @property
    def kv_heads(self) -> int:
        return int(self.get("num_key_value_heads", self.heads))

    @property
    def head_dim(self) -> int:
        return int(self.get("head_dim", self.hidden // self.heads))

    @property
    def intermediate(self) -> int:
        return int(self["intermediate_size"])

    @property
    def vocabulary(self) -> int:
        return int(self["vocab_size"])

    @property
    def context(self) -> int:
        limit = int(self["max_position_embeddings"]) - int(self.get("unused_positions", 0))
        return limit if self._context is None else min(self._context, limit)

    @property
    def classifies(self) -> bool:
        """Whether the model gives logits of classes in place of hidden states or tokens."""
        return any(str(name).endswith("ForSequenceClassification") for name in self.get("architectures", ()))

    @property
    def headless(self) -> bool:
        """Whether the checkpoint has no head, which is not that of the embedding either."""
        names = [str(name) for name in self.get("architectures", ())]
        bare = [name.endswith("Model") and not name.endswith("LMHeadModel") for name in names]
        return bool(bare) and all(bare) and not self.tied

    @property
    def labels(self) -> int:
        """The number of classes."""
        return len(self.get("id2label", ())) or int(self.get("num_labels", 2))

    @property
    def eps(self) -> float:
        """The constant added to variances and mean squares."""
        return float(self["rms_norm_eps"])

    @property
    def tied(self) -> bool:
        """Whether the head shares its weight with the embedding."""
        return bool(self.get("tie_word_embeddings", True))

    def layer_type(self, layer: int) -> str:
        """The kind of a layer: ``full_attention``, ``sliding_attention``, which sees `window` tokens, or one
        that the family knows.
        """
        types = self.get("layer_types")
        if types:
            return str(types[layer])
        return (
            "sliding_attention"
            if self.get("sliding_window") and self.get("use_sliding_window", True)
            else "full_attention"
        )

    def window(self, layer: int) -> int | None:
        """The number of most recent tokens that a layer sees, the current one included; None for all."""
        return int(self["sliding_window"]) if self.layer_type(layer) == "sliding_attention" else None

    def chunk(self, layer: int) -> int | None:
        """The number of tokens of the chunks whose tokens see only each other; None: there are no chunks."""
        return int(self["attention_chunk_size"]) if self.layer_type(layer) == "chunked_attention" else None

    @property
    def ropes_by_kind(self) -> bool:
        """Whether kinds of layers have rotary embeddings of their own."""
        settings = self.get("rope_parameters") or {}
        return any(self.layer_type(k) in settings for k in range(self.layers))

    def rope(self, layer_type: str | None = None) -> Rope:
        """The rotary embedding of the layers of one type, if types differ in it.

        Raises:
            CompileError: its kind is unknown.
        """
        settings = self.get("rope_parameters") or self.get("rope_scaling") or {}
        settings = settings.get(layer_type, settings)
        if not isinstance(settings, Mapping):
            raise CompileError(
                f"config.json: the rope of {layer_type!r} is {shortened(settings)}, not an object"
            )
        inner = Config({"model_type": self.model_type, **settings})
        # The first files of Phi 3 used other names for longrope.
        kind = (
            "longrope"
            if "long_factor" in settings
            else settings.get("rope_type", settings.get("type", "default"))
        )
        share = inner.get("partial_rotary_factor", self.get("partial_rotary_factor", 1.0))
        theta = inner.get("rope_theta", self.get("rope_theta", 10000.0))
        original = self.get("original_max_position_embeddings", inner.get("original_max_position_embeddings"))
        limit = int(self["max_position_embeddings"])
        if not 0 <= share <= 1 or theta <= 0:
            raise CompileError(
                f"config.json: rope_theta {theta} must be above 0, and partial_rotary_factor {share} from 0 "
                "to 1"
            )
        present = {k: v for k, v in settings.items() if v is not None}
        return Rope(
            str(kind),
            float(theta),
            int(self.head_dim * share),
            present,
            int(original or limit),
            limit,
            self.context,
        )


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding (Su et al., 2021) of the first `size` elements of heads, with scaling `kind`
    for long contexts.

    `settings` come from config.json. `original` is the context of the first training, `limit` the context
    that the model supports, `context` the one in use; all in tokens.
    """

    kind: str
    theta: float
    size: int
    settings: Mapping[str, Any]
    original: int
    limit: int
    context: int

    @cached_property
    def scaled(self) -> tuple[np.ndarray[Any, Any], float]:
        """Radians per position for each pair of elements, float32 [size / 2], and the factor of cosines and
        sines.

        Raises:
            CompileError: `kind` is unknown, or one of its settings is missing.
        """
        plain = self.theta ** (-np.arange(0, self.size, 2, dtype=np.float64) / self.size)
        make = {
            "default": lambda f: (f, 1.0),
            "linear": lambda f: (f / self._number("factor"), 1.0),
            "dynamic": self._dynamic,
            "llama3": self._llama3,
            "yarn": self._yarn,
            "longrope": self._longrope,
        }.get(self.kind)
        if make is None:
            raise CompileError(
                f"rope_type {self.kind!r} in config.json is not supported; known: default, linear, dynamic, "
                "llama3, yarn, longrope"
            )
        try:
            with np.errstate(all="ignore"):
                frequencies, factor = make(plain)
                scaled = np.asarray(frequencies, np.float32)
            if not np.isfinite(scaled).all() or not math.isfinite(factor):
                raise ValueError("angles are not finite")
        except (TypeError, ValueError, ArithmeticError) as error:
            raise CompileError(f"config.json: its rope of type {self.kind!r} is invalid: {error}") from error
        return scaled, factor

    @property
    def gain(self) -> float:
        """The factor of queries and of keys that ``mscale_all_dim`` adds to YaRN (DeepSeek-AI 2024)."""
        weight, factor = self.settings.get("mscale_all_dim"), self.settings.get("factor", 1.0)
        if self.kind == "default" or not weight or factor <= 1:
            return 1.0
        return float(0.1 * weight * math.log(factor) + 1.0)

    def _dynamic(self, f: np.ndarray[Any, Any]) -> tuple[Any, float]:
        """Up to the supported context, the longest one here, this kind scales nothing, except by Hunyuan's
        fixed `alpha`, which stretches the base.
        """
        alpha = float(self.settings.get("alpha") or 1.0)
        places = np.arange(0, self.size, 2, dtype=np.float64) / max(self.size - 2, 1)
        return f * alpha**-places, 1.0

    def _number(self, name: str) -> float:
        if name not in self.settings:
            raise CompileError(f"rope_parameters of type {self.kind!r} in config.json have no {name!r}")
        return float(self.settings[name])

    def _llama3(self, f: np.ndarray[Any, Any]) -> tuple[Any, float]:
        """Llama 3.1: low frequencies are interpolated, high ones kept, those between mixed. Dubey et al.,
        2024.
        """
        low, high = self._number("low_freq_factor"), self._number("high_freq_factor")
        rotations = self.original * f / (2 * math.pi)
        kept = np.clip((rotations - low) / (high - low), 0, 1)
        return f * (kept + (1 - kept) / self._number("factor")), 1.0

    def _yarn(self, f: np.ndarray[Any, Any]) -> tuple[Any, float]:
        """YaRN. Peng et al., 2023."""
        factor = self.settings.get("factor") or self.limit / self.original

        def pair(rotations: float) -> float:
            """The index of the pair, in elements, with `rotations` rotations over the original context."""
            return (
                self.size * math.log(self.original / (rotations * 2 * math.pi)) / (2 * math.log(self.theta))
            )

        low, high = pair(self.settings.get("beta_fast") or 32), pair(self.settings.get("beta_slow") or 1)
        if self.settings.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.size - 1)
        slow = np.clip((np.arange(self.size // 2) - low) / ((high - low) or 0.001), 0, 1)

        def gain(weight: float) -> float:
            return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

        over, under = self.settings.get("mscale"), self.settings.get("mscale_all_dim")
        magnitude = gain(over) / gain(under) if over and under else gain(1.0)
        return f * (slow / factor + 1 - slow), float(self.settings.get("attention_factor", magnitude))

    def _longrope(self, f: np.ndarray[Any, Any]) -> tuple[Any, float]:
        """LongRoPE. Ding et al., 2024.

        The context in use selects the factors, not the length of each sequence, whose cached keys keep
        theirs.
        """
        name = "long_factor" if self.context > self.original else "short_factor"
        divisors = np.asarray(self.settings.get(name, ()), np.float64)
        if divisors.shape != f.shape:
            raise CompileError(f"{name} of config.json's rope has {divisors.size} numbers, not {f.size}")
        factor = self.settings.get("factor") or self.limit / self.original
        magnitude = math.sqrt(1 + math.log(factor) / math.log(self.original)) if factor > 1 else 1.0
        return f / divisors, float(self.settings.get("attention_factor", magnitude))


__all__ = ["Config", "Rope"]
