"""Whole models of the zoo, with fixed and with dynamic sizes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.zoo.models import MODELS, fast_without_related  # noqa: E402

from .checks import check, operators  # noqa: E402


@pytest.mark.parametrize("name", ["gpt2", "t5-encoder", "resnet50"])
def test_fixed_sizes(name: str) -> None:
    model = MODELS[name]
    check(model.torch_model("tiny"), *model.inputs("tiny", batch=2, seq=12).values())


@pytest.mark.parametrize("name", fast_without_related())
def test_dynamic_sizes(name: str) -> None:
    """Models accept all batch sizes and lengths. The example has batch 1, which torch would treat as a
    constant.
    """
    model = MODELS[name]
    others = [tuple(model.inputs("tiny", batch=b, seq=s, seed=b).values()) for b, s in ((1, 2), (3, 21))]
    check(
        model.torch_model("tiny"),
        *model.inputs("tiny", batch=1, seq=9).values(),
        dims=model.dims,
        others=others,
    )


def test_bert_keeps_composites() -> None:
    model = MODELS["bert"]
    names = operators(check(model.torch_model("tiny"), *model.inputs("tiny", batch=2).values()))
    assert names.count("graph.attention") == 2
    assert names.count("graph.layer_norm") == 5
    assert names.count("graph.gelu") == 2
    assert names.count("graph.matmul") == 12


def test_left_padded_rows_are_zero_not_nan() -> None:
    """Rows of a causal model that attend to nothing, because of padding on the left, are zero and not NaN."""
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        use_cache=False,
    )

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = LlamaModel(config)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = torch.randint(0, 64, (2, 6))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    dims = {"input_ids": {0: "batch", 1: "seq<=64"}, "attention_mask": {0: "batch", 1: "seq"}}
    check(Masked(), ids, mask, dims=dims, others=[(ids[:, :3], mask[:, :3])])
