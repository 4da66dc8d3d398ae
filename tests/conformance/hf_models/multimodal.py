"""Models that read images or sound together with text."""

from __future__ import annotations

from typing import Any

from .base import Input, Widths, add, ids, image_input, normal, ones


def _both(w: Widths) -> dict[str, Input]:
    return {"input_ids": ids(), "pixel_values": normal("batch", 3, w.image, w.image)}


def _towers(w: Widths) -> dict[str, Any]:
    return {"text_config": w.text(), "vision_config": w.vision(), "projection_dim": 32}


def _clip(w: Widths) -> dict[str, Any]:
    return {
        "text_config": w.text(eos_token_id=2, max_position_embeddings=256),
        "vision_config": w.vision(),
        "projection_dim": 32,
    }


def _with_image(w: Widths) -> dict[str, Input]:
    """A text in which the first tokens stand for the patches of the image."""
    return {
        "input_ids": (f"image {(w.image // w.patch) ** 2}", ("batch", "sequence")),
        "pixel_values": normal("batch", 3, w.image, w.image),
    }


LONGER = {"sequence": (24, 24, 31, 256)}


def _llava(w: Widths) -> dict[str, Any]:
    return {
        "vision_config": w.vision(model_type="clip_vision_model"),
        "text_config": w.decoder(model_type="llama"),
        "image_token_index": w.vocabulary - 1,
        "vision_feature_layer": -1,
    }


add(
    "multimodal",
    _both,
    {
        "align": (
            "AlignModel",
            lambda w: {
                "text_config": w.text(),
                "vision_config": {
                    "width_coefficient": 0.25,
                    "depth_coefficient": 0.4,
                    "hidden_dim": 320,
                    "image_size": 64,
                },
                "projection_dim": 80,
            },
        ),
        "altclip": (
            "AltCLIPModel",
            lambda w: {
                "text_config": w.text(project_dim=32),
                "vision_config": w.vision(),
                "projection_dim": 32,
            },
        ),
        "blip": (
            "BlipModel",
            lambda w: {
                "text_config": w.text(encoder_hidden_size=w.hidden),
                "vision_config": w.vision(),
                "projection_dim": 32,
            },
        ),
        "blip2": (
            "Blip2Model",
            lambda w: {
                "vision_config": w.vision(),
                "qformer_config": w.text(encoder_hidden_size=w.hidden, cross_attention_frequency=2),
                "text_config": {
                    "model_type": "opt",
                    "hidden_size": w.hidden,
                    "num_hidden_layers": w.layers,
                    "num_attention_heads": w.heads,
                    "ffn_dim": w.inner,
                    "word_embed_proj_dim": w.hidden,
                    "vocab_size": w.vocabulary,
                    "use_cache": False,
                },
                "num_query_tokens": 8,
                "image_token_index": w.vocabulary - 1,
            },
            lambda w: {
                "input_ids": ("image 8", ("batch", "sequence")),
                "pixel_values": normal("batch", 3, w.image, w.image),
            },
        ),
        "bridgetower": (
            "BridgeTowerModel",
            lambda w: {
                "hidden_size": w.hidden,
                "num_hidden_layers": w.layers,
                "num_attention_heads": w.heads,
                "text_config": w.text(),
                "vision_config": w.vision(),
            },
            lambda w: {**_both(w), "pixel_mask": ones("batch", w.image, w.image)},
        ),
        "chinese_clip": ("ChineseCLIPModel", _towers),
        "clap": (
            "ClapModel",
            lambda w: {
                "text_config": w.text(projection_dim=32),
                "audio_config": {
                    "spec_size": 128,
                    "patch_embeds_hidden_size": 16,
                    "depths": [1, 1, 1, 1],
                    "num_attention_heads": [1, 1, 2, 2],
                    "hidden_size": 128,
                    "window_size": 4,
                    "num_mel_bins": 32,
                    "enable_fusion": False,
                    "projection_dim": 32,
                },
                "projection_dim": 32,
            },
            lambda w: {"input_ids": ids(), "input_features": normal("batch", 1, 128, 32)},
        ),
        "clip": ("CLIPModel", _clip),
        "clipseg": ("CLIPSegModel", _clip),
        "flava": (
            "FlavaModel",
            lambda w: {
                "text_config": w.text(),
                "image_config": w.vision(),
                "multimodal_config": w.transformer(),
                "projection_dim": 32,
            },
        ),
        "git": ("GitModel", lambda w: w.text(vision_config=w.vision(), use_cache=False)),
        "groupvit": (
            "GroupViTModel",
            lambda w: {
                "text_config": w.text(eos_token_id=2),
                "vision_config": {
                    k: v
                    for k, v in w.vision(
                        depths=[1, 1], num_group_tokens=[4, 2], num_output_groups=[4, 2]
                    ).items()
                    if k != "num_hidden_layers"
                },
                "projection_dim": 32,
                "projection_intermediate_dim": 64,
            },
        ),
        "idefics3": (
            "Idefics3Model",
            lambda w: {
                "vision_config": w.vision(),
                "text_config": w.decoder(model_type="llama"),
                "scale_factor": 2,
                "image_token_id": w.vocabulary - 1,
            },
            lambda w: {
                "input_ids": (f"image {(w.image // w.patch) ** 2 // 4}", ("batch", "sequence")),
                "pixel_values": normal("batch", 1, 3, w.image, w.image),
            },
            {"sizes": {"sequence": (12, 12, 19, 128)}},
        ),
        "layoutlmv3": (
            "LayoutLMv3Model",
            lambda w: w.text(
                input_size=w.image,
                patch_size=w.patch,
                coordinate_size=w.hidden // 6,
                shape_size=w.hidden // 6 + (w.hidden - w.hidden // 6 * 6) // 2,
            ),
            lambda w: {**_both(w), "bbox": ("boxes", ("batch", "sequence", 4))},
        ),
        "llava": (
            "LlavaModel",
            lambda w: _llava(w) | {"vision_feature_select_strategy": "default"},
            _with_image,
            {"sizes": LONGER},
        ),
        "vipllava": (
            "VipLlavaModel",
            lambda w: (
                {k: v for k, v in _llava(w).items() if k != "vision_feature_layer"}
                | {"vision_feature_layers": [-1, -2]}
            ),
            _with_image,
            {"sizes": LONGER},
        ),
        "lxmert": (
            "LxmertModel",
            lambda w: {
                "hidden_size": w.hidden,
                "num_attention_heads": w.heads,
                "intermediate_size": w.inner,
                "l_layers": 1,
                "x_layers": 1,
                "r_layers": 1,
                "vocab_size": w.vocabulary,
                "visual_feat_dim": 32,
            },
            lambda w: {
                "input_ids": ids(),
                "visual_feats": normal("batch", 6, 32),
                "visual_pos": normal("batch", 6, 4),
            },
        ),
        "metaclip2": ("MetaClip2Model", _clip),
        "owlvit": (
            "OwlViTModel",
            _clip,
            lambda w: _both(w) | {"attention_mask": ("mask", ("batch", "sequence"))},
        ),
        "owlv2": (
            "Owlv2Model",
            _clip,
            lambda w: _both(w) | {"attention_mask": ("mask", ("batch", "sequence"))},
        ),
        "paligemma": (
            "PaliGemmaModel",
            lambda w: {
                "vision_config": w.vision(
                    model_type="siglip_vision_model", vision_use_head=False, projection_dim=w.hidden
                ),
                "text_config": w.decoder(model_type="gemma", head_dim=w.hidden // w.heads),
                "projection_dim": w.hidden,
                "hidden_size": w.hidden,
                "image_token_index": w.vocabulary - 1,
            },
            _with_image,
            {"sizes": LONGER},
        ),
        "pixtral": ("PixtralVisionModel", lambda w: w.vision(head_dim=w.hidden // w.heads), image_input),
        "siglip": (
            "SiglipModel",
            lambda w: {
                "text_config": w.text(projection_size=w.hidden, max_position_embeddings=128),
                "vision_config": w.vision(),
            },
        ),
        "vilt": (
            "ViltModel",
            lambda w: w.text(image_size=w.image, patch_size=w.patch),
            lambda w: {**_both(w), "pixel_mask": ones("batch", w.image, w.image)},
        ),
        "visual_bert": (
            "VisualBertModel",
            lambda w: w.text(visual_embedding_dim=32),
            lambda w: {
                "input_ids": ids(),
                "visual_embeds": normal("batch", 6, 32),
                "visual_attention_mask": ones("batch", 6),
                "visual_token_type_ids": ones("batch", 6),
                "attention_mask": ("mask", ("batch", "sequence")),
            },
        ),
    },
)
