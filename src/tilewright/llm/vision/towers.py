"""Image encoders on patches of fixed number: CLIP (Radford et al., 2021) and SigLIP (Zhai et al., 2023); and
what encoders on patches share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...frontends.nn import LayerNorm, Module, ModuleList
from ...frontends.nn.layers import uniform
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ..cache import Bidirectional
from ..config import Config
from ..layers import MLP, Attention, Block, Rotation

TOWER_NAMES = {
    r"\.(vision_model\.)?embeddings\.patch_embedding\.": ".patches.",
    r"\.(vision_model\.)?embeddings\.position_embedding\.weight$": ".positions",
    r"\.(vision_model\.)?embeddings\.class_embedding$": ".first",
    r"\.(vision_model\.)?encoder\.layers\.": ".layers.",
    r"\.(vision_model\.)?pre_layrnorm\.": ".pre_norm.",
    r"\.(vision_model\.)?post_layernorm\.": ".post_norm.",
    r"\.layer_norm1\.": ".input_layernorm.",
    r"\.layer_norm2\.": ".post_attention_layernorm.",
    r"\.out_proj\.": ".o_proj.",
    r"\.mlp\.fc1\.": ".mlp.up_proj.",
    r"\.mlp\.fc2\.": ".mlp.down_proj.",
}
"""Names of arrays in Hugging Face's towers, which follow a name of the tower, as `renamed` of models."""

CLIP: Mapping[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
}  # fmt: skip
SIGLIP: Mapping[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
}  # fmt: skip


class PatchProjection(Module):
    """The product of patches [..., inputs] and a kernel `weight` [outputs, *shape] of as many elements.

    Args:
        outputs: The last size of the result.
        shape: The sizes of the kernel, whose product is the number of inputs.
        bias: Whether to add a bias.
    """

    def __init__(self, outputs: int, shape: Sequence[int], bias: bool) -> None:
        super().__init__()
        self.weight = uniform((outputs, *shape), 1)
        self.bias = uniform((outputs,), 1) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., outputs] for `x` [..., inputs]."""
        y = x @ self.weight.reshape(self.weight.shape[0], -1).T
        return y if self.bias is None else y + self.bias


class PatchTower(Module):
    """Encodes the patches of one square image of fixed size.

    Args:
        config: The configuration of the encoder.
        clip: Whether the encoder is CLIP's, with a vector before those of patches and a normalization before
            the layers; otherwise it is SigLIP's.
        layers: The number of layers to run; None: all.
        last_norm: Whether the result is normalized.
    """

    def __init__(
        self, config: Config, *, clip: bool, layers: int | None = None, last_norm: bool = True
    ) -> None:
        super().__init__()
        size = int(config["patch_size"])
        self.side = int(config["image_size"]) // size
        self.inputs = 3 * size * size

        def norm() -> Module:
            return LayerNorm(config.hidden, config.eps)

        self.patches = PatchProjection(config.hidden, (3, size, size), bias=not clip)
        self.positions = uniform((self.side * self.side + clip, config.hidden), 1)
        self.first = uniform((config.hidden,), 1) if clip else None
        self.pre_norm = norm() if clip else None
        self.layers = ModuleList(
            Block(Attention(config, k, bias=True), MLP(config), norm)
            for k in range(config.layers if layers is None else layers)
        )
        self.post_norm = norm() if last_norm else None

    def states(self, patches: Tensor, positions: Tensor | None = None) -> list[Tensor]:
        """Return the hidden states [1, patches, hidden] before the first layer, and after each layer.

        Args:
            patches: The pixels of each patch [patches, 3 * size * size].
            positions: Which vectors for positions the patches have, integers [patches]; None: those in order.
        """
        x = self.patches(patches)
        if self.first is not None:
            x = tnp.concatenate([self.first[None], x])
        x = (x + (self.positions if positions is None else self.positions[positions]))[None]
        x = x if self.pre_norm is None else self.pre_norm(x)
        states = [x]
        cache = Bidirectional(x)
        for layer in self.layers:
            states.append(layer(states[-1], cache, None))
        return states

    def forward(self, patches: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the last hidden states [patches, hidden]; arguments as of `states`."""
        x = self.states(patches, positions)[-1][0]
        result: Tensor = x if self.post_norm is None else self.post_norm(x)
        return result


def plane_rotation(positions: Tensor, frequencies: np.ndarray[Any, Any]) -> Rotation:
    """Rotations of patches by their rows and columns: cosines and sines [1, patches, 1, 4 * k], float32.

    Args:
        positions: Rows and columns [patches, 2], integers.
        frequencies: The k frequencies of both [k], or those of rows and those of columns [2, k], float32.
    """
    angles = tnp.astype(positions, "float32")[:, :, None] * frequencies
    angles = angles.reshape(1, positions.shape[0], 1, 2 * frequencies.shape[-1])
    angles = tnp.concatenate([angles, angles], -1)
    return Rotation(tnp.cos(angles), tnp.sin(angles))


__all__ = ["CLIP", "SIGLIP", "TOWER_NAMES", "PatchProjection", "PatchTower", "plane_rotation"]
