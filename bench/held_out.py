"""Models that no optimization was developed for. `python -m bench --held-out` shows whether optimizations for
the benchmark models also apply to others.

All have random weights from a fixed seed, and the published sizes or similar ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.zoo.models import MODELS, ZooModel

from .models import BENCH_MODELS, Model, of_zoo, random_tensor, seeded


def _roberta_small(_: str) -> Any:
    """6 layers of width 512."""
    from transformers import RobertaConfig, RobertaModel

    sizes = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}
    config = RobertaConfig(**sizes, vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)
    return RobertaModel(config, add_pooling_layer=False)


def _llama_100m(_: str) -> Any:
    """12 layers of width 768, 12 query heads, 4 heads of keys and values; all logits of 128 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12}
    return LlamaForCausalLM(
        LlamaConfig(**sizes, num_attention_heads=12, num_key_value_heads=4, vocab_size=32000)
    )


def _deit_tiny(_: str) -> Any:
    from transformers import DeiTConfig, DeiTForImageClassification

    sizes = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
    return DeiTForImageClassification(DeiTConfig(**sizes, num_labels=1000))


def _efficientnet_b0(_: str) -> Any:
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    config = EfficientNetConfig(
        image_size=224, width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, num_labels=1000
    )
    return EfficientNetForImageClassification(config)


def _regnet(_: str) -> Any:
    """RegNetX of 1.6 billion multiply-adds: the bottlenecks of ResNeXt, grouped 3 x 3 convolutions of 24
    channels.
    """
    from transformers import RegNetConfig, RegNetForImageClassification

    sizes = {"hidden_sizes": [72, 168, 408, 912], "depths": [2, 4, 10, 2], "groups_width": 24}
    return RegNetForImageClassification(RegNetConfig(**sizes, layer_type="x", num_labels=1000))


def _mobilevit(_: str) -> Any:
    """MobileViT-S."""
    from transformers import MobileViTConfig, MobileViTForImageClassification

    return MobileViTForImageClassification(MobileViTConfig(num_labels=1000))


def _tcn() -> Any:
    from torch import nn
    from torch.nn.functional import pad, relu

    class Block(nn.Module):
        """Two causal convolutions along time and a residual connection."""

        def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
            super().__init__()
            self.past = 2 * dilation
            self.first = nn.Conv1d(inputs, outputs, 3, dilation=dilation)
            self.second = nn.Conv1d(outputs, outputs, 3, dilation=dilation)
            self.residual = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

        def forward(self, x: Any) -> Any:
            y = relu(self.first(pad(x, (self.past, 0))))
            y = relu(self.second(pad(y, (self.past, 0))))
            return relu(y + self.residual(x))

    class Tcn(nn.Module):
        """A temporal convolutional network: 8 blocks of 128 channels, dilations 1 to 128, over 1024 steps."""

        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*[Block(128 if k else 16, 128, 1 << k) for k in range(8)])
            self.head = nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.blocks(x).transpose(1, 2))

    return seeded(Tcn)


def _unet() -> Any:
    import torch
    from torch import nn

    def twice(inputs: int, outputs: int) -> Any:
        layers = []
        for width in (inputs, outputs):
            layers += [
                nn.Conv2d(width, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        """A segmentation network: 4 levels of 32 to 256 channels, transposed convolutions and concatenations
        on the way up.
        """

        def __init__(self) -> None:
            super().__init__()
            widths = [32, 64, 128, 256]
            self.down = nn.ModuleList([twice(a, b) for a, b in zip([3, *widths], widths, strict=False)])
            self.pool = nn.MaxPool2d(2)
            self.widen = nn.ModuleList([nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in widths[-2::-1]])
            self.up = nn.ModuleList([twice(2 * w, w) for w in widths[-2::-1]])
            self.head = nn.Conv2d(widths[0], 4, 1)

        def forward(self, x: Any) -> Any:
            kept = []
            for index, level in enumerate(self.down):
                x = level(self.pool(x) if index else x)
                kept.append(x)
            for widen, level, across in zip(self.widen, self.up, kept[-2::-1], strict=True):
                x = level(torch.cat([across, widen(x)], dim=1))
            return self.head(x)

    return seeded(UNet)


def _vgg() -> Any:
    """VGG-16 (Simonyan and Zisserman, 2015): 13 convolutions of 3x3 and three linear layers."""
    from torch import nn

    def make() -> Any:
        layers: list[Any] = []
        before = 3
        for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(count):
                convolution = nn.Conv2d(before, width, 3, padding=1)
                nn.init.kaiming_normal_(convolution.weight)
                layers += [convolution, nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        layers += [nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(4096, 1000))

    return seeded(make)


def _text(
    name: str, make: Callable[[str], Any], kind: str = "text", output: str = "last_hidden_state"
) -> Model:
    return of_zoo(ZooModel(name, make, kind, output, {}))


def _image(name: str, make: Callable[[str], Any], side: int = 224, convolutional: bool = True) -> Model:
    return of_zoo(ZooModel(name, make, "image", "logits", {}, {"full": side}), images=convolutional)


_ALL = [
    _text("roberta-small", _roberta_small),
    of_zoo(MODELS["t5-encoder"]),
    _text("llama-100m", _llama_100m, "tokens", "logits"),
    _image("deit-tiny", _deit_tiny, convolutional=False),
    _image("efficientnet-b0", _efficientnet_b0),
    _image("regnetx-1.6gf", _regnet),
    _image("mobilevit-s", _mobilevit, side=256),
    Model("unet", _unet, lambda batch: {"x": random_tensor(batch, 3, 128, 128)}, images=True),
    Model("vgg16", _vgg, lambda batch: {"x": random_tensor(batch, 3, 224, 224)}, images=True),
    Model("tcn", _tcn, lambda batch: {"x": random_tensor(batch, 16, 1024)}),
]
HELD_OUT: dict[str, Model] = {model.name: model for model in _ALL}
"""The held-out models by name."""
KNOWN = BENCH_MODELS | HELD_OUT
"""All models by name."""
