"""Models at their published sizes for the table of resources: compiled, not run. Layers that repeat have
equal kernels, so there is one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.zoo.models import MODELS

BATCHES = (1, 8)
TYPES = ("float32", "bfloat16")


def _bert() -> Any:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(num_hidden_layers=1), add_pooling_layer=False)


def _vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_hidden_layers=1, num_labels=1000))


def _llama() -> Any:
    """A layer of Llama 3.2 1B, with a smaller vocabulary."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=1,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=4096,
    )
    return LlamaForCausalLM(config)


def _whisper() -> Any:
    """A layer of the encoder of Whisper base."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    heads, width = 8, 512
    return WhisperEncoder(
        WhisperConfig(
            d_model=width, encoder_layers=1, encoder_attention_heads=heads, encoder_ffn_dim=4 * width
        )
    )


ONE_LAYER: dict[str, Callable[[], Any]] = {
    "bert": _bert,
    "vit": _vit,
    "llama": _llama,
    "whisper-encoder": _whisper,
}


@dataclass(frozen=True)
class RealCase:
    """A model at its published size, for a batch of inputs of one type."""

    name: str
    architecture: str
    batch: int
    dtype: str
    tokens: int = 128

    def build(self) -> tuple[Any, tuple[Any, ...]]:
        """The module and its inputs."""
        import torch

        model = MODELS[self.architecture]
        if self.architecture in ONE_LAYER:
            make = ONE_LAYER[self.architecture]
            model = replace(model, make=lambda _: make())
        dtype = getattr(torch, self.dtype)
        module = model.torch_model("full").to(dtype)
        inputs = model.inputs("full", batch=self.batch, seq=self.tokens)
        return module, tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs.values())


def real_cases() -> Iterator[RealCase]:
    """All models with all batches and types."""
    for name in ("bert", "vit", "llama", "whisper-encoder", "resnet50", "mobilenet_v2", "convnext"):
        for dtype in TYPES:
            for batch in BATCHES:
                title = f"{name}, batch {batch}, {dtype}"
                if name == "llama":
                    yield RealCase(f"{name} decode, batch {batch}, {dtype}", name, batch, dtype, tokens=1)
                    title = f"{name} prefill, batch {batch}, {dtype}"
                yield RealCase(title, name, batch, dtype)


__all__ = ["RealCase", "real_cases"]
