"""Models of the sweep: each makes the document of its page."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Document = dict[str, Any]


def _compiled(model: Any, inputs: dict[str, Any], title: str, **options: Any) -> Document:
    """The document of a model of PyTorch with its passes, and with the times of a call."""
    import tilewright as tw
    from tilewright.explorer.page import collect
    from tilewright.explorer.recorder import Recorder

    with Recorder() as recorder:
        library = tw.compile(model, tuple(inputs.values()), cache=False, **options)
    return collect(library, list(inputs.values()), title, recorder)


def minilm() -> Document:
    """all-MiniLM-L6-v2 with its published weights; any batch of up to 8 texts of up to 128 tokens."""
    from tests.zoo.models import MINILM

    return _compiled(MINILM.torch_model(), MINILM.inputs(seq=128), "MiniLM", dims=MINILM.dims)


def resnet50() -> Document:
    """ResNet-50 with random weights, one image of 224 x 224."""
    from tests.zoo.models import MODELS

    return _compiled(MODELS["resnet50"].torch_model("full"), MODELS["resnet50"].inputs("full"), "ResNet-50")


def unet() -> Document:
    """The UNet of Stable Diffusion 1.5 (860 million parameters) with random weights, one image of
    512 x 512.
    """
    import diffusers
    import torch

    class Noise(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unet = diffusers.UNet2DConditionModel(cross_attention_dim=768, attention_head_dim=8)

        def forward(self, sample: Any, timestep: Any, states: Any) -> Any:
            return self.unet(sample, timestep, states, return_dict=False)[0]

    inputs = {
        "sample": torch.randn(1, 4, 64, 64),
        "timestep": torch.tensor([500]),
        "states": torch.randn(1, 77, 768),
    }
    return _compiled(Noise().eval(), inputs, "Stable Diffusion's UNet")


def language_model() -> Document:
    """A library of a model of the size of Qwen2.5-0.5B, with random weights: all its functions, ``decode``
    timed for 8 sequences.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from tilewright.driver.random_inputs import default_sizes, random_inputs
    from tilewright.explorer.page import collect
    from tilewright.explorer.recorder import Recorder
    from tilewright.llm.library import LibraryOptions, compile_library

    config = Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=32000,
        tie_word_embeddings=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
        (Path(folder) / "tokenizer.json").write_text(json.dumps(_tokenizer()))
        with Recorder() as recorder:
            library = compile_library(folder, LibraryOptions(context=1024))
        decode = library.functions["decode"]
        inputs = random_inputs(decode.metadata, default_sizes(decode.metadata, {}), 0)
        return collect(decode, list(inputs.values()), "language model", recorder)


def _tokenizer() -> dict[str, Any]:
    vocabulary = {"<|end|>": 0} | {chr(33 + k): k + 1 for k in range(90)}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": None},
    }


def training_step() -> Document:
    """A training step of a GPT of four blocks with AdamW: 8 texts of 128 tokens."""
    import torch
    from bench.training import compiled_step, models

    from tilewright.explorer.page import collect
    from tilewright.explorer.recorder import Recorder

    torch.manual_seed(0)
    model, (x, labels) = models()["gpt"]()
    with Recorder() as recorder:
        step = compiled_step(model.train(), (x, labels), "float32", 2)
    return collect(step.library, [x.numpy(), labels.numpy()], "training step", recorder)


MODELS: dict[str, Callable[[], Document]] = {
    "MiniLM": minilm,
    "ResNet-50": resnet50,
    "UNet": unet,
    "language model": language_model,
    "training step": training_step,
}

__all__ = ["MODELS", "Document"]
