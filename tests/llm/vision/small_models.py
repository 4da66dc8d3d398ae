"""Small vision-language models with random weights, made by `transformers`, with tokenizers and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.small_tokenizer import byte_level
from tilewright.llm.engine.images import SeenRows
from tilewright.llm.library import tokenizer_of
from tilewright.llm.runner import PAGE
from tilewright.llm.vision.reader import ImageReader
from tilewright.llm.weights import open_checkpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pillow = pytest.importorskip("PIL.Image")

SPECIAL = (
    "<s>", "</s>", "<image>", "<boi>", "<eoi>", "<fake_token_around_image>", "<global-img>",
    *(f"<row_{r}_col_{c}>" for r in range(1, 5) for c in range(1, 5)), "<vision_start>", "<vision_end>",
    "[IMG_BREAK]", "[IMG_END]",
)  # fmt: skip
IMAGE, BOI, EOI = 2, 3, 4
VOCABULARY = 400
MOST = 40
"""The most vectors of an image."""
TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}MARK{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)

_TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "pad_token_id": 0,
    "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
_TOWER = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
    "patch_size": 4, "image_size": 24,
}  # fmt: skip
_GEMMA = {
    **_TEXT, "head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": 40,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
_QWEN = {
    **_TEXT,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 3, 3]},
    "use_sliding_window": False,
}
_HALVES = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_convert_rgb": True}
_SQUARE = {**_HALVES, "size": {"height": 24, "width": 24}, "do_resize": True, "resample": 2}
_PIXTRAL = {**_TOWER, "model_type": "pixtral", "head_dim": 16, "hidden_act": "silu"}

MODELS: dict[str, tuple[str, dict[str, Any], tuple[str, dict[str, Any]], str]] = {
    "llava": (
        "LlavaForConditionalGeneration",
        {
            "text_config": {**_TEXT, "model_type": "llama"},
            "vision_config": {**_TOWER, "model_type": "clip_vision_model", "projection_dim": 32},
            "image_token_index": IMAGE, "tie_word_embeddings": False,
        },
        (
            "LlavaImageProcessorPil",
            {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}},
        ),
        "<image>",
    ),
    "llava, siglip": (
        "LlavaForConditionalGeneration",
        {
            "text_config": {**_TEXT, "model_type": "qwen2"},
            "vision_config": {**_TOWER, "model_type": "siglip_vision_model", "vision_use_head": False},
            "image_token_index": IMAGE, "vision_feature_layer": -1, "tie_word_embeddings": True,
            "vision_feature_select_strategy": "full", "multimodal_projector_bias": False,
        },
        ("SiglipImageProcessorPil", {**_SQUARE, "resample": 3}),
        "<image>",
    ),
    "pixtral": (
        "LlavaForConditionalGeneration",
        {
            "text_config": {**_TEXT, "model_type": "mistral", "sliding_window": None},
            "vision_config": _PIXTRAL, "image_token_index": IMAGE, "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full", "tie_word_embeddings": False,
        },
        ("PixtralImageProcessorPil", {"size": {"longest_edge": 28}, "patch_size": {"height": 4, "width": 4}}),
        "<image>",
    ),
    "mistral 3": (
        "Mistral3ForConditionalGeneration",
        {
            "text_config": {**_TEXT, "model_type": "mistral", "sliding_window": None},
            "vision_config": {**_PIXTRAL, "hidden_act": "gelu"}, "image_token_index": IMAGE,
            "spatial_merge_size": 2, "tie_word_embeddings": False,
        },
        ("PixtralImageProcessorPil", {"size": {"longest_edge": 40}, "patch_size": {"height": 8, "width": 8}}),
        "<image>",
    ),
    "gemma 3": (
        "Gemma3ForConditionalGeneration",
        {
            "text_config": {**_GEMMA, "model_type": "gemma3_text"},
            "vision_config": {**_TOWER, "model_type": "siglip_vision_model", "vision_use_head": False},
            "image_token_index": IMAGE, "boi_token_index": BOI, "eoi_token_index": EOI,
            "mm_tokens_per_image": 9,
        },
        ("Gemma3ImageProcessorPil", _SQUARE),
        "<boi>",
    ),
    "gemma 3, crops": (
        "Gemma3ForConditionalGeneration",
        {
            "text_config": {**_GEMMA, "model_type": "gemma3_text"},
            "vision_config": {**_TOWER, "model_type": "siglip_vision_model", "vision_use_head": False},
            "image_token_index": IMAGE, "boi_token_index": BOI, "eoi_token_index": EOI,
            "mm_tokens_per_image": 9,
        },
        (
            "Gemma3ImageProcessorPil",
            {
                **_SQUARE, "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 12,
                "pan_and_scan_max_num_crops": 3, "pan_and_scan_min_ratio_to_activate": 1.5,
            },
        ),
        "<boi>",
    ),
    "paligemma": (
        "PaliGemmaForConditionalGeneration",
        {
            "text_config": {**_TEXT, "head_dim": 16, "model_type": "gemma"},
            "vision_config": {
                **_TOWER, "model_type": "siglip_vision_model", "projection_dim": 64, "vision_use_head": False
            },
            "image_token_index": IMAGE, "projection_dim": 64, "bos_token_id": 0,
        },
        ("SiglipImageProcessorPil", {**_SQUARE, "resample": 3}),
        "<image>",
    ),
    "smolvlm": (
        "SmolVLMForConditionalGeneration",
        {
            "text_config": {**_TEXT, "model_type": "llama"}, "vision_config": _TOWER, "scale_factor": 2,
            "image_token_id": IMAGE,
        },
        (
            "SmolVLMImageProcessorPil",
            {**_HALVES, "size": {"longest_edge": 48}, "max_image_size": {"longest_edge": 24}},
        ),
        "<image>",
    ),
    "idefics 3": (
        "Idefics3ForConditionalGeneration",
        {
            "text_config": {**_TEXT, "model_type": "llama"}, "vision_config": _TOWER, "scale_factor": 3,
            "image_token_id": IMAGE,
        },
        (
            "Idefics3ImageProcessorPil",
            {
                **_HALVES, "size": {"longest_edge": 60}, "max_image_size": {"longest_edge": 24},
                "do_image_splitting": False,
            },
        ),
        "<image>",
    ),
    "qwen 2 vl": (
        "Qwen2VLForConditionalGeneration",
        {
            "text_config": {**_QWEN, "model_type": "qwen2_vl_text"},
            "vision_config": {
                "depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2,
                "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
            },
            "image_token_id": IMAGE, "video_token_id": 3, "tie_word_embeddings": True,
        },
        (
            "Qwen2VLImageProcessorPil",
            {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 256, "longest_edge": 2048}},
        ),
        "<image>",
    ),
    "qwen 2.5 vl": (
        "Qwen2_5_VLForConditionalGeneration",
        {
            "text_config": {**_QWEN, "model_type": "qwen2_5_vl_text"},
            "vision_config": {
                "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
                "out_hidden_size": 64, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
                "window_size": 16, "fullatt_block_indexes": [1],
            },
            "image_token_id": IMAGE, "video_token_id": 3, "tie_word_embeddings": False,
        },
        (
            "Qwen2VLImageProcessorPil",
            {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 256, "longest_edge": 2048}},
        ),
        "<image>",
    ),
}  # fmt: skip


def checkpoint(name: str, folder: Path) -> Any:
    """Return a model of `transformers`, saved in `folder`, in which every parameter affects the logits."""
    architecture, numbers, (processor, settings), mark = MODELS[name]
    cls = getattr(transformers, architecture)
    torch.manual_seed(0)
    model = cls(cls.config_class(**numbers)).float().eval()
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            if "position_embedding" in parameter or "class_embedding" in parameter:
                p.normal_(0, 0.5)
            elif p.ndim > 1:
                rows = "mm_input_projection_weight" in parameter
                p.normal_(0, 1.5 * (p.shape[0] if rows else p[0].numel()) ** -0.5)
            else:
                p.normal_(1.0 if parameter.endswith("weight") else 0.0, 0.3)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    byte_level(VOCABULARY, SPECIAL).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("MARK", mark))
    kind = processor.removesuffix("Pil")
    (folder / "preprocessor_config.json").write_text(json.dumps({**settings, "image_processor_type": kind}))
    return model


def processed(name: str, images: list[Any]) -> dict[str, Any]:
    """Return what the image processor of `transformers` gives for images, as torch tensors."""
    import importlib

    _, _, (kind, settings), _ = MODELS[name]
    part = {"Siglip": "siglip", "Llava": "llava", "Gemma3": "gemma3", "SmolVLM": "smolvlm"}
    part |= {"Idefics3": "idefics3", "Qwen2VL": "qwen2_vl", "Pixtral": "pixtral"}
    package = part[kind.removesuffix("ImageProcessorPil")]
    module = importlib.import_module(f"transformers.models.{package}.image_processing_pil_{package}")
    made = getattr(module, kind)(**settings)
    given = [images] if kind.startswith(("SmolVLM", "Idefics3")) else images
    return dict(made(given, return_tensors="pt"))


def logits(name: str, model: Any, tokens: list[int], prompt: int, images: list[Any]) -> Any:
    """Return the logits [tokens, vocabulary] that `transformers` gives for a sequence with images, of which
    the first `prompt` tokens are the prompt.
    """
    ids = torch.tensor([tokens])
    with torch.no_grad():
        if not images:
            return model(ids).logits[0].numpy()
        more = processed(name, images)
        for unread in ("num_crops", "rows", "cols"):
            more.pop(unread, None)
        kinds = (ids == IMAGE).int()
        if name.startswith("gemma"):
            more["token_type_ids"] = kinds
        elif name == "paligemma":
            more["token_type_ids"] = (torch.arange(len(tokens))[None] >= prompt).int()
        elif name.startswith("qwen"):
            more["mm_token_type_ids"] = kinds
            model.model.rope_deltas = None
        return model(input_ids=ids, **more).logits[0].numpy()


def reader_of(folder: Path) -> ImageReader:
    """Return the reader of images of a checkpoint that `checkpoint` saved."""
    found = open_checkpoint(folder)
    return ImageReader.from_folder(folder, found.config, tokenizer_of(found), MOST, VOCABULARY)


def prompt_of(reader: ImageReader, images: list[Any]) -> tuple[list[int], Any]:
    """Return the tokens of a text with images, and where they are."""
    marks = " three ".join([reader.mark] * len(images))
    return reader.prompt(f"one two {marks} four five six seven", images)


def greedy(runner: Any, tokens: list[int], images: Any, count: int) -> tuple[list[int], Any]:
    """Return `count` greedy tokens of a `LibraryRunner` after a prompt, and the logits [count, vocabulary]
    that chose them. The prompt is computed in chunks.
    """
    seen, pages, start = SeenRows(runner.sight), np.arange(-(-runner.context // PAGE), dtype=np.int32), 0
    runner.sight.shift(0, 0 if images is None else images.offset)
    found: list[Any] = []
    while start < len(tokens):
        end = min(start + runner.chunk, len(tokens))
        end = end if images is None else images.cut(start, end)
        given = None if images is None else seen.given(images, start, end)
        found = [runner.prefill(np.array(tokens[start:end], np.int32), start, pages, 0, given)]
        start = end
    chosen: list[int] = []
    while len(chosen) < count:
        chosen.append(int(found[-1].argmax()))
        if len(chosen) < count:
            token, length = np.array(chosen[-1:], np.int32), np.array([start], np.int32)
            found.append(runner.decode(token, length, pages[None], np.zeros(1, np.int32))[0])
            start += 1
    return chosen, np.stack(found)


def picture(width: int, height: int, seed: int = 0) -> Any:
    """Return an image with smooth colors."""
    generator = np.random.default_rng(seed)
    small = pillow.fromarray(generator.integers(0, 256, (4, 4, 3), np.uint8))
    return small.resize((width, height), 3)


PICTURES = [picture(30, 20), picture(64, 30, 1), picture(20, 41, 2)]
