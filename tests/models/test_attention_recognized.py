"""Attention in every form that exporters and people write becomes `graph.attention`: the right number of
operators, no matrix of scores in memory, and PyTorch's results.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch.nn.functional import scaled_dot_product_attention as sdpa

import tilewright as tw
from tilewright.dialects import graph
from tilewright.ir.symbolic import Dim

BATCH, HEADS, ROWS, KEYS, DEPTH = 2, 4, 24, 20, 16
WIDTH = HEADS * DEPTH


def check(library: Any, inputs: tuple[Any, ...], wanted: torch.Tensor, count: int) -> None:
    attentions = [op for op in library.origin.graph.walk() if isinstance(op, graph.Attention)]
    assert len(attentions) == count
    assert not any(isinstance(op, graph.Softmax) for op in library.origin.graph.walk())
    scores = {_size((*op.q.type.shape[:3], op.k.type.shape[2])) for op in attentions}
    buffers = [op for op in library.ir("loop").splitlines() if "host.alloc" in op]
    assert buffers and not scores & {_size(_shape(line)) for line in buffers}
    found = library(*inputs)
    found = found[0] if isinstance(found, tuple) else found
    torch.testing.assert_close(
        torch.as_tensor(found), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max())
    )


def _size(shape: tuple[Dim, ...]) -> Dim:
    total: Dim = 1
    for n in shape:
        total = total * n
    return total


def _shape(line: str) -> tuple[int, ...]:
    """Return the shape of the buffer in a line ``host.alloc {buffer = !tw.buffer<"f32", "1, 4",
    "global">}``.
    """
    return tuple(int(n) for n in line.split('"')[3].split(",") if n.strip())


# -- Written by hand -----------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    """Attention written as `form` of (q, k, v, keep, bias), after a product that cannot be fused with it."""

    def __init__(self, form: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.form = form
        self.projection = torch.nn.Linear(DEPTH, DEPTH)

    def forward(self, q: Any, k: Any, v: Any, keep: Any, bias: Any) -> Any:
        return self.form(*(self.projection(x) for x in (q, k, v)), keep, bias)


def softmax(scores: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores, -1)


def merged(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(BATCH * HEADS, *x.shape[2:])


def keys_first(q: Any, k: Any, v: Any, keep: Any, bias: Any) -> torch.Tensor:
    """Return attention with heads after the rows, in the layout (B, S, H, D)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) / 4 + bias)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def merged_heads(q: Any, k: Any, v: Any, keep: Any, bias: Any) -> torch.Tensor:
    """Return attention with a bias for each head joined with the batch, and then a mask over separate heads
    (DeBERTa, BLOOM).
    """
    scores = torch.baddbmm(
        merged(bias.expand(BATCH, -1, -1, -1)), merged(q), merged(k).transpose(1, 2), alpha=0.25
    )
    scores = scores.view(BATCH, HEADS, ROWS, KEYS).masked_fill(~keep, torch.finfo(torch.float32).min)
    return torch.bmm(merged(softmax(scores)), merged(v)).view(BATCH, HEADS, ROWS, DEPTH)


def low(keep: torch.Tensor) -> torch.Tensor:
    return torch.where(keep, 0.0, torch.finfo(torch.float32).min)


FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "scale after the product": lambda q, k, v, keep, bias: softmax(q @ k.mT * 0.25 + bias) @ v,
    "scale on q": lambda q, k, v, keep, bias: softmax((q * 0.25) @ k.mT + bias) @ v,
    "scale on both": lambda q, k, v, keep, bias: softmax((q * 0.5) @ (k.mT * 0.5) + bias) @ v,
    "scale after the mask": lambda q, k, v, keep, bias: softmax((q @ k.mT + bias) * 0.25) @ v,
    "no scale": lambda q, k, v, keep, bias: softmax(q @ k.mT + bias) @ v,
    "two masks": lambda q, k, v, keep, bias: softmax(q @ k.mT / 4 + bias + low(keep)) @ v,
    "mask subtracted": lambda q, k, v, keep, bias: softmax(q @ k.mT / 4 - 1e30 * (~keep).float()) @ v,
    "selected": lambda q, k, v, keep, bias: softmax(torch.where(keep, q @ k.mT / 4, -torch.inf)) @ v,
    "filled, then added": lambda q, k, v, keep, bias: (
        softmax((q @ k.mT / 4).masked_fill(~keep, -3e38) + bias) @ v
    ),
    "capped": lambda q, k, v, keep, bias: softmax(torch.tanh(q @ k.mT * 0.25 / 5) * 5 + low(keep)) @ v,
    "wider softmax": lambda q, k, v, keep, bias: softmax((q @ k.mT / 4).double()).float() @ v,
    "heads after rows": keys_first,
    "merged heads": merged_heads,
    "one key head": lambda q, k, v, keep, bias: softmax(q @ k[:, :1].mT / 4 + bias) @ v[:, :1],
    "one key head, repeated": lambda q, k, v, keep, bias: (
        softmax(q @ k[:, :1].expand_as(k).mT / 4 + bias) @ v[:, :1].expand_as(v)
    ),
    "repeated heads": lambda q, k, v, keep, bias: (
        softmax(q @ k[:, :2].repeat_interleave(2, 1).mT / 4 + bias) @ v[:, :2].repeat_interleave(2, 1)
    ),
    "operator": lambda q, k, v, keep, bias: sdpa(q, k, v, attn_mask=keep),
}


def arguments() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(BATCH, HEADS, n, DEPTH, generator=generator) for n in (ROWS, KEYS, KEYS))
    keep = torch.rand(BATCH, 1, ROWS, KEYS, generator=generator) < 0.7
    keep[..., 0] = True
    return q, k, v, keep, torch.randn(1, HEADS, ROWS, KEYS, generator=generator)


@pytest.mark.parametrize("form", FORMS)
def test_written_by_hand(form: str) -> None:
    model, inputs = Layer(FORMS[form]).eval(), arguments()
    with torch.no_grad():
        wanted = model(*inputs)
    library = tw.compile(model, inputs, cache=False)
    check(library, inputs, wanted, 1)
    (op,) = [op for op in library.origin.graph.walk() if isinstance(op, graph.Attention)]
    heads = {"one key head": 1, "one key head, repeated": 1, "repeated heads": 2}.get(form, HEADS)
    assert op.k.type.shape == op.v.type.shape == (BATCH, heads, KEYS, DEPTH) or form == "merged heads"
    assert bool(op.softcap) == (form == "capped")


# -- Published architectures ---------------------------------------------------------------------------------


IDS = torch.randint(3, 100, (1, ROWS), generator=torch.Generator().manual_seed(1))
KEPT = (torch.arange(ROWS)[None] < ROWS - 5).long()
COMMON = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": HEADS, "intermediate_size": 32}
TEXT: dict[str, Any] = {**COMMON, "vocab_size": 101, "max_position_embeddings": 32}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": DEPTH}
SEQUENCES: dict[str, Any] = {"d_model": WIDTH, "vocab_size": 101}


def bart_like(**more: Any) -> dict[str, Any]:
    sides = {
        f"{side}_{key}": n
        for side in ("encoder", "decoder")
        for key, n in (("layers", 1), ("attention_heads", HEADS), ("ffn_dim", 32))
    }
    return {**SEQUENCES, **sides, **more}


class Called(torch.nn.Module):
    """A transformers model that takes positional inputs and returns its first result."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> Any:
        cache = {} if "pixel_values" in self.names else {"use_cache": False}
        return self.model(**dict(zip(self.names, inputs, strict=True)), **cache)[0]


T, M, D = "input_ids", "attention_mask", "decoder_input_ids"
IMAGE, SPEECH = torch.randn(1, 3, 32, 32), torch.randn(1, 80, 60)
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    "BERT": ("Bert", TEXT, {T: IDS, M: KEPT}, 1),
    "GPT-2": (
        "GPT2",
        {"n_embd": WIDTH, "n_layer": 1, "n_head": HEADS, "vocab_size": 101, "n_positions": 32},
        {T: IDS},
        1,
    ),
    "Llama": ("Llama", GROUPED, {T: IDS, M: KEPT}, 1),
    "Mistral": ("Mistral", {**GROUPED, "sliding_window": 7}, {T: IDS}, 1),
    "Gemma 2": ("Gemma2", {**GROUPED, "sliding_window": 7, "query_pre_attn_scalar": 20}, {T: IDS}, 1),
    "T5": (
        "T5",
        {**SEQUENCES, "d_kv": DEPTH, "d_ff": 32, "num_layers": 1, "num_heads": HEADS},
        {T: IDS, M: KEPT, D: IDS[:, :19]},
        3,
    ),
    "Whisper": (
        "Whisper",
        bart_like(
            max_source_positions=30,
            max_target_positions=32,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        ),
        {"input_features": SPEECH, D: IDS[:, :19]},
        3,
    ),
    "ViT": ("ViT", {**COMMON, "image_size": 32, "patch_size": 8}, {"pixel_values": IMAGE}, 1),
    "BLOOM": (
        "Bloom",
        {"hidden_size": WIDTH, "n_layer": 1, "n_head": HEADS, "vocab_size": 101},
        {T: IDS, M: KEPT},
        1,
    ),
    "MPT": (
        "Mpt",
        {"d_model": WIDTH, "n_layers": 1, "n_heads": HEADS, "vocab_size": 101, "max_seq_len": 32},
        {T: IDS, M: KEPT},
        1,
    ),
    "Falcon": (
        "Falcon",
        {**TEXT, "multi_query": True, "new_decoder_architecture": False, "alibi": False},
        {T: IDS},
        1,
    ),
    "DeBERTa": (
        "DebertaV2",
        {
            **TEXT,
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8,
            "share_att_key": True,
        },
        {T: IDS, M: KEPT},
        1,
    ),
    "XLNet": (
        "XLNet",
        {"d_model": WIDTH, "n_layer": 1, "n_head": HEADS, "d_inner": 32, "vocab_size": 101},
        {T: IDS, M: KEPT},
        1,
    ),
}


def published(name: str, implementation: str) -> tuple[Any, tuple[Any, ...], torch.Tensor, int]:
    prefix, settings, inputs, count = ARCHITECTURES[name]
    config = getattr(hf, f"{prefix}Config")(**settings)
    config._attn_implementation = implementation
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = getattr(hf, f"{prefix}Model")(config).eval()
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(0, 0.1)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        called = Called(model, tuple(inputs)).eval()
        return called, tuple(inputs.values()), called(*inputs.values()), count


SDPA = ("BERT", "Llama", "Whisper")


@pytest.mark.parametrize(
    ("name", "implementation"), [*((n, "eager") for n in ARCHITECTURES), *((n, "sdpa") for n in SDPA)]
)
def test_published_architectures(name: str, implementation: str) -> None:
    model, inputs, wanted, count = published(name, implementation)
    check(tw.compile(model, inputs, cache=False), inputs, wanted, count)


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "TorchScript"])
@pytest.mark.parametrize("name", ["BERT", "ViT"])
def test_onnx_exports(name: str, dynamo: bool, tmp_path: Path) -> None:
    model, inputs, wanted, count = published(name, "eager")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, inputs, str(path), dynamo=dynamo, opset_version=18, verbose=False)
    check(tw.compile(path, cache=False), inputs, wanted, count)
