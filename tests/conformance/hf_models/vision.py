"""Models of images and videos: classification, detection, segmentation, depth."""

from __future__ import annotations

from typing import Any

from .base import REAL, Input, Widths, add, image_input, normal, picture


def _stages(w: Widths, count: int = 4) -> dict[str, Any]:
    return {"hidden_sizes": list(w.stages[:count]), "depths": [1, 1, 2, 1][:count]}


def _pyramid(w: Widths) -> dict[str, Any]:
    """Settings of transformers with stages whose heads have the same size in every stage."""
    heads = [size // w.stages[0] for size in w.stages]
    return {"hidden_sizes": list(w.stages), "depths": [1, 1, 1, 1], "num_attention_heads": heads}


def _swin(w: Widths) -> dict[str, Any]:
    real = w is REAL
    return {
        "image_size": w.image if real else 64,
        "patch_size": 4,
        "embed_dim": 96 if real else 16,
        "depths": [2, 2, 2],
        "num_heads": [3, 6, 12] if real else [1, 2, 4],
        "window_size": 7 if real else 4,
    }


def _backbone(w: Widths) -> dict[str, Any]:
    """A small ResNet as the backbone of a detector."""
    import transformers

    resnet = transformers.ResNetConfig(
        embedding_size=w.stages[0],
        hidden_sizes=list(w.stages),
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage4"],
    )
    return {
        "backbone_config": resnet,
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "backbone": None,
    }


def _detr(w: Widths) -> dict[str, Any]:
    return {
        k: v for k, v in w.seq2seq(num_queries=10).items() if k not in ("vocab_size", "use_cache")
    } | _backbone(w)


def _several(w: Widths) -> dict[str, Any]:
    """A small ResNet that gives a detector the results of several stages."""
    import transformers

    made = _backbone(w)
    made["backbone_config"] = transformers.ResNetConfig(
        embedding_size=w.stages[0], hidden_sizes=list(w.stages), depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    return made


def _video(w: Widths) -> dict[str, Input]:
    return {"pixel_values": normal("batch", 4, 3, w.image, w.image)}


add(
    "vision",
    image_input,
    {
        "beit": ("BeitModel", lambda w: w.vision(use_relative_position_bias=True)),
        "bit": ("BitModel", lambda w: _stages(w) | {"embedding_size": 16, "num_groups": 8}, picture(64)),
        "conditional_detr": ("ConditionalDetrModel", _detr, picture(64)),
        "convnext": ("ConvNextModel", _stages, picture(64)),
        "convnextv2": ("ConvNextV2Model", _stages, picture(64)),
        "cvt": (
            "CvtModel",
            lambda w: (
                {"embed_dim": [16, 32, 64], "num_heads": [1, 2, 4], "depth": [1, 2, 3]}
                if w is not REAL
                else {"depth": [1, 2, 3]}
            ),
            picture(64),
        ),
        "deformable_detr": (
            "DeformableDetrModel",
            lambda w: (
                _detr(w)
                | _several(w)
                | {"num_feature_levels": 3, "encoder_n_points": 2, "decoder_n_points": 2}
            ),
            picture(64),
        ),
        "deit": ("DeiTModel", lambda w: w.vision()),
        "depth_anything": (
            "DepthAnythingForDepthEstimation",
            lambda w: {
                "backbone_config": w.vision(
                    model_type="dinov2",
                    out_indices=[1, 2],
                    reshape_hidden_states=False,
                    patch_size=8,
                    image_size=64,
                ),
                "patch_size": 8,
                "reassemble_hidden_size": w.hidden,
                "reassemble_factors": [4, 2],
                "neck_hidden_sizes": [16, 16],
                "fusion_hidden_size": 16,
                "head_hidden_size": 8,
            },
            picture(64),
        ),
        "detr": ("DetrModel", _detr, picture(64)),
        "dinov2": ("Dinov2Model", lambda w: w.vision()),
        "dinov3": ("DINOv3ViTModel", lambda w: w.vision(num_register_tokens=2)),
        "dpt": (
            "DPTForDepthEstimation",
            lambda w: w.vision(
                num_hidden_layers=4,
                backbone_out_indices=[0, 1, 2, 3],
                neck_hidden_sizes=[16, 16, 32, 32],
                fusion_hidden_size=16,
                is_hybrid=False,
            ),
        ),
        "efficientnet": (
            "EfficientNetModel",
            lambda w: (
                {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280}
                if w is REAL
                else {"width_coefficient": 0.25, "depth_coefficient": 0.4, "hidden_dim": 320}
            ),
            picture(64),
        ),
        "focalnet": (
            "FocalNetModel",
            lambda w: {"image_size": max(64, w.image), "embed_dim": w.stages[0], "depths": [1, 1, 1]},
            picture(64),
        ),
        "glpn": (
            "GLPNModel",
            lambda w: _pyramid(w),
            picture(64),
        ),
        "hiera": (
            "HieraModel",
            lambda w: {
                "image_size": [w.image * 2 if w is not REAL else 224] * 2,
                "embed_dim": 96 if w is REAL else 8,
                "depths": [1, 1, 2, 1],
            },
            picture(64),
        ),
        "ijepa": ("IJepaModel", lambda w: w.vision()),
        "levit": (
            "LevitModel",
            lambda w: (
                {}
                if w is REAL
                else {
                    "image_size": 64,
                    "hidden_sizes": [32, 48, 64],
                    "num_attention_heads": [2, 3, 4],
                    "key_dim": [8, 8, 8],
                    "depths": [1, 1, 1],
                    "down_ops": [["Subsample", 8, 4, 4, 2, 2], ["Subsample", 8, 6, 4, 2, 2]],
                }
            ),
            picture(64),
        ),
        "mask2former": (
            "Mask2FormerModel",
            lambda w: {
                "backbone_config": {
                    "model_type": "swin",
                    **_swin(w),
                    "depths": [1, 1, 1, 1],
                    "num_heads": [1, 2, 4, 8],
                    "out_features": ["stage1", "stage2", "stage3", "stage4"],
                },
                "hidden_dim": w.hidden,
                "feature_size": w.hidden,
                "mask_feature_size": w.hidden,
                "num_attention_heads": w.heads,
                "encoder_layers": 1,
                "decoder_layers": 2,
                "num_queries": 8,
                "encoder_feedforward_dim": w.inner,
                "dim_feedforward": w.inner,
            },
            picture(64),
        ),
        "maskformer": (
            "MaskFormerModel",
            lambda w: {
                "backbone_config": {
                    "model_type": "swin",
                    **_swin(w),
                    "depths": [1, 1, 1, 1],
                    "num_heads": [1, 2, 4, 8],
                    "out_features": ["stage1", "stage2", "stage3", "stage4"],
                },
                "decoder_config": {"model_type": "detr", **_detr(w)},
                "fpn_feature_size": w.hidden,
                "mask_feature_size": w.hidden,
            },
            picture(64),
        ),
        "mobilenet_v1": (
            "MobileNetV1Model",
            lambda w: {} if w is REAL else {"depth_multiplier": 0.25},
            picture(64),
        ),
        "mobilenet_v2": (
            "MobileNetV2Model",
            lambda w: {} if w is REAL else {"depth_multiplier": 0.25},
            picture(64),
        ),
        "mobilevit": (
            "MobileViTModel",
            lambda w: (
                {}
                if w is REAL
                else {
                    "hidden_sizes": [16, 24, 32],
                    "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
                    "image_size": 64,
                }
            ),
            picture(64),
        ),
        "mobilevitv2": (
            "MobileViTV2Model",
            lambda w: {} if w is REAL else {"width_multiplier": 0.25, "image_size": 64},
            picture(64),
        ),
        "poolformer": ("PoolFormerModel", _stages, picture(64)),
        "pvt": (
            "PvtModel",
            lambda w: {"image_size": max(64, w.image), **_pyramid(w)},
            picture(64),
        ),
        "pvt_v2": (
            "PvtV2Model",
            lambda w: _pyramid(w),
            picture(64),
        ),
        "regnet": (
            "RegNetModel",
            lambda w: _stages(w) | {"embedding_size": 16, "groups_width": 16},
            picture(64),
        ),
        "resnet": ("ResNetModel", lambda w: _stages(w) | {"embedding_size": 16}, picture(64)),
        "rt_detr": (
            "RTDetrModel",
            lambda w: {
                "backbone_config": {
                    "model_type": "rt_detr_resnet",
                    "embedding_size": w.stages[0],
                    "hidden_sizes": list(w.stages),
                    "depths": [1, 1, 1, 1],
                    "layer_type": "basic",
                    "out_features": ["stage2", "stage3", "stage4"],
                },
                "encoder_hidden_dim": 32,
                "encoder_in_channels": list(w.stages[1:]),
                "d_model": 32,
                "num_queries": 10,
                "encoder_ffn_dim": 64,
                "decoder_ffn_dim": 64,
                "decoder_layers": 2,
                "encoder_attention_heads": 4,
                "decoder_attention_heads": 4,
                "decoder_in_channels": [32, 32, 32],
                "num_denoising": 0,
                "eval_size": None,
            },
            picture(64),
        ),
        "sam": (
            "SamVisionModel",
            lambda w: {
                "hidden_size": w.hidden,
                "num_hidden_layers": w.layers,
                "num_attention_heads": w.heads,
                "mlp_dim": w.inner,
                "image_size": max(64, w.image),
                "patch_size": 16,
                "window_size": 3,
                "global_attn_indexes": [1],
                "output_channels": 32,
            },
            picture(64),
        ),
        "segformer": (
            "SegformerForSemanticSegmentation",
            lambda w: _pyramid(w) | {"decoder_hidden_size": w.stages[-1]},
            picture(64),
        ),
        "superpoint": ("SuperPointForKeypointDetection", lambda w: {}, picture(64)),
        "swiftformer": (
            "SwiftFormerModel",
            lambda w: {"embed_dims": list(w.stages), "depths": [1, 1, 1, 1]},
            picture(64),
        ),
        "swin": ("SwinModel", _swin, picture(64)),
        "swin2sr": (
            "Swin2SRModel",
            lambda w: {
                "image_size": 32,
                "embed_dim": 24,
                "depths": [2, 2],
                "num_heads": [2, 2],
                "window_size": 4,
                "upscale": 2,
            },
        ),
        "swinv2": ("Swinv2Model", _swin, picture(64)),
        "timesformer": ("TimesformerModel", lambda w: w.vision(num_frames=4), _video),
        "upernet": (
            "UperNetForSemanticSegmentation",
            lambda w: {
                "backbone_config": {
                    "model_type": "convnext",
                    **_stages(w),
                    "out_features": ["stage1", "stage2", "stage3", "stage4"],
                },
                "hidden_size": w.stages[-1],
                "use_auxiliary_head": True,
                "auxiliary_in_channels": w.stages[2],
                "auxiliary_channels": 16,
                "num_labels": 5,
            },
            picture(64),
        ),
        "videomae": ("VideoMAEModel", lambda w: w.vision(num_frames=4), _video),
        "vit": ("ViTModel", lambda w: w.vision()),
        "vit_msn": ("ViTMSNModel", lambda w: w.vision()),
        "vitdet": (
            "VitDetModel",
            lambda w: w.transformer(
                image_size=w.image,
                patch_size=w.patch,
                pretrain_image_size=w.image,
                window_block_indices=[0],
                window_size=2,
                use_relative_position_embeddings=True,
            ),
        ),
        "vivit": (
            "VivitModel",
            lambda w: w.transformer(image_size=w.image, num_frames=4, tubelet_size=[2, w.patch, w.patch]),
            _video,
        ),
        "yolos": ("YolosModel", lambda w: w.vision(image_size=[w.image, w.image], num_detection_tokens=5)),
    },
)
