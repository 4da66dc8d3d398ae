"""The cost of a token agrees with the numbers of elements of the checkpoint's tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.llm.weights.models import folder_of, small_model
from tilewright.driver.frontend_registry import import_model
from tilewright.llm.cost import decode_work
from tilewright.llm.library import (
    LibraryOptions,
    cache_bytes,
    complete,
    functions_of,
    model_of,
    page_bytes,
    texts_of,
)
from tilewright.llm.models.gemma3n import Gemma3n
from tilewright.llm.runner import PAGE
from tilewright.llm.weights import open_checkpoint

OPTIONS = LibraryOptions(context=128, chunk=32, max_batch=4)


def work_of(
    tmp_path: Path, family: str, precision: str | None, **changes: Any
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the cost, and the number of elements of each of the checkpoint's matrices."""
    checkpoint = open_checkpoint(folder_of(small_model(family, **changes), tmp_path / family))
    model = model_of(checkpoint, OPTIONS.context)
    module = import_model(functions_of(model, OPTIONS, texts_of(model, checkpoint, OPTIONS)), None, {}, None)
    elements = {name: int(np.prod(t.shape)) for name, t in checkpoint.items() if len(t.shape) == 2}
    return decode_work(module, model.config, precision), elements


@pytest.mark.parametrize("precision", [None, "bf16"])
def test_products_are_counted_and_embeddings_not(tmp_path: Path, precision: str | None) -> None:
    work, elements = work_of(tmp_path, "llama", precision, tie_word_embeddings=False)
    count = sum(size for name, size in elements.items() if "embed_tokens" not in name)
    assert work["flops"] == pytest.approx(2 * count, rel=1e-3)
    assert work["weight_bytes"] == pytest.approx(count * (2 if precision else 4), rel=1e-3)


def test_tied_embeddings_are_the_head(tmp_path: Path) -> None:
    work, elements = work_of(tmp_path, "llama", None, tie_word_embeddings=True)
    assert not any("lm_head" in name for name in elements)
    assert work["flops"] == pytest.approx(2 * sum(elements.values()), rel=1e-3)


def test_a_token_meets_some_of_the_experts(tmp_path: Path) -> None:
    work, elements = work_of(tmp_path, "mixtral", None, tie_word_embeddings=False)
    experts = sum(size for name, size in elements.items() if ".experts." in name)
    others = sum(
        size for name, size in elements.items() if ".experts." not in name and "embed_tokens" not in name
    )
    assert experts > others / 2
    assert work["flops"] == pytest.approx(2 * (others + experts * 2 / 3), rel=1e-3)


def test_windows_end_what_is_read_of_the_cache() -> None:
    config = {
        "model_type": "gemma2",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_size": 128,
        "vocab_size": 100,
        "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    token = 2 * 2 * 32 * 2  # keys and values, heads, head size, bytes of a number
    assert cache_bytes(config, "bfloat16", 20) == 4 * 20 * token
    assert cache_bytes(config, "bfloat16", 50) == (2 * 50 + 2 * 32) * token


def test_layers_that_share_keys_and_values() -> None:
    """Layers that read keys and values of others keep none, but every layer reads some."""
    config = {
        "model_type": "gemma3n_text",
        "num_hidden_layers": 5,
        "num_key_value_heads": 2,
        "hidden_size": 128,
        "head_dim": 32,
        "sliding_window": 32,
        "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
        "num_kv_shared_layers": 2,
    }
    token = 2 * 2 * 32 * 2
    assert page_bytes(config, "bfloat16") == 3 * PAGE * token
    assert cache_bytes(config, "bfloat16", 50) == (2 * 50 + 3 * 32) * token
    settings = complete(config)
    assert [Gemma3n.holder(settings, k) for k in range(5)] == [0, 1, 2, 2, 0]
