"""Audio models: they read waveforms or spectrograms and give features, tokens or waveforms."""

from __future__ import annotations

from typing import Any

from .base import Input, Widths, add, ids, normal, wave


def _frames(w: Widths) -> dict[str, Input]:
    return {"input_features": normal("batch", "frames", 80), "decoder_input_ids": ids("batch", "target")}


def _whisper(w: Widths) -> dict[str, Input]:
    return {
        "input_features": normal("batch", 80, 2 * w.stages[0]),
        "decoder_input_ids": ids("batch", "target"),
    }


def _codec(w: Widths) -> dict[str, Input]:
    return {"input_values": normal("batch", 1, "samples")}


def _moonshine(w: Widths) -> dict[str, Any]:
    made = w.decoder(
        encoder_num_hidden_layers=w.layers,
        decoder_num_hidden_layers=w.layers,
        encoder_num_attention_heads=w.heads,
        decoder_num_attention_heads=w.heads,
        decoder_start_token_id=1,
    )
    return {
        k: v
        for k, v in made.items()
        if k not in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    }


add(
    "audio",
    wave,
    {
        "ast": (
            "ASTModel",
            lambda w: w.transformer(max_length=64, num_mel_bins=32),
            lambda w: {"input_values": normal("batch", 64, 32)},
        ),
        "dac": (
            "DacModel",
            lambda w: {
                "encoder_hidden_size": 8,
                "downsampling_ratios": [2, 4],
                "decoder_hidden_size": 32,
                "upsampling_ratios": [4, 2],
                "n_codebooks": 2,
                "codebook_size": 16,
                "codebook_dim": 4,
            },
            _codec,
        ),
        "data2vec_audio": (
            "Data2VecAudioModel",
            lambda w: w.speech(conv_pos_kernel_size=5, num_conv_pos_embeddings=2),
        ),
        "encodec": (
            "EncodecModel",
            lambda w: {
                "num_filters": 4,
                "upsampling_ratios": [4, 2],
                "hidden_size": 16,
                "codebook_size": 16,
                "codebook_dim": 16,
                "normalize": False,
                "num_lstm_layers": 1,
                "target_bandwidths": [24.0, 48.0],
                "sampling_rate": 24000,
            },
            _codec,
        ),
        "hubert": ("HubertModel", lambda w: w.speech()),
        "mimi": (
            "MimiModel",
            lambda w: {
                "num_filters": 4,
                "upsampling_ratios": [4, 2],
                "hidden_size": w.hidden,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "head_dim": w.hidden // 4,
                "intermediate_size": w.inner,
                "codebook_size": 16,
                "codebook_dim": 16,
                "vector_quantization_hidden_dimension": 16,
                "num_quantizers": 4,
                "upsample_groups": w.hidden,
                "use_cache": False,
            },
            _codec,
        ),
        "moonshine": (
            "MoonshineModel",
            _moonshine,
            lambda w: {
                "input_values": normal("batch", "samples"),
                "decoder_input_ids": ids("batch", "target"),
            },
            {"least": {"samples": 1280}},
        ),
        "sew": ("SEWModel", lambda w: w.speech(squeeze_factor=2)),
        "sew_d": ("SEWDModel", lambda w: w.speech(squeeze_factor=2)),
        "speech_to_text": (
            "Speech2TextModel",
            lambda w: w.seq2seq(input_feat_per_channel=80, num_conv_layers=2, conv_channels=w.hidden),
            _frames,
        ),
        "unispeech": ("UniSpeechModel", lambda w: w.speech()),
        "unispeech_sat": ("UniSpeechSatModel", lambda w: w.speech()),
        "univnet": (
            "UnivNetModel",
            lambda w: {
                "model_hidden_channels": 8,
                "num_mel_bins": 20,
                "resblock_stride_sizes": [4, 4, 2],
            },
            lambda w: {"input_features": normal("batch", 12, 20), "noise_sequence": normal("batch", 12, 64)},
        ),
        "vits": (
            "VitsModel",
            lambda w: {
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "ffn_dim": 64,
                "vocab_size": w.vocabulary,
                "noise_scale": 0.0,
                "noise_scale_duration": 0.0,
                "upsample_initial_channel": 32,
                "upsample_rates": [4, 4],
                "upsample_kernel_sizes": [8, 8],
                "flow_size": 32,
                "spectrogram_bins": 33,
            },
            lambda w: {"input_ids": ids()},
        ),
        "wav2vec2": ("Wav2Vec2Model", lambda w: w.speech()),
        "wav2vec2_bert": (
            "Wav2Vec2BertModel",
            lambda w: w.transformer(feature_projection_input_dim=40),
            lambda w: {"input_features": normal("batch", "frames", 40)},
        ),
        "wav2vec2_conformer": (
            "Wav2Vec2ConformerModel",
            lambda w: w.speech(position_embeddings_type="rotary"),
        ),
        "wavlm": ("WavLMModel", lambda w: w.speech()),
        "whisper": (
            "WhisperModel",
            lambda w: w.seq2seq(
                num_mel_bins=80,
                max_source_positions=w.stages[0],
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                decoder_start_token_id=1,
            ),
            _whisper,
        ),
    },
)
