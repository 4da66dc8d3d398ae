"""A detector: SSDLite on MobileNetV2 (Sandler et al., "MobileNetV2: Inverted Residuals and Linear
Bottlenecks", 2018, section 6.2), with random weights.

Six feature maps each have a head for the boxes and one for the classes: a depthwise convolution, then one of
1×1. The module decodes the boxes and applies the softmax to the classes; suppression of overlapping boxes is
left to the caller. ``full`` has the published sizes: images of 320×320, 91 classes, 2034 boxes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

LAST_OF_STRIDE_16 = 13
"""The inverted residual whose expanded features are the first map."""
EXTRA = ((256, 512), (128, 256), (128, 256), (64, 128))
"""Channels of the maps behind the backbone: of the 1×1 convolution, and of the map."""
CENTER, SIZE = 10.0, 5.0
"""Scales of the predicted offsets of centers and of logarithms of sizes (Liu et al., "SSD", 2016)."""
Array = np.ndarray[Any, Any]


def detector(size: str = "full", classes: int | None = None) -> Any:
    """The module in eval mode: images (batch, 3, side, side) to boxes and scores (batch, boxes,
    4 + classes), f32. A box is its least x and y, then its greatest, in parts of the image.

    Args:
        size: ``full`` or ``tiny``.
        classes: The number of classes; None: that of the size.
    """
    import torch

    side, own, width = {"full": (320, 91, 1.0), "tiny": (96, 5, 0.25)}[size]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = _ssdlite(side, classes or own, width).train()
        with torch.no_grad():  # statistics of normalizations that fit the weights
            for _ in range(4):
                model(torch.randn(2, 3, side, side))
    return model.eval()


def images(size: str = "full", seed: int = 0, batch: int = 1) -> Any:
    """A batch of random images for `detector`: smooth, with noise."""
    import torch

    side = {"full": 320, "tiny": 96}[size]
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(batch, 3, side // 16, side // 16, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bilinear")
    return smooth + 0.2 * torch.randn(batch, 3, side, side, generator=generator)


def anchors(maps: list[int], counts: list[int]) -> Array:
    """Centers and sizes (boxes, 4) of the boxes that predictions are relative to.

    Args:
        maps: The side of each feature map.
        counts: The boxes at each place of each map, 3 or 6.
    """
    scales = [0.2 + 0.75 * k / (len(maps) - 1) for k in range(len(maps))] + [1.0]
    found = []
    for k, (side, count) in enumerate(zip(maps, counts, strict=True)):
        shapes = [(scales[k], 1.0), (scales[k], 2.0), (scales[k], 0.5)]
        shapes += [(scales[k], 3.0), (scales[k], 1 / 3), (math.sqrt(scales[k] * scales[k + 1]), 1.0)]
        y, x = np.mgrid[:side, :side].astype(np.float32)
        for scale, ratio in shapes[:count]:
            width, height = scale * math.sqrt(ratio), scale / math.sqrt(ratio)
            box = [(x + 0.5) / side, (y + 0.5) / side, np.full_like(x, width), np.full_like(x, height)]
            found.append(np.stack(box, -1).reshape(side * side, 1, 4))
        merged = np.concatenate(found[-count:], 1).reshape(-1, 4)
        found[-count:] = [merged]
    return np.concatenate(found).astype(np.float32)


def overlap(a: Array, b: Array) -> Array:
    """The intersection over union of boxes (..., 4) with those at the same place in the other array."""
    low, high = np.maximum(a[..., :2], b[..., :2]), np.minimum(a[..., 2:], b[..., 2:])
    common = np.prod(np.clip(high - low, 0, None), -1)
    areas = [np.prod(x[..., 2:] - x[..., :2], -1) for x in (a, b)]
    return common / (areas[0] + areas[1] - common)  # type: ignore[no-any-return]


def _ssdlite(side: int, classes: int, width: float) -> Any:
    import torch
    from torch import nn
    from transformers import MobileNetV2Config, MobileNetV2Model

    config = MobileNetV2Config(depth_multiplier=width, image_size=side, tf_padding=False)
    backbone = MobileNetV2Model(config, add_pooling_layer=False)

    def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
        layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU6())

    def separable(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(convolution(inputs, inputs, 3, groups=inputs), nn.Conv2d(inputs, outputs, 1))

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.layers, self.last = backbone.conv_stem, backbone.layer, backbone.conv_1x1
            channels = [
                self.layers[LAST_OF_STRIDE_16 - 1].expand_1x1.convolution.out_channels,
                self.last.convolution.out_channels,
            ]
            self.extra = nn.ModuleList()
            for inner, outer in EXTRA:
                inner, outer = int(inner * width), int(outer * width)
                self.extra.append(
                    nn.Sequential(
                        convolution(channels[-1], inner, 1),
                        convolution(inner, inner, 3, 2, groups=inner),
                        convolution(inner, outer, 1),
                    )
                )
                channels.append(outer)
            self.counts = [3, *[6] * (len(channels) - 1)]
            pairs = list(zip(channels, self.counts, strict=True))
            self.boxes = nn.ModuleList(separable(c, n * 4) for c, n in pairs)
            self.classes = nn.ModuleList(separable(c, n * classes) for c, n in pairs)
            with torch.no_grad():
                maps = [x.shape[-1] for x in self.features(torch.zeros(2, 3, side, side))]
            self.register_buffer("anchors", torch.from_numpy(anchors(maps, self.counts)))

        def features(self, x: Any) -> list[Any]:
            """The feature maps, the largest first."""
            x = self.stem(x)
            for k, layer in enumerate(self.layers):
                if k == LAST_OF_STRIDE_16 - 1:
                    first = layer.expand_1x1(x)
                    y = layer.reduce_1x1(layer.conv_3x3(first))
                    x = x + y if layer.use_residual else y
                else:
                    x = layer(x)
            found = [first, self.last(x)]
            for block in self.extra:
                found.append(block(found[-1]))
            return found

        def forward(self, pixel_values: Any) -> Any:
            features = self.features(pixel_values)

            def joined(heads: Any, size: int) -> Any:
                parts = [head(x).permute(0, 2, 3, 1) for head, x in zip(heads, features, strict=True)]
                return torch.cat([p.reshape(p.shape[0], -1, size) for p in parts], 1)

            offsets = joined(self.boxes, 4)
            centers = offsets[..., :2] / CENTER * self.anchors[:, 2:] + self.anchors[:, :2]
            halves = torch.exp(offsets[..., 2:] / SIZE) * self.anchors[:, 2:] / 2
            scores = torch.softmax(joined(self.classes, classes), -1)
            return torch.cat([centers - halves, centers + halves, scores], -1)

    return Detector()


__all__ = ["anchors", "detector", "images", "overlap"]
