"""The networks of diffusers, small and with random weights, give eager PyTorch's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw

diffusers = pytest.importorskip("diffusers")

Case = tuple[torch.nn.Module, dict[str, torch.Tensor | bool]]


def unet() -> Case:
    """Return a network like Stable Diffusion's, with convolutions, attention to a text, and skip
    connections.
    """
    model = diffusers.UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(8, 16, 16),
        layers_per_block=2,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    return model, {
        "sample": torch.randn(2, 4, 16, 16),
        "timestep": torch.tensor([3, 700]),
        "encoder_hidden_states": torch.randn(2, 5, 24),
    }


def vae() -> Case:
    model = diffusers.AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=32,
    )
    return model, {"sample": torch.randn(1, 3, 32, 32)}


def dit() -> Case:
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=8,
        num_layers=3,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
    )
    return model, {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor([3, 700]),
        "class_labels": torch.tensor([1, 7]),
    }


def sd3() -> Case:
    model = diffusers.SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=3,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=24,
        caption_projection_dim=16,
        pooled_projection_dim=12,
        out_channels=4,
        pos_embed_max_size=8,
    )
    return model, {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "encoder_hidden_states": torch.randn(2, 5, 24),
        "pooled_projections": torch.randn(2, 12),
        "timestep": torch.tensor([3.0, 700.0]),
    }


def flux() -> Case:
    model = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        pooled_projection_dim=12,
        guidance_embeds=False,
        axes_dims_rope=(4, 4, 8),
    )
    places = torch.zeros(16, 3)
    places[:, 1], places[:, 2] = torch.arange(16) // 4, torch.arange(16) % 4
    return model, {
        "hidden_states": torch.randn(2, 16, 4),
        "encoder_hidden_states": torch.randn(2, 5, 24),
        "pooled_projections": torch.randn(2, 12),
        "timestep": torch.tensor([0.3, 0.7]),
        "img_ids": places,
        "txt_ids": torch.zeros(5, 3),
    }


def controlnet() -> Case:
    model = diffusers.ControlNetModel(
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=4,
        norm_num_groups=4,
        conditioning_embedding_out_channels=(8, 16),
    )
    return model, {
        "sample": torch.randn(2, 4, 16, 16),
        "timestep": torch.tensor([3, 700]),
        "encoder_hidden_states": torch.randn(2, 5, 24),
        "controlnet_cond": torch.randn(2, 3, 32, 32),
    }


MODELS: dict[str, Callable[[], Case]] = {
    "ControlNet": controlnet, "DiT": dit, "Flux": flux, "SD3": sd3, "UNet": unet, "VAE": vae
}  # fmt: skip
FAST = ("DiT",)


class Plain(torch.nn.Module):
    """A network that returns tensors instead of an output class. Weights that begin as zeros are random
    here.
    """

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network
        with torch.no_grad():
            for parameter in network.parameters():
                if not parameter.any():
                    parameter.normal_(std=0.1)

    def forward(self, **inputs: torch.Tensor) -> Any:
        return self.network(**inputs, return_dict=False)


def tensors(found: Any) -> list[Any]:
    return [x for part in found for x in tensors(part)] if isinstance(found, (list, tuple)) else [found]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in MODELS]
)
def test_equals_eager(name: str) -> None:
    torch.manual_seed(0)
    network, inputs = MODELS[name]()
    model = Plain(network).eval()
    with torch.no_grad():
        wanted = tensors(model(**inputs))
    library = tw.compile(model, (), kwargs=inputs)
    got = tensors(library(**inputs))
    assert len(got) == len(wanted)
    for x, y in zip(got, wanted, strict=True):
        scale = float(y.abs().max())
        assert scale > 1e-3
        np.testing.assert_allclose(np.asarray(x) / scale, y.numpy() / scale, atol=2e-4)
