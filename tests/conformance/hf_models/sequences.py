"""State-space and linear-attention models, their hybrids with attention, and models of time series."""

from __future__ import annotations

from typing import Any

from .base import Widths, add, normal, text_input


def _mamba2(w: Widths) -> dict[str, Any]:
    """Settings of Mamba 2, whose inner width is twice `hidden`."""
    return {
        "mamba_n_heads": w.heads,
        "mamba_d_head": 2 * w.hidden // w.heads,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 8,
    }


CHUNKED = {"least": {"sequence": 9}}
"""These models cut sequences into chunks of 8 and take another branch for a sequence that fits into one
chunk.
"""

add(
    "state space",
    text_input,
    {
        "bamba": (
            "BambaModel",
            lambda w: w.decoder(attn_layer_indices=[1]) | _mamba2(w),
            text_input,
            CHUNKED,
        ),
        "falcon_h1": (
            "FalconH1Model",
            lambda w: w.decoder(head_dim=w.hidden // w.heads, mamba_d_ssm=2 * w.hidden) | _mamba2(w),
            text_input,
            CHUNKED,
        ),
        "falcon_mamba": (
            "FalconMambaModel",
            lambda w: {
                "hidden_size": w.hidden,
                "num_hidden_layers": w.layers,
                "vocab_size": w.vocabulary,
                "use_cache": False,
            },
        ),
        "granitemoehybrid": (
            "GraniteMoeHybridModel",
            lambda w: (
                w.decoder(
                    layer_types=["mamba", "attention"],
                    num_local_experts=4,
                    num_experts_per_tok=2,
                    shared_intermediate_size=w.inner,
                )
                | _mamba2(w)
            ),
            text_input,
            CHUNKED,
        ),
        "jamba": (
            "JambaModel",
            lambda w: w.decoder(
                attn_layer_period=2,
                attn_layer_offset=1,
                expert_layer_period=2,
                expert_layer_offset=1,
                num_experts=4,
                num_experts_per_tok=2,
                use_mamba_kernels=False,
            ),
        ),
        "lfm2": ("Lfm2Model", lambda w: w.decoder(layer_types=["conv", "full_attention"])),
        "mamba": (
            "MambaModel",
            lambda w: {
                "hidden_size": w.hidden,
                "num_hidden_layers": w.layers,
                "vocab_size": w.vocabulary,
                "use_cache": False,
            },
        ),
        "mamba2": (
            "Mamba2Model",
            lambda w: {
                "hidden_size": w.hidden,
                "num_hidden_layers": w.layers,
                "vocab_size": w.vocabulary,
                "use_cache": False,
                "num_heads": w.heads,
                "head_dim": 2 * w.hidden // w.heads,
                "state_size": 16,
                "n_groups": 1,
                "chunk_size": 8,
            },
            text_input,
            CHUNKED,
        ),
        "nemotron_h": (
            "NemotronHModel",
            lambda w: w.decoder(
                layers_block_type=["mamba", "attention"],
                head_dim=w.hidden // w.heads,
                mamba_num_heads=w.heads,
                mamba_head_dim=2 * w.hidden // w.heads,
                ssm_state_size=16,
                n_groups=1,
                chunk_size=8,
                use_mamba_kernels=False,
            ),
            text_input,
            CHUNKED,
        ),
        "qwen3_next": (
            "Qwen3NextModel",
            lambda w: w.decoder(
                layer_types=["linear_attention", "full_attention"],
                head_dim=w.hidden // w.heads,
                linear_num_key_heads=2,
                linear_num_value_heads=4,
                linear_key_head_dim=8,
                linear_value_head_dim=8,
                num_experts=4,
                num_experts_per_tok=2,
                moe_intermediate_size=w.inner // 2,
                shared_expert_intermediate_size=w.inner,
            ),
        ),
        "recurrent_gemma": (
            "RecurrentGemmaModel",
            lambda w: w.decoder(
                lru_width=w.hidden,
                attention_window_size=8,
                block_types=["recurrent", "attention"],
                head_dim=w.hidden // w.heads,
            ),
        ),
        "rwkv": (
            "RwkvModel",
            lambda w: {
                "hidden_size": w.hidden,
                "attention_hidden_size": w.hidden,
                "num_hidden_layers": w.layers,
                "intermediate_size": w.inner,
                "vocab_size": w.vocabulary,
                "use_cache": False,
            },
        ),
        "xlstm": (
            "xLSTMModel",
            lambda w: {
                "hidden_size": w.hidden,
                "num_hidden_layers": w.layers,
                "num_blocks": w.layers,
                "num_heads": w.heads,
                "vocab_size": w.vocabulary,
                "use_cache": False,
                "chunk_size": 8,
            },
            text_input,
            CHUNKED,
        ),
        "zamba": (
            "ZambaModel",
            lambda w: (
                w.decoder(
                    num_hidden_layers=3,
                    layers_block_type=["mamba", "hybrid", "hybrid"],
                    use_mamba_kernels=False,
                    attention_hidden_size=2 * w.hidden,
                    attention_head_dim=2 * w.hidden // w.heads,
                    n_mamba_heads=2,
                    mamba_dt_rank=4,
                )
                | {"num_key_value_heads": w.heads}
            ),
        ),
        "zamba2": (
            "Zamba2Model",
            lambda w: (
                w.decoder(
                    layers_block_type=["mamba", "hybrid"],
                    n_mamba_heads=w.heads,
                    mamba_headdim=2 * w.hidden // w.heads,
                    mamba_ngroups=1,
                    mamba_d_state=16,
                    chunk_size=8,
                    attention_hidden_size=2 * w.hidden,
                    attention_head_dim=2 * w.hidden // w.heads,
                    use_mem_eff_path=False,
                    hybrid_layer_ids=[1],
                    num_mem_blocks=1,
                )
                | {"num_key_value_heads": w.heads}
            ),
            text_input,
            CHUNKED,
        ),
    },
)


def _series(w: Widths) -> dict[str, Any]:
    return {"past_values": normal("batch", 32, 3)}


add(
    "time series",
    _series,
    {
        "patchtsmixer": (
            "PatchTSMixerModel",
            lambda w: {
                "context_length": 32,
                "patch_length": 8,
                "patch_stride": 8,
                "num_input_channels": 3,
                "d_model": w.hidden,
                "num_layers": w.layers,
            },
        ),
        "patchtst": (
            "PatchTSTModel",
            lambda w: {
                "context_length": 32,
                "patch_length": 8,
                "patch_stride": 8,
                "num_input_channels": 3,
                "d_model": w.hidden,
                "num_hidden_layers": w.layers,
                "num_attention_heads": w.heads,
                "ffn_dim": w.inner,
            },
        ),
    },
)
