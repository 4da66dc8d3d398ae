"""Qwen2-VL and Qwen2.5-VL: images of any size, and positions with three axes. Wang et al., 2024; Bai et al.,
2025.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import CompileError, RequestError
from ...frontends.nn import LayerNorm, Linear, Module, ModuleList, RMSNorm
from ...frontends.nn import functional as F
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ..cache import Bidirectional
from ..config import Config, Rope
from ..layers import MLP, Block, GatedMLP, JointAttention, Rotation
from ..vision.given import View
from ..vision.pixels import BICUBIC, CLIP_MEAN, CLIP_STD, resized, shrunk, squares, values
from ..vision.towers import PatchProjection, plane_rotation
from .base import register
from .qwen import Qwen2
from .vision import Reading, Vision, register_vision

if TYPE_CHECKING:
    from PIL.Image import Image


class SectionedRotaryEmbedding(Module):
    """Rotations by positions with three axes: each frequency belongs to the time, the height or the width.

    Args:
        rope: The frequencies of the pairs, and the factor of cosines and sines.
        sections: The numbers of frequencies of consecutive sections, whose axes alternate.

    Raises:
        CompileError: The sections do not have all frequencies.
    """

    def __init__(self, rope: Rope, sections: list[int]) -> None:
        super().__init__()
        frequencies, self.magnitude = rope.scaled
        self.frequencies = np.asarray(frequencies, np.float32)
        axes = np.concatenate([np.full(size, k % 3) for k, size in enumerate(sections)])
        if len(axes) != len(self.frequencies):
            raise CompileError(
                f"mrope_section {sections} has {len(axes)} frequencies; heads have {len(self.frequencies)}"
            )
        self.of_axis = [np.where(axes == k, self.frequencies, np.float32(0)) for k in range(3)]

    def forward(self, places: Tensor) -> Rotation:
        """Return cosines and sines [batch, n, 1, size], float32, for integers [batch, n, 3], or [batch, n]
        with the same position on all axes.
        """
        x = tnp.astype(places, "float32")
        if x.ndim == 2:
            angles = x[:, :, None] * self.frequencies
        else:
            parts = [x[:, :, k : k + 1] * self.of_axis[k] for k in range(3)]
            angles = parts[0] + parts[1] + parts[2]
        angles = tnp.concatenate([angles, angles], -1)[:, :, None]
        return Rotation(self.magnitude * tnp.cos(angles), self.magnitude * tnp.sin(angles))


@register("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text")
class Qwen2VL(Qwen2):
    """The language model of Qwen2-VL and Qwen2.5-VL."""

    @classmethod
    def complete(cls, config: Config) -> Config:
        scaling = config.get("rope_scaling") or {}
        if scaling.get("type", scaling.get("rope_type")) == "mrope":  # the first files' name of the sections
            config = config.with_values(rope_scaling={**scaling, "type": "default", "rope_type": "default"})
        return super().complete(config)

    def make_rotary(self) -> Module:
        settings = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        return SectionedRotaryEmbedding(self.config.rope(), list(settings.get("mrope_section", [16, 24, 24])))


class Merger(Module):
    """Joins the vectors of neighboring patches and projects them.

    Args:
        norm: The normalization of vectors.
        inputs: The elements of the joined vectors.
        hidden: The elements of the results.
    """

    def __init__(self, norm: Module, inputs: int, hidden: int) -> None:
        super().__init__()
        self.ln_q, self.first, self.second = norm, Linear(inputs, inputs), Linear(inputs, hidden)

    def forward(self, x: Tensor, rows: Any) -> Tensor:
        """Return [rows, hidden] for `x` [patches, size]."""
        joined = self.ln_q(x).reshape(rows, self.first.weight.shape[1])
        result: Tensor = self.second(F.gelu(self.first(joined)))
        return result


@register_vision("qwen2_vl")
class Qwen2VLVision(Vision):
    """Patches of any number, of which squares of neighbors become one vector."""

    renamed: ClassVar[Mapping[str, str]] = {
        **Vision.renamed,
        r"^(model\.)?visual\.": "vision.",
        r"\.patch_embed\.proj\.": ".patches.",
        r"\.norm1\.": ".input_layernorm.",
        r"\.norm2\.": ".post_attention_layernorm.",
        r"\.attn\.qkv\.": ".self_attn.qkv_proj.",
        r"\.attn\.proj\.": ".self_attn.o_proj.",
        r"\.mlp\.fc1\.": ".mlp.up_proj.",
        r"\.mlp\.fc2\.": ".mlp.down_proj.",
        r"\.merger\.mlp\.0\.": ".merger.first.",
        r"\.merger\.mlp\.2\.": ".merger.second.",
    }
    axes = 3
    defaults: ClassVar[Mapping[str, Any]] = {
        "depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "hidden_act": "quick_gelu",
    }  # fmt: skip
    windowed: ClassVar[bool] = False
    """Whether most layers see only the patches of the same window."""

    @classmethod
    def tower_config(cls, config: Config) -> Config:
        tower = super().tower_config(config)
        width = int(tower["embed_dim"])
        return tower.with_values(
            hidden_size=width, num_attention_heads=int(tower["num_heads"]), num_key_value_heads=None,
            intermediate_size=int(width * tower["mlp_ratio"]), rms_norm_eps=1e-6,
        )  # fmt: skip

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        tower = self.tower_config(config)
        self.merge, patch = int(tower["spatial_merge_size"]), int(tower["patch_size"])
        shape = (3, int(tower["temporal_patch_size"]), patch, patch)
        self.inputs = math.prod(shape)
        self.patches = PatchProjection(tower.hidden, shape, bias=False)
        self.blocks = ModuleList(
            Block(
                JointAttention(tower, k, bias=True, out_bias=True), self.mlp(tower),
                lambda: self.norm(tower.hidden),
            )
            for k in range(int(tower["depth"]))
        )  # fmt: skip
        self.merger = Merger(self.norm(tower.hidden), tower.hidden * self.merge**2, config.hidden)
        whole = tower.get("fullatt_block_indexes", [7, 15, 23, 31]) if self.windowed else None
        self.whole = None if whole is None else {int(k) for k in whole}
        size = tower.head_dim // 2
        self.frequencies = (10000.0 ** -(np.arange(0, size, 2) / size)).astype(np.float32)

    def norm(self, size: int) -> Module:
        """Make a normalization of `size` elements."""
        return LayerNorm(size, 1e-6)

    def mlp(self, tower: Config) -> Module:
        """Make the feed-forward block of a layer."""
        return MLP(tower)

    def forward(self, patches: Tensor, positions: Tensor, windows: Tensor | None = None) -> Tensor:
        """Return vectors [rows, hidden].

        Args:
            patches: The pixels of the patches that each vector joins, [rows, square, inputs].
            positions: Their rows and columns [rows, square, 2], integers.
            windows: The number of the window of each vector [rows], integers; None: there are no windows.
        """
        rows, square = patches.shape[0], self.merge**2
        x = self.patches(patches.reshape(rows * square, self.inputs))[None]
        rotation = plane_rotation(positions.reshape(rows * square, 2), self.frequencies)
        everywhere = within = Bidirectional(x)
        if windows is not None:
            window = tnp.broadcast_to(windows[:, None], (rows, square)).reshape(rows * square)
            near = window[:, None] == window[None]
            within = Bidirectional(x, bias=tnp.where(near, 0.0, float("-inf"))[None, None])
        for k, block in enumerate(self.blocks):
            x = block(x, everywhere if self.whole is None or k in self.whole else within, rotation)
        result: Tensor = self.merger(x[0], rows)
        return result

    def example(self, most: int) -> tuple[tuple[Any, ...], dict[str, dict[int, str]]]:
        square, rows = self.merge**2, {0: f"vectors<={most}"}
        arrays = np.zeros((2, square, self.inputs), np.float32), np.zeros((2, square, 2), np.int32)
        sizes = {"patches": rows, "positions": rows}
        if not self.windowed:
            return arrays, sizes
        return (*arrays, np.zeros(2, np.int32)), {**sizes, "windows": rows}

    @classmethod
    def image_token(cls, config: Config) -> int:
        return int(config.get("image_token_id", 151655))

    @classmethod
    def pieces(cls, image: Image, reading: Reading) -> list[View | str]:
        tower, settings = cls.tower_config(reading.config), reading.settings
        patch, merge, times = (
            int(tower[name]) for name in ("patch_size", "spatial_merge_size", "temporal_patch_size")
        )
        height, width = fitting(image, patch * merge, reading)
        x = values(resized(image, height, width, settings, BICUBIC), settings, CLIP_MEAN, CLIP_STD)
        down, across = height // (patch * merge), width // (patch * merge)
        cut, positions = squares(x, patch, merge)
        cut = np.repeat(cut[:, :, :, None], times, 3)  # an image is a video that stands still
        arrays: tuple[Any, ...] = cut.reshape(*cut.shape[:2], -1), positions
        if cls.windowed:
            size = int(tower.get("window_size", 112)) // merge // patch
            window = positions[:, 0] // merge // size
            arrays = *arrays, (window[:, 0] * across + window[:, 1]).astype(np.int32)
        return [View(arrays, (down, across))]


def fitting(image: Image, factor: int, reading: Reading) -> tuple[int, int]:
    """Height and width of an image whose edges are multiples of `factor`, whose ratio is about kept, and
    whose number of pixels lies within the limits of the image processor and of the library.

    Raises:
        RequestError: The image is too long for its width.
    """
    settings, (width, height) = reading.settings, image.size
    size = settings.get("size") or {}
    least = int(settings.get("min_pixels") or size.get("shortest_edge") or 56 * 56)
    most = int(settings.get("max_pixels") or size.get("longest_edge") or 28 * 28 * 1280)
    most = min(most, reading.most * factor * factor)
    least = min(least, most)
    if max(height, width) > 200 * min(height, width):
        raise RequestError(f"one edge of {width} x {height} pixels is more than 200 times the other one")
    down, across = round(height / factor) * factor, round(width / factor) * factor
    if down * across > most:
        down, across = shrunk(height, width, factor, most)
    elif down * across < least:
        ratio = math.sqrt(least / (height * width))
        down, across = (math.ceil(x * ratio / factor) * factor for x in (height, width))
    reading.check(image, down * across // factor**2)
    return down, across


@register_vision("qwen2_5_vl")
class Qwen25VLVision(Qwen2VLVision):
    """RMS normalizations, gated feed-forward blocks, and attention within windows in most layers."""

    windowed = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "hidden_act": "silu",
    }  # fmt: skip

    @classmethod
    def tower_config(cls, config: Config) -> Config:
        tower = super(Qwen2VLVision, cls).tower_config(config)
        return tower.with_values(
            num_attention_heads=int(tower["num_heads"]), num_key_value_heads=None, rms_norm_eps=1e-6
        )

    def norm(self, size: int) -> Module:
        return RMSNorm(size, 1e-6)

    def mlp(self, tower: Config) -> Module:
        return GatedMLP(tower, bias=True)
