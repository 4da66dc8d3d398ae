"""The shapes of MLPerf Tiny's four networks (Banbury et al. 2021), with random weights, in 8-bit integers.

Batch normalizations, which fold into the convolutions' weights, are left out. Padding is the same on both
sides of a dimension; sizes and numbers of products are those of the original.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import nn

F = nn.functional
SAMPLES = 4


def _same(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups)


class Separable(nn.Module):
    """A depthwise convolution and one of single pixels, each with a ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.depthwise = _same(inputs, inputs, 3, stride, groups=inputs)
        self.pointwise = _same(inputs, outputs, 1)

    def forward(self, x: Any) -> Any:
        return F.relu(self.pointwise(F.relu(self.depthwise(x))))


class Keywords(nn.Module):
    """Keyword spotting: DS-CNN on 49 x 10 features (Zhang et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 64, (10, 4), stride=2, padding=(5, 1))
        self.blocks = nn.Sequential(*[Separable(64, 64) for _ in range(4)])
        self.scores = nn.Linear(64, 12)

    def logits(self, x: Any) -> Any:
        return self.scores(self.blocks(F.relu(self.first(x))).mean((2, 3)))

    def forward(self, x: Any) -> Any:
        return F.softmax(self.logits(x), -1)


class WakeWords(nn.Module):
    """Visual wake words: MobileNetV1 of a quarter of the width on 96 x 96 pixels (Howard et al. 2017)."""

    LAYERS = (
        *((8, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)),
        *((128, 128, 1),) * 5,
        *((128, 256, 2), (256, 256, 1)),
    )

    def __init__(self) -> None:
        super().__init__()
        self.first = _same(3, 8, 3, 2)
        self.blocks = nn.Sequential(*[Separable(*layer) for layer in self.LAYERS])
        self.scores = nn.Linear(256, 2)

    def logits(self, x: Any) -> Any:
        return self.scores(self.blocks(F.relu(self.first(x))).mean((2, 3)))

    def forward(self, x: Any) -> Any:
        return F.softmax(self.logits(x), -1)


class Residual(nn.Module):
    """Two convolutions beside the identity, or a convolution of single pixels where the sizes change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _same(inputs, outputs, 3, stride), _same(outputs, outputs, 3)
        self.shortcut = _same(inputs, outputs, 1, stride) if stride > 1 else None

    def forward(self, x: Any) -> Any:
        y = self.second(F.relu(self.first(x)))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class Images(nn.Module):
    """Image classification: ResNet-8 on 32 x 32 pixels (He et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = _same(3, 16, 3)
        self.blocks = nn.Sequential(Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))
        self.scores = nn.Linear(64, 10)

    def logits(self, x: Any) -> Any:
        return self.scores(self.blocks(F.relu(self.first(x))).mean((2, 3)))

    def forward(self, x: Any) -> Any:
        return F.softmax(self.logits(x), -1)


class Anomalies(nn.Module):
    """Anomaly detection: an autoencoder of ten dense layers."""

    SIZES = (640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640)

    def __init__(self) -> None:
        super().__init__()
        pairs = zip(self.SIZES, self.SIZES[1:], strict=False)
        self.layers = nn.Sequential(*[nn.Linear(n, m) for n, m in pairs])

    def forward(self, x: Any) -> Any:
        *hidden, last = self.layers
        for layer in hidden:
            x = F.relu(layer(x))
        return last(x)


@dataclass(frozen=True)
class Network:
    """A network, and the shape of its input."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def samples(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [rng.standard_normal(self.shape).astype(np.float32) for _ in range(SAMPLES)]

    def quantized(self, softmax: bool = True, weight_bits: int = 8) -> Any:
        """The network in 8-bit integers, with weights of `weight_bits` bits; without its softmax, all of it
        computes in integers.
        """
        import tilewright as tw

        nn.seed(0)
        module: Any = self.make()
        model = module if softmax else getattr(module, "logits", module)
        return tw.quantize(model, self.samples(), weight_bits=weight_bits)


NETWORKS = {
    "keyword-spotting": Network(Keywords, (1, 1, 49, 10)),
    "visual-wake-words": Network(WakeWords, (1, 3, 96, 96)),
    "image-classification": Network(Images, (1, 3, 32, 32)),
    "anomaly-detection": Network(Anomalies, (1, 640)),
}

__all__ = ["NETWORKS", "Network"]
