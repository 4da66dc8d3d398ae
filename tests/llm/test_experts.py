"""Mixtures of experts in model libraries: logits equal those of transformers, experts stay quantized, and a
row's result does not depend on the other rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library  # noqa: E402
from tilewright.llm.weights import Conversion, convert, open_checkpoint  # noqa: E402

every_isa = pytest.mark.every_isa

TOKENS = np.random.default_rng(0).integers(0, 100, 80).astype(np.int32)
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 64}
FAMILIES = {
    "mixtral": ("Mixtral", {**SMALL, "num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen 2": ("Qwen2Moe", {**SMALL, **EXPERTS, "shared_expert_intermediate_size": 64}),
    "qwen 3": ("Qwen3Moe", {**SMALL, **EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
}
PAGES = np.array([[2, 0], [1, 3], [5, 4]], np.int32)
SLOTS = np.arange(3, dtype=np.int32)


def saved(family: str, folder: Path, **others: int) -> Any:
    """Return a model of transformers, saved in `folder`."""
    name, numbers = FAMILIES[family]
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(
        getattr(transformers, f"{name}Config")(**{**numbers, **others})
    ).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    model.save_pretrained(folder)
    return model


def logits(model: Any, tokens: Any = TOKENS) -> Any:
    with torch.no_grad():
        return model(torch.tensor(tokens[None].astype(np.int64))).logits[0].numpy()


@pytest.mark.parametrize("family", ["mixtral", pytest.param("qwen 2", marks=every_isa), "qwen 3"])
def test_prefill_and_batched_decoding(family: str, tmp_path: Path) -> None:
    expected = logits(saved(family, tmp_path))
    options = LibraryOptions(context=128, chunk=64, max_batch=3, cache_dtype="float32", precision=None)
    with compile_library(tmp_path, options) as library:
        assert library.ir("graph").count("graph.grouped_matmul") >= 3
        runner = LibraryRunner(library)
        for slot, n in enumerate((40, 7, 64)):
            found = runner.prefill(TOKENS[:n], 0, PAGES[slot], slot)
            np.testing.assert_allclose(found, expected[n - 1], atol=1e-4)
        for step in range(5):
            lengths = np.array([40, 7, 64], np.int32) + step
            found = runner.decode(TOKENS[lengths], lengths, PAGES, SLOTS)
            np.testing.assert_allclose(found, expected[lengths], atol=1e-4)


@pytest.mark.parametrize("scheme", (pytest.param("int4_g32", marks=every_isa), "int8_g32", "int4_g32_asym"))
def test_experts_stay_quantized(scheme: str, tmp_path: Path) -> None:
    """Experts stay quantized, and logits are near those of transformers with the dequantized weights. All
    experts are chosen, because rounding would otherwise change the choice. The result of a sequence does not
    depend on the others.
    """
    model = saved("qwen 3", tmp_path / "source", num_experts=8, num_experts_per_tok=8)
    convert(tmp_path / "source", tmp_path / "converted", Conversion(scheme))
    checkpoint = open_checkpoint(tmp_path / "converted")
    weights = {n: torch.tensor(t.read()) for n, t in checkpoint.items()}
    experts = [n for n in weights if ".experts." in n]
    assert len(experts) == 3 * 8 and all(checkpoint[n].scheme is not None for n in experts)
    folder = tmp_path / "dequantized"
    model.save_pretrained(folder)
    from safetensors.torch import save_file

    save_file(
        {n: w.float().contiguous() for n, w in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    expected = logits(type(model).from_pretrained(folder).eval())
    with compile_library(checkpoint, LibraryOptions(context=128, chunk=64, max_batch=3)) as library:
        text = library.ir("graph")
        kind = "ui" if scheme.endswith("asym") else "i"
        assert f"8x64x64x{scheme[:4].replace('int', kind)}" in text
        assert "graph.grouped_matmul" not in text
        runner = LibraryRunner(library)
        for slot, n in enumerate((40, 7, 64)):
            found = runner.prefill(TOKENS[:n], 0, PAGES[slot], slot)
            assert np.abs(found - expected[n - 1]).max() < 0.1 * np.abs(expected).max()
        for step in range(3):
            lengths = np.array([40, 7, 64], np.int32) + step
            together = runner.decode(TOKENS[lengths], lengths, PAGES, SLOTS)
            assert np.abs(together - expected[lengths]).max() < 0.1 * np.abs(expected).max()
            for k in range(3):  # Decodes the same position again, alone.
                alone = runner.decode(
                    TOKENS[lengths[k : k + 1]], lengths[k : k + 1], PAGES[k : k + 1], SLOTS[k : k + 1]
                )
                np.testing.assert_array_equal(alone[0], together[k])
