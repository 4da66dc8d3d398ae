"""Layers of `tw.nn` with PyTorch's weights give PyTorch's results, both eagerly and compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import nn

PAIRS: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 5), lambda: torch.nn.Linear(6, 5), (2, 3, 6)),
    "layer norm": (lambda: nn.LayerNorm((3, 6)), lambda: torch.nn.LayerNorm((3, 6)), (2, 3, 6)),
    "rms norm": (lambda: nn.RMSNorm(6), lambda: torch.nn.RMSNorm(6, eps=1e-6), (2, 3, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 4), lambda: torch.nn.GroupNorm(2, 4), (2, 4, 5, 5)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, 2, 1), lambda: torch.nn.Conv1d(4, 6, 3, 2, 1), (2, 4, 9)),
    "conv2d": (
        lambda: nn.Conv2d(4, 6, (3, 2), padding=(1, 0), groups=2),
        lambda: torch.nn.Conv2d(4, 6, (3, 2), padding=(1, 0), groups=2),
        (2, 4, 7, 7),
    ),
    "batch norm": (lambda: nn.BatchNorm2d(4), lambda: torch.nn.BatchNorm2d(4), (2, 4, 5, 5)),
    "sequential": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2), nn.SiLU()),
        lambda: torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Dropout(), torch.nn.Linear(8, 2), torch.nn.SiLU()
        ),
        (3, 6),
    ),
    "pool": (lambda: nn.MaxPool2d(kernel=2), lambda: torch.nn.MaxPool2d(2), (1, 2, 6, 6)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_like_torch(name: str) -> None:
    ours, theirs, shape = PAIRS[name][0](), PAIRS[name][1](), PAIRS[name][2]
    torch.manual_seed(0)
    for p in theirs.parameters():
        torch.nn.init.uniform_(p, -1, 1)
    for n, p in theirs.named_buffers():
        if n.endswith(("mean", "var")):
            torch.nn.init.uniform_(p, 0.5, 1)
    x = torch.randn(shape)
    ours.load_state_dict(theirs.state_dict())
    ours.eval(), theirs.eval()
    expected = theirs(x).detach().numpy()
    np.testing.assert_allclose(ours(x.numpy()), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tw.jit(ours)(x.numpy()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    ours, theirs = nn.MultiHeadAttention(16, 4), torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    torch.nn.init.uniform_(theirs.in_proj_bias, -1, 1)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 16)
    mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1) if causal else None
    expected = theirs(x, x, x, attn_mask=mask, need_weights=False)[0].detach().numpy()
    np.testing.assert_allclose(ours(x.numpy(), causal=causal), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tw.jit(ours)(x.numpy(), causal=causal), expected, rtol=1e-4, atol=1e-5)


def test_training_mode() -> None:
    ours, theirs = nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    x = torch.randn(4, 3, 5, 5)
    np.testing.assert_allclose(ours(x.numpy()), theirs(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.running_mean, theirs.running_mean.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours.running_var, theirs.running_var.numpy(), rtol=1e-4)
    nn.seed(0)
    dropped = nn.Dropout(0.25)(np.ones((100, 100), np.float32)).numpy()
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((dropped == 0).mean() - 0.25) < 0.02
    for module, remedy in ((ours, "buffer_updates"), (nn.Dropout(0.5), r"tw\.random\.using")):
        with pytest.raises(tw.CompileError, match=rf"{remedy}.*model\.eval"):
            tw.jit(module)(x.numpy())


class Tied(nn.Module):
    """A model whose output layer shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

    def forward(self, ids: Any) -> Any:
        x = self.table(ids)
        for layer in self.layers:
            x = tw.numpy.tanh(layer(x))
        return x @ self.table.weight.T


def test_state(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    names = ["table.weight", "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]
    assert [n for n, _ in model.named_parameters()] == names == list(model.state_dict())
    ids = np.array([[0, 6, 3]])
    f = tw.jit(model)
    np.testing.assert_allclose(f(ids), model(ids), rtol=1e-5, atol=1e-6)
    model.load_state_dict(other.state_dict())
    np.testing.assert_allclose(f(ids), other(ids), rtol=1e-5, atol=1e-6)
    model.layers[1] = nn.Linear(4, 4)
    np.testing.assert_allclose(f(ids), model(ids), rtol=1e-5, atol=1e-6)
    model.table.weight = nn.Parameter(model.table.weight, "bfloat16")
    model.save(tmp_path / "weights.safetensors")
    other.table.weight = nn.Parameter(other.table.weight, "bfloat16")
    other.load(tmp_path / "weights.safetensors")
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, other.state_dict()[name])
    (tmp_path / "broken.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(tw.CompileError, match="not a valid safetensors file"):
        other.load(tmp_path / "broken.safetensors")
    model, other = Tied(), Tied()
    with pytest.raises(tw.CompileError, match=r"missing \['layers.0.bias'.*unknown \['extra'\]"):
        model.load_state_dict({"table.weight": np.zeros((7, 4)), "extra": 0})
    with pytest.raises(tw.ShapeError, match="table.weight"):
        model.load_state_dict({"table.weight": np.zeros((7, 5))}, strict=False)
    assert "layers.0/matmul" in str(tw.compile(model, (ids,)).metadata["kernels"])


def test_placeholders() -> None:
    """A model whose parameters are placeholders refuses to compute until a state is loaded into it."""
    with nn.placeholders("float32"):
        model = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 4), nn.LayerNorm(4))
    assert {n: p.shape for n, p in model.named_parameters()}["1.weight"] == (4, 6)
    ids = np.array([[1, 2]])
    for call in (model, tw.jit(model)):
        with pytest.raises(
            tw.CompileError, match=r"a parameter of shape \(10, 6\) has no values yet: load weights first"
        ):
            call(ids)
    full = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 4), nn.LayerNorm(4))
    model.load_state_dict(full.state_dict())
    np.testing.assert_array_equal(model(ids), full(ids))
    assert all(type(p) is nn.Parameter for p in model.parameters())


@pytest.mark.parametrize("index", [(0, 0, 2, 2, 2, 1), (1, 1, 1, 1, 1, 1), (2, 0, 2, 0, 2, 0)])
def test_grouped_matmul(index: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x, w = (
        random.standard_normal((6, 4)).astype(np.float32),
        random.standard_normal((3, 4, 5)).astype(np.float32),
    )
    which = np.array(index)
    expected = np.einsum("si,sio->so", x, w[which])
    np.testing.assert_allclose(nn.functional.grouped_matmul(x, w, which), expected, atol=1e-5)
    function = tw.jit(
        lambda x, index: nn.functional.grouped_matmul(x, w, index),
        dims={"x": {0: "rows<=9"}, "index": {0: "rows<=9"}},
    )
    np.testing.assert_allclose(function(x, which), expected, atol=1e-5)
