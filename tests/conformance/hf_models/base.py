"""Tools to describe the architectures of `hf_sweep`: each is a model of `transformers`, made from its
configuration at two widths, with its inputs.

A configuration is written once in terms of `Widths`. `TINY` is for comparing results with eager torch; `REAL`
has the widths of base-sized checkpoints with few layers and is for measuring time. Settings that an
architecture does not mention have the library's defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Widths:
    """The sizes that configurations are written in."""

    hidden: int
    heads: int
    key_value_heads: int
    inner: int
    layers: int
    vocabulary: int
    image: int
    patch: int
    stages: tuple[int, int, int, int]

    def transformer(self, **more: Any) -> dict[str, Any]:
        """The sizes under the names that most configurations use."""
        return {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.inner,
            **more,
        }

    def text(self, **more: Any) -> dict[str, Any]:
        return self.transformer(vocab_size=self.vocabulary, **more)

    def decoder(self, **more: Any) -> dict[str, Any]:
        return self.text(
            num_key_value_heads=self.key_value_heads,
            use_cache=False,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ) | dict(more)

    def vision(self, **more: Any) -> dict[str, Any]:
        return self.transformer(image_size=self.image, patch_size=self.patch) | more

    def seq2seq(self, **more: Any) -> dict[str, Any]:
        """The sizes under the names that BART and its relatives use."""
        return {
            "d_model": self.hidden,
            "encoder_layers": self.layers,
            "decoder_layers": self.layers,
            "encoder_attention_heads": self.heads,
            "decoder_attention_heads": self.heads,
            "encoder_ffn_dim": self.inner,
            "decoder_ffn_dim": self.inner,
            "vocab_size": self.vocabulary,
            "use_cache": False,
            **more,
        }

    def t5(self, **more: Any) -> dict[str, Any]:
        return {
            "d_model": self.hidden,
            "d_kv": self.hidden // self.heads,
            "d_ff": self.inner,
            "num_layers": self.layers,
            "num_decoder_layers": self.layers,
            "num_heads": self.heads,
            "vocab_size": self.vocabulary,
            "use_cache": False,
            **more,
        }

    def speech(self, **more: Any) -> dict[str, Any]:
        """The sizes under the names that wav2vec 2.0 and its relatives use; in `REAL`, the first convolutions
        keep their default strides.
        """
        channels = (self.hidden // 4,) * 4 if self is TINY else (512,) * 7
        front = {} if self is REAL else {"conv_kernel": (10, 3, 3, 2), "conv_stride": (5, 2, 2, 2)}
        positions = {} if self is REAL else {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4}
        return self.text(conv_dim=channels, **front, **positions) | dict(more)


TINY = Widths(64, 4, 2, 96, 2, 120, 32, 8, (16, 32, 48, 64))
REAL = Widths(768, 12, 4, 3072, 2, 4000, 224, 16, (64, 128, 256, 512))

Input = tuple[str, tuple[int | str, ...]]
"""The contents of a tensor (``ids``, ``normal``, ``ones``) and its shape; a name in the shape is a dynamic
dimension.
"""


def ids(*shape: int | str) -> Input:
    return "ids", shape or ("batch", "sequence")


def normal(*shape: int | str) -> Input:
    return "normal", shape


def ones(*shape: int | str) -> Input:
    return "ones", shape


@dataclass(frozen=True)
class Architecture:
    """A model class of `transformers` with its configuration and its inputs."""

    family: str
    model: str
    config: Callable[[Widths], dict[str, Any]]
    inputs: Callable[[Widths], Mapping[str, Input]]
    wrap: str = ""
    """The name of a submodule that is taken instead of the whole model."""
    sizes: Mapping[str, tuple[int, ...]] | None = None
    """Four sizes of each dynamic dimension: for the example, for two comparisons, and for the measurement."""
    least: Mapping[str, int] = field(default_factory=dict)
    """The smallest size of a dynamic dimension for which the model takes the same branches as for larger
    sizes.
    """


SIZES: dict[str, tuple[int, ...]] = {
    "batch": (2, 1, 3, 1),
    "sequence": (12, 12, 19, 128),
    "target": (6, 6, 9, 32),
    "samples": (1600, 1600, 2240, 16000),
    "frames": (24, 24, 40, 200),
}
FAMILIES = (
    "text encoder",
    "text decoder",
    "mixture of experts",
    "sequence to sequence",
    "vision",
    "audio",
    "multimodal",
    "state space",
    "time series",
)
ARCHITECTURES: dict[str, Architecture] = {}


def add(family: str, inputs: Any, rows: Mapping[str, tuple[Any, ...]]) -> None:
    for name, (model, config, *more) in rows.items():
        own = more[0] if more else inputs
        ARCHITECTURES[name] = Architecture(family, model, config, own, **(more[1] if len(more) > 1 else {}))


def text_input(w: Widths) -> dict[str, Input]:
    return {"input_ids": ids()}


def two_texts(w: Widths) -> dict[str, Input]:
    return {"input_ids": ids(), "decoder_input_ids": ids("batch", "target")}


def image_input(w: Widths) -> dict[str, Input]:
    return {"pixel_values": normal("batch", 3, w.image, w.image)}


def picture(n: int) -> Callable[[Widths], dict[str, Input]]:
    """An image with sides of at least `n` pixels."""
    return lambda w: {"pixel_values": normal("batch", 3, max(n, w.image), max(n, w.image))}


def wave(w: Widths) -> dict[str, Input]:
    return {"input_values": normal("batch", "samples")}
