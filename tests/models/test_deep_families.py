"""Deep and unusual models of transformers give eager PyTorch's results. They are tiny in every other respect
and have random weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import tilewright as tw

Case = tuple[torch.nn.Module, torch.Tensor]
TOKENS = torch.randint(0, 50, (1, 6), generator=torch.Generator().manual_seed(0))


def linear_relu(layers: int) -> Case:
    pairs = [(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(layers)]
    return torch.nn.Sequential(*(layer for pair in pairs for layer in pair)), torch.ones(2, 8)


def bert(layers: int) -> Case:
    config = hf.BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16,
    )  # fmt: skip
    return hf.BertModel(config), TOKENS


def gpt2(layers: int) -> Case:
    config = hf.GPT2Config(vocab_size=50, n_embd=8, n_layer=layers, n_head=2, n_positions=16, use_cache=False)
    return hf.GPT2Model(config), TOKENS


def llama(layers: int) -> Case:
    config = hf.LlamaConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=layers, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=16, max_position_embeddings=16, use_cache=False,
    )  # fmt: skip
    return hf.LlamaModel(config), TOKENS


def deberta(layers: int) -> Case:
    config = hf.DebertaV2Config(
        vocab_size=50, hidden_size=8, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, relative_attention=True, position_buckets=4, norm_rel_ebd="layer_norm",
        share_att_key=True, pos_att_type=["p2c", "c2p"],
    )  # fmt: skip
    return hf.DebertaV2Model(config), TOKENS


def vit(layers: int) -> Case:
    config = hf.ViTConfig(
        hidden_size=8,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
    )
    return hf.ViTModel(config), torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def mobilebert(layers: int) -> Case:
    config = hf.MobileBertConfig(
        vocab_size=50, hidden_size=16, embedding_size=8, num_hidden_layers=layers, num_attention_heads=2,
        intermediate_size=16, intra_bottleneck_size=8, max_position_embeddings=16,
    )  # fmt: skip
    return hf.MobileBertModel(config), TOKENS


def conformer(layers: int) -> Case:
    config = hf.Wav2Vec2ConformerConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=16,
        conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2, conv_depthwise_kernel_size=5,
    )  # fmt: skip
    return hf.Wav2Vec2ConformerModel(config), torch.randn(1, 400, generator=torch.Generator().manual_seed(0))


class Hidden(torch.nn.Module):
    """A model with its last hidden state as the result."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return (
            self.model(x)
            if isinstance(self.model, torch.nn.Sequential)
            else self.model(x, return_dict=False)[0]
        )


def check(case: Callable[[int], Case], layers: int) -> None:
    torch.manual_seed(0)
    network, x = case(layers)
    model = Hidden(network).eval()
    with torch.no_grad():
        wanted = model(x).numpy()
    with tw.compile(model, (x,), cache=False) as library:
        np.testing.assert_allclose(
            np.asarray(library(x)), wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max()
        )


def test_mobilebert() -> None:
    check(mobilebert, 4)


@pytest.mark.slow
@pytest.mark.parametrize("case", [linear_relu, bert, gpt2, llama, deberta, vit])
def test_200_layers(case: Callable[[int], Case]) -> None:
    check(case, 200)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "layers"), [(mobilebert, 24), (conformer, 17)], ids=["mobilebert", "conformer"]
)
def test_models_of_many_operators(case: Callable[[int], Case], layers: int) -> None:
    check(case, layers)
