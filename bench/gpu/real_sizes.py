"""Models at their published sizes for the table of resources: compiled, not run. Layers that repeat have
equal kernels, so there is one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.zoo.models import MINILM, MODELS

ALL = {**MODELS, MINILM.name: MINILM}
LAYERS = {
    "bert": ("encoder.layer", 1),
    "distilbert": ("transformer.layer", 1),
    "roberta": ("encoder.layer", 1),
    "gpt2": ("transformer.h", 1),
    "qwen2": ("model.layers", 1),
    "t5-encoder": ("encoder.block", 1),
    "vit": ("vit.layers", 1),
    "convnext": ("convnext.encoder.stages.*.layers", 1),
    "swin": ("swin.encoder.layers.*.blocks", 2),  # the second has shifted windows
    "minilm": ("encoder.layer", 1),
}
"""The lists of layers, and how many differ. The other convolutional networks are whole."""
VOCABULARY = 8192
"""Words of the language models, whose last product is the same kernel with more blocks for more words."""


def _llama() -> Any:
    """A layer of Llama 3.2 1B."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=1,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=4096,
    )
    return LlamaForCausalLM(config)


def _qwen2() -> Any:
    """A layer of Qwen2 0.5B."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=1,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )
    return Qwen2ForCausalLM(config)


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


MADE: dict[str, Callable[[], Any]] = {"llama": _llama, "qwen2": _qwen2, "whisper-encoder": _whisper}
"""Models that are made with one layer: they are large, or the tests' are smaller."""


@dataclass(frozen=True)
class RealCase:
    """A model at its published size, for a batch of inputs of one type."""

    name: str
    architecture: str
    batch: int
    dtype: str
    tokens: int = 128

    def build(self) -> Any:
        """The exported program."""
        import torch

        from tilewright.frontends.torch.export import export_program

        model = ALL[self.architecture]
        if self.architecture in MADE:
            model = replace(model, make=lambda _: MADE[self.architecture]())
        elif self.architecture in LAYERS:
            make, (path, kept) = model.make, LAYERS[self.architecture]
            model = replace(model, make=lambda size: shortened(make(size), path.split("."), kept))
        dtype = getattr(torch, self.dtype)
        module = model.torch_model("full").to(dtype)
        inputs = model.inputs("full", batch=self.batch, seq=self.tokens)
        cast = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs.values())
        return export_program(module, cast, None, None)


def shortened(model: Any, path: Sequence[str], kept: int) -> Any:
    """The model with the first `kept` layers of the lists at `path`, where ``*`` stands for all of a list."""
    lists = [model]
    for part in path:
        lists = [y for x in lists for y in (x if part == "*" else [getattr(x, part)])]
    for layers in lists:
        del layers[kept:]
    return model


@dataclass(frozen=True)
class SweepCase:
    """A model of Hugging Face's sweep, with the widths at which the sweep measures speed."""

    name: str
    architecture: str
    dtype: str

    def build(self) -> Any:
        """The exported program."""
        import torch
        from tests.conformance import hf_sweep
        from tests.conformance.hf_models import ARCHITECTURES, REAL

        from tilewright.frontends.torch.export import export_program

        architecture = ARCHITECTURES[self.architecture]
        dtype = getattr(torch, self.dtype)
        module = hf_sweep.model_of(architecture, REAL).to(dtype)
        found = hf_sweep.inputs_of(architecture, REAL, 3)
        inputs = {k: x.to(dtype) if x.is_floating_point() else x for k, x in found.items()}
        return export_program(module, None, inputs, None)


def real_cases() -> Iterator[RealCase | SweepCase]:
    """All models in bfloat16, and some with a batch of 1 in float32."""
    from tests.conformance.devices import OTHERS

    for name in ALL:
        yield RealCase(f"{name}, batch 8, bfloat16", name, 8, "bfloat16")
        if name == "llama":
            yield RealCase(f"{name} decode, batch 8, bfloat16", name, 8, "bfloat16", tokens=1)
    for name in OTHERS:
        yield SweepCase(f"{name}, bfloat16", name, "bfloat16")
    for name in ("bert", "resnet50"):
        yield RealCase(f"{name}, batch 1, float32", name, 1, "float32")


__all__ = ["RealCase", "SweepCase", "real_cases"]
