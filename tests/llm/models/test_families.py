"""Every family gives the logits of `transformers` for small models with random weights, read from checkpoints
on disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.numpy import load_file  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.llm.cache import DenseCache, NoCache  # noqa: E402
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library  # noqa: E402
from tilewright.llm.load_weights import load_weights  # noqa: E402
from tilewright.llm.models import build  # noqa: E402

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 64}


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **settings}}


LLAMA3 = rope(
    "llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)
LONGROPE = {
    **rope(
        "longrope",
        long_factor=[1.0 + k for k in range(6)],
        short_factor=[1.0 + k / 4 for k in range(6)],
        partial_rotary_factor=0.75,
    ),
    "original_max_position_embeddings": 16,
}
MIXTURE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
GEMMA = {**GROUPED, "head_dim": 24, "query_pre_attn_scalar": 20, "sliding_window": 6}
SSM = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2}
FALCON = {
    **GROUPED,
    "max_position_embeddings": 128,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 6,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
    "lm_head_multiplier": 0.7,
    "embedding_multiplier": 1.3,
    "mlp_multipliers": [0.8, 1.2],
    "key_multiplier": 0.6,
    "attention_out_multiplier": 0.9,
    "attention_in_multiplier": 1.1,
    "ssm_multipliers": [0.5, 1.5, 0.7, 1.4, 0.9],
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.8,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {**GROUPED, "attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    "llama 3, tied": ("LlamaForCausalLM", {**GROUPED, **LLAMA3, "tie_word_embeddings": True}),
    "llama, linear": ("LlamaForCausalLM", {**GROUPED, **rope("linear", factor=3.0)}),
    "llama, dynamic": ("LlamaForCausalLM", {**GROUPED, **rope("dynamic", factor=3.0)}),
    "llama, yarn": (
        "LlamaForCausalLM",
        {**GROUPED, **rope("yarn", factor=4.0, original_max_position_embeddings=16)},
    ),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 6}),
    "qwen 2": (
        "Qwen2ForCausalLM",
        {**GROUPED, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen 3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 24}),
    "qwen 2 experts": ("Qwen2MoeForCausalLM", {**GROUPED, **MIXTURE, "shared_expert_intermediate_size": 48}),
    "qwen 3 experts": (
        "Qwen3MoeForCausalLM",
        {**GROUPED, **MIXTURE, "norm_topk_prob": True, "num_hidden_layers": 3, "decoder_sparse_step": 2},
    ),
    "mixtral": ("MixtralForCausalLM", {**GROUPED, "num_local_experts": 3}),
    "gemma 2": (
        "Gemma2ForCausalLM",
        {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma 3": (
        "Gemma3ForCausalLM",
        {
            **GEMMA,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "phi 3": ("Phi3ForCausalLM", {**GROUPED, "pad_token_id": 0}),
    "phi 4 mini": ("Phi3ForCausalLM", {**GROUPED, **LONGROPE, "pad_token_id": 0, "sliding_window": 9}),
    "gpt 2": (
        "GPT2LMHeadModel",
        {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "gpt neox": ("GPTNeoXForCausalLM", {**SMALL, "max_position_embeddings": 64}),
    "gpt neox, one after the other": (
        "GPTNeoXForCausalLM",
        {**SMALL, "max_position_embeddings": 64, "use_parallel_residual": False},
    ),
    "olmo 2": ("Olmo2ForCausalLM", GROUPED),
    "starcoder 2": ("Starcoder2ForCausalLM", {**GROUPED, "sliding_window": 7}),
    "mamba": ("MambaForCausalLM", {**SSM, "state_size": 8}),
    "mamba 2": (
        "Mamba2ForCausalLM",
        {**SSM, "state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 8},
    ),
    "falcon h1": ("FalconH1ForCausalLM", FALCON),
    "falcon h1, normalized": (
        "FalconH1ForCausalLM",
        {**FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": True},
    ),
}


def checkpoint(name: str, folder: Path) -> Any:
    """Return a model of `transformers`, saved in `folder`, in which every parameter affects the logits."""
    architecture, numbers = MODELS[name]
    cls = getattr(transformers, architecture)
    torch.manual_seed(0)
    model = cls(cls.config_class(**numbers)).float().eval()
    with torch.no_grad():
        for p in model.parameters():
            # Matrices keep the magnitude of their inputs; other parameters are drawn around 1.
            if p.ndim > 1:
                p.normal_(0, 1.5 * p.shape[-1] ** -0.5)
            else:
                p.normal_(1, 0.3)
    model.save_pretrained(folder)
    return model


def logits(model: Any, tokens: Any) -> Any:
    with torch.no_grad():
        return model(torch.from_numpy(tokens)).logits.numpy()


@pytest.fixture(scope="module", params=MODELS)
def pair(request: Any, tmp_path_factory: Any) -> tuple[Any, Any]:
    """A family's model here, and the one of `transformers`."""
    folder = tmp_path_factory.mktemp("model")
    theirs = checkpoint(request.param, folder)
    ours = build(folder)
    load_weights(ours, load_file(folder / "model.safetensors"))
    return ours, theirs


def tokens(batch: int, n: int) -> Any:
    return np.random.default_rng(n).integers(3, 96, (batch, n))


def close(found: Any, expected: Any) -> None:
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


def test_whole_sequence(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    x = tokens(2, 21)
    expected = logits(theirs, x)
    close(ours(x, NoCache(x)), expected)


def test_in_parts(pair: tuple[Any, Any]) -> None:
    """Chunks of a prompt and then single tokens give the logits of the whole text."""
    ours, theirs = pair
    x = tokens(2, 21)
    cache = DenseCache()
    parts = [x[:, a:b] for a, b in zip([0, 12, 18, 19, 20], [12, 18, 19, 20, 21], strict=True)]
    close(np.concatenate([ours(part, cache.before(part)) for part in parts], 1), logits(theirs, x))


QUICK = ("gpt neox", "mistral", "mixtral", "falcon h1")
"""One family for each mechanism, because compiling is slow."""


@pytest.mark.parametrize(
    "pair", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MODELS], indirect=True
)
def test_compiled(pair: tuple[Any, Any]) -> None:
    """Models compiled with a dynamic batch and length give the same logits."""
    ours, theirs = pair

    def function(tokens: Any) -> Any:
        return ours(tokens, NoCache(tokens))

    library = tw.compile(function, (tokens(2, 21),), dims={"tokens": {0: "batch<=3", 1: "seq<=40"}})
    for batch, n in ((2, 21), (1, 17), (3, 40)):
        x = tokens(batch, n)
        close(library(x), logits(theirs, x))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_library(name: str, tmp_path: Path) -> None:
    """A library gives the same logits for chunks of prompts, and then for one token of each of several
    sequences of different lengths, with pages and slots in any order.
    """
    theirs = checkpoint(name, tmp_path)
    x = tokens(3, 60).astype(np.int32)
    expected = logits(theirs, x.astype(np.int64))
    pages, slots, lengths = (
        np.array([[1], [3], [0]], np.int32),
        np.array([2, 0, 3], np.int32),
        np.zeros(3, np.int32),
    )
    options = LibraryOptions(
        context=64, chunk=32, max_batch=4, pages=4, cache_dtype="float32", precision=None
    )
    with compile_library(tmp_path, options) as library:
        runner = LibraryRunner(library)
        for row, chunks in enumerate(((20, 7, 1), (32, 8), (5, 5))):
            for n in chunks:
                start, end = lengths[row], lengths[row] + n
                found = runner.prefill(x[row, start:end], int(start), pages[row], int(slots[row]))
                close(found, expected[row, end - 1])
                lengths[row] = end
        for rows in ([0, 1, 2], [2, 0], [1], [0, 2, 1]):
            found = runner.decode(x[rows, lengths[rows]], lengths[rows], pages[rows], slots[rows])
            close(found, expected[rows, lengths[rows]])
            lengths[rows] += 1
