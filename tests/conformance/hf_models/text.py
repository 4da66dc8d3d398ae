"""Language models: encoders, decoders, mixtures of experts, encoders with decoders."""

from __future__ import annotations

from typing import Any

from .base import Input, Widths, add, ids, ones, text_input, two_texts


def masked(w: Widths) -> dict[str, Input]:
    """Inputs with an attention mask, for models that torch cannot trace without one."""
    return {**two_texts(w), "attention_mask": ones("batch", "sequence")}


add(
    "text encoder",
    text_input,
    {
        "albert": ("AlbertModel", lambda w: w.text(embedding_size=32)),
        "bert": ("BertModel", lambda w: w.text()),
        "big_bird": ("BigBirdModel", lambda w: w.text(attention_type="original_full")),
        "canine": ("CanineModel", lambda w: w.transformer(local_transformer_stride=4, downsampling_rate=4)),
        "convbert": ("ConvBertModel", lambda w: w.text(embedding_size=32)),
        "deberta": ("DebertaModel", lambda w: w.text(relative_attention=True, pos_att_type=["p2c", "c2p"])),
        "deberta_v2": (
            "DebertaV2Model",
            lambda w: w.text(relative_attention=True, pos_att_type=["p2c", "c2p"]),
        ),
        "distilbert": (
            "DistilBertModel",
            lambda w: {
                "dim": w.hidden,
                "n_layers": w.layers,
                "n_heads": w.heads,
                "hidden_dim": w.inner,
                "vocab_size": w.vocabulary,
            },
        ),
        "electra": ("ElectraModel", lambda w: w.text(embedding_size=32)),
        "ernie": ("ErnieModel", lambda w: w.text()),
        "esm": (
            "EsmModel",
            lambda w: w.text(pad_token_id=1, mask_token_id=3, position_embedding_type="rotary"),
        ),
        "eurobert": (
            "EuroBertModel",
            lambda w: w.text(num_key_value_heads=w.key_value_heads, pad_token_id=0),
        ),
        "fnet": ("FNetModel", lambda w: {k: v for k, v in w.text().items() if k != "num_attention_heads"}),
        "funnel": (
            "FunnelModel",
            lambda w: {
                "d_model": w.hidden,
                "n_head": w.heads,
                "d_head": w.hidden // w.heads,
                "d_inner": w.inner,
                "block_sizes": [1, 1, 1],
                "vocab_size": w.vocabulary,
            },
        ),
        "ibert": ("IBertModel", lambda w: w.text()),
        "layoutlm": (
            "LayoutLMModel",
            lambda w: w.text(),
            lambda w: {"input_ids": ids(), "bbox": ("boxes", ("batch", "sequence", 4))},
        ),
        "longformer": (
            "LongformerModel",
            lambda w: w.text(attention_window=4),
            lambda w: {"input_ids": ids("batch", 16)},
        ),
        "megatron_bert": ("MegatronBertModel", lambda w: w.text()),
        "mobilebert": (
            "MobileBertModel",
            lambda w: w.text(
                embedding_size=w.hidden // 4,
                intra_bottleneck_size=w.hidden // 4,
                true_hidden_size=w.hidden // 4,
            ),
            text_input,
            {"least": {"sequence": 3}},
        ),
        "modernbert": (
            "ModernBertModel",
            lambda w: w.text(
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                cls_token_id=1,
                sep_token_id=2,
                local_attention=8,
            ),
        ),
        "mpnet": ("MPNetModel", lambda w: w.text()),
        "nomic_bert": ("NomicBertModel", lambda w: w.text()),
        "nystromformer": (
            "NystromformerModel",
            lambda w: w.text(segment_means_seq_len=16, num_landmarks=4),
            lambda w: {"input_ids": ids("batch", 16)},
        ),
        "rembert": ("RemBertModel", lambda w: w.text(input_embedding_size=32)),
        "roberta": ("RobertaModel", lambda w: w.text()),
        "roformer": ("RoFormerModel", lambda w: w.text(embedding_size=w.hidden)),
        "squeezebert": ("SqueezeBertModel", lambda w: w.text(embedding_size=w.hidden)),
        "xlm": (
            "XLMModel",
            lambda w: {
                "emb_dim": w.hidden,
                "n_layers": w.layers,
                "n_heads": w.heads,
                "vocab_size": w.vocabulary,
            },
        ),
        "xlm_roberta": ("XLMRobertaModel", lambda w: w.text()),
        "xlnet": (
            "XLNetModel",
            lambda w: {
                "d_model": w.hidden,
                "n_layer": w.layers,
                "n_head": w.heads,
                "d_inner": w.inner,
                "vocab_size": w.vocabulary,
            },
        ),
        "yoso": ("YosoModel", lambda w: w.text(use_expectation=True)),
    },
)


def _gpt2(w: Widths) -> dict[str, Any]:
    return {
        "n_embd": w.hidden,
        "n_layer": w.layers,
        "n_head": w.heads,
        "vocab_size": w.vocabulary,
        "use_cache": False,
    }


add(
    "text decoder",
    text_input,
    {
        "biogpt": ("BioGptModel", lambda w: w.text(use_cache=False)),
        "bloom": (
            "BloomModel",
            lambda w: {
                "hidden_size": w.hidden,
                "n_layer": w.layers,
                "n_head": w.heads,
                "vocab_size": w.vocabulary,
                "use_cache": False,
            },
        ),
        "codegen": ("CodeGenModel", lambda w: _gpt2(w) | {"rotary_dim": 8}),
        "cohere": ("CohereModel", lambda w: w.decoder()),
        "cohere2": ("Cohere2Model", lambda w: w.decoder(sliding_window=8)),
        "ctrl": (
            "CTRLModel",
            lambda w: {
                "n_embd": w.hidden,
                "dff": w.inner,
                "n_layer": w.layers,
                "n_head": w.heads,
                "vocab_size": w.vocabulary,
                "use_cache": False,
            },
        ),
        "diffllama": ("DiffLlamaModel", lambda w: w.decoder()),
        "exaone4": ("Exaone4Model", lambda w: w.decoder(sliding_window=8)),
        "falcon": ("FalconModel", lambda w: w.text(use_cache=False)),
        "gemma": ("GemmaModel", lambda w: w.decoder(head_dim=w.hidden // w.heads)),
        "gemma2": ("Gemma2Model", lambda w: w.decoder(head_dim=w.hidden // w.heads, sliding_window=8)),
        "gemma3": ("Gemma3TextModel", lambda w: w.decoder(head_dim=w.hidden // w.heads, sliding_window=8)),
        "glm": ("GlmModel", lambda w: w.decoder(head_dim=w.hidden // w.heads)),
        "glm4": ("Glm4Model", lambda w: w.decoder(head_dim=w.hidden // w.heads)),
        "gpt2": ("GPT2Model", _gpt2),
        "gpt_bigcode": ("GPTBigCodeModel", _gpt2),
        "gpt_neo": (
            "GPTNeoModel",
            lambda w: {
                "hidden_size": w.hidden,
                "num_layers": w.layers,
                "num_heads": w.heads,
                "attention_types": [[["global", "local"], w.layers // 2]],
                "window_size": 8,
                "vocab_size": w.vocabulary,
                "use_cache": False,
            },
        ),
        "gpt_neox": ("GPTNeoXModel", lambda w: w.text(use_cache=False)),
        "gptj": ("GPTJModel", lambda w: _gpt2(w) | {"rotary_dim": 8}),
        "granite": ("GraniteModel", lambda w: w.decoder()),
        "helium": ("HeliumModel", lambda w: w.decoder(head_dim=w.hidden // w.heads)),
        "llama": ("LlamaModel", lambda w: w.decoder()),
        "mistral": ("MistralModel", lambda w: w.decoder(sliding_window=8)),
        "mpt": (
            "MptModel",
            lambda w: {
                "d_model": w.hidden,
                "n_heads": w.heads,
                "n_layers": w.layers,
                "vocab_size": w.vocabulary,
                "use_cache": False,
            },
        ),
        "nemotron": ("NemotronModel", lambda w: w.decoder()),
        "olmo": ("OlmoModel", lambda w: w.decoder()),
        "olmo2": ("Olmo2Model", lambda w: w.decoder()),
        "openai_gpt": ("OpenAIGPTModel", lambda w: {k: v for k, v in _gpt2(w).items() if k != "use_cache"}),
        "opt": (
            "OPTModel",
            lambda w: {
                "hidden_size": w.hidden,
                "num_hidden_layers": w.layers,
                "num_attention_heads": w.heads,
                "ffn_dim": w.inner,
                "word_embed_proj_dim": w.hidden,
                "vocab_size": w.vocabulary,
                "use_cache": False,
            },
        ),
        "persimmon": ("PersimmonModel", lambda w: w.text(use_cache=False, pad_token_id=0)),
        "phi": ("PhiModel", lambda w: w.decoder()),
        "phi3": ("Phi3Model", lambda w: w.decoder()),
        "qwen2": ("Qwen2Model", lambda w: w.decoder()),
        "qwen3": ("Qwen3Model", lambda w: w.decoder(head_dim=w.hidden // w.heads)),
        "smollm3": ("SmolLM3Model", lambda w: w.decoder()),
        "stablelm": ("StableLmModel", lambda w: w.decoder()),
        "starcoder2": ("Starcoder2Model", lambda w: w.decoder()),
        "xglm": (
            "XGLMModel",
            lambda w: {
                "d_model": w.hidden,
                "num_layers": w.layers,
                "attention_heads": w.heads,
                "ffn_dim": w.inner,
                "vocab_size": w.vocabulary,
                "use_cache": False,
            },
        ),
    },
)


def _latent(w: Widths) -> dict[str, Any]:
    """Settings of DeepSeek's latent attention and its experts."""
    return w.decoder(
        num_key_value_heads=w.heads, moe_intermediate_size=w.inner // 2, q_lora_rank=32, kv_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, n_routed_experts=8, num_experts_per_tok=2,
        n_shared_experts=1, n_group=2, topk_group=1, first_k_dense_replace=1,
    )  # fmt: skip


add(
    "mixture of experts",
    text_input,
    {
        "dbrx": (
            "DbrxModel",
            lambda w: {
                "d_model": w.hidden,
                "n_heads": w.heads,
                "n_layers": w.layers,
                "vocab_size": w.vocabulary,
                "use_cache": False,
                "attn_config": {"kv_n_heads": w.key_value_heads, "clip_qkv": 8, "rope_theta": 1e4},
                "ffn_config": {
                    "ffn_hidden_size": w.inner,
                    "moe_num_experts": 4,
                    "moe_top_k": 2,
                    "hidden_size": w.hidden,
                },
            },
        ),
        "deepseek_v2": ("DeepseekV2Model", lambda w: _latent(w) | {"topk_method": "greedy"}),
        "deepseek_v3": ("DeepseekV3Model", _latent),
        "glm4_moe": (
            "Glm4MoeModel",
            lambda w: w.decoder(
                moe_intermediate_size=w.inner // 2,
                n_routed_experts=8,
                num_experts_per_tok=2,
                first_k_dense_replace=1,
                head_dim=w.hidden // w.heads,
            ),
        ),
        "gpt_oss": (
            "GptOssModel",
            lambda w: w.decoder(
                head_dim=w.hidden // w.heads, num_local_experts=4, num_experts_per_tok=2, sliding_window=8
            ),
        ),
        "granitemoe": ("GraniteMoeModel", lambda w: w.decoder(num_local_experts=4, num_experts_per_tok=2)),
        "jetmoe": (
            "JetMoeModel",
            lambda w: w.decoder(kv_channels=w.hidden // w.heads, num_local_experts=4, num_experts_per_tok=2),
        ),
        "mixtral": ("MixtralModel", lambda w: w.decoder(num_local_experts=4)),
        "olmoe": ("OlmoeModel", lambda w: w.decoder(num_experts=8, num_experts_per_tok=2)),
        "phimoe": ("PhimoeModel", lambda w: w.decoder(num_local_experts=4)),
        "qwen2_moe": (
            "Qwen2MoeModel",
            lambda w: w.decoder(
                num_experts=8,
                num_experts_per_tok=2,
                moe_intermediate_size=w.inner // 2,
                shared_expert_intermediate_size=w.inner,
            ),
        ),
        "qwen3_moe": (
            "Qwen3MoeModel",
            lambda w: w.decoder(
                num_experts=8,
                num_experts_per_tok=2,
                moe_intermediate_size=w.inner // 2,
                head_dim=w.hidden // w.heads,
            ),
        ),
        "switch_transformers": (
            "SwitchTransformersModel",
            lambda w: w.t5(
                num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, expert_capacity=64
            ),
            masked,
        ),
    },
)

add(
    "sequence to sequence",
    two_texts,
    {
        "bart": ("BartModel", lambda w: w.seq2seq()),
        "bigbird_pegasus": ("BigBirdPegasusModel", lambda w: w.seq2seq(attention_type="original_full")),
        "blenderbot": ("BlenderbotModel", lambda w: w.seq2seq()),
        "led": (
            "LEDModel",
            lambda w: w.seq2seq(attention_window=4),
            lambda w: {"input_ids": ids("batch", 16), "decoder_input_ids": ids("batch", 8)},
        ),
        "longt5": (
            "LongT5Model",
            lambda w: w.t5(local_radius=3),
            masked,
            {"sizes": {"sequence": (12, 12, 20, 128)}},
        ),
        "m2m_100": ("M2M100Model", lambda w: w.seq2seq()),
        "marian": ("MarianModel", lambda w: w.seq2seq(pad_token_id=0, decoder_start_token_id=0)),
        "mbart": ("MBartModel", lambda w: w.seq2seq()),
        "pegasus": ("PegasusModel", lambda w: w.seq2seq()),
        "plbart": ("PLBartModel", lambda w: w.seq2seq()),
        "prophetnet": (
            "ProphetNetModel",
            lambda w: {
                "hidden_size": w.hidden,
                "num_encoder_layers": w.layers,
                "num_decoder_layers": w.layers,
                "num_encoder_attention_heads": w.heads,
                "num_decoder_attention_heads": w.heads,
                "encoder_ffn_dim": w.inner,
                "decoder_ffn_dim": w.inner,
                "vocab_size": w.vocabulary,
                "use_cache": False,
            },
        ),
        "t5": ("T5Model", lambda w: w.t5()),
        "umt5": ("UMT5Model", lambda w: w.t5()),
    },
)
