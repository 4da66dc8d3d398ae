"""The option `memory_budget`: less memory, equal results, and a refusal of what cannot be reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn, optim
from tilewright import numpy as tnp
from tilewright.driver.memory_budget import memory_size
from tilewright.nn import functional

RNG = np.random.default_rng(0)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(10)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = tnp.tanh(layer(x))
        return x


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        q, k, v = (
            y.reshape(b, t, 2, c // 2).swapaxes(1, 2) for y in tnp.split(self.qkv(self.first(x)), 3, -1)
        )
        y = functional.attention(q, k, v, causal=True)
        x = x + self.dropout(self.projection(y.swapaxes(1, 2).reshape(b, t, c)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.second(x)))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(19, 16)
        self.blocks = nn.ModuleList([Block(16) for _ in range(2)])
        self.head = nn.Linear(16, 19)

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3 if k == 0 else 6, 6, 3, padding=1) for k in range(4)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(6) for _ in range(4)])
        self.last = nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = functional.relu(norm(conv(x)))
        return self.last(x.mean((2, 3)))


def squares(y: Any, target: Any) -> Any:
    return ((y - target) ** 2).mean()


def entropy(scores: Any, target: Any) -> Any:
    return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), target.reshape(-1))


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


IDS = RNG.integers(0, 19, (4, 33))
CASES: dict[str, tuple[Callable[[], Any], Any, tuple[Any, Any], float]] = {
    "mlp": (Deep, squares, (normal(256, 16), normal(256, 16)), 0.7),
    "gpt": (Gpt, entropy, (IDS[:, :-1], IDS[:, 1:]), 0.8),
    "cnn": (Cnn, entropy, (normal(4, 3, 10, 10), RNG.integers(0, 4, 4)), 0.85),
}


def compiled(name: str, **options: Any) -> Any:
    model, loss, batch, _ = CASES[name]
    nn.seed(0)
    return tw.train_step(model(), loss, optim.SGD(lr=0.1), batch, seed=3, **options)


def arena(step: Any) -> int:
    return int(step.library.metadata["functions"]["main"]["memory"]["arena_bytes"])


@pytest.mark.parametrize("name", CASES)
def test_memory_falls_below_the_budget_and_results_are_equal(name: str) -> None:
    _, _, batch, part = CASES[name]
    plain = compiled(name)
    budget = int(part * arena(plain))
    saving = compiled(name, memory_budget=budget)
    assert arena(saving) <= budget < arena(plain)
    for _ in range(3):
        np.testing.assert_allclose(saving(*batch), plain(*batch), rtol=1e-6)
    before, after = plain.state_dict(), saving.state_dict()
    for key, value in before.items():
        np.testing.assert_allclose(after[key], value, rtol=1e-5, atol=1e-6, err_msg=key)


def test_a_budget_that_is_enough_changes_nothing() -> None:
    plain = compiled("mlp")
    assert compiled("mlp", memory_budget="1GB").library.ir("host") == plain.library.ir("host")


def test_in_the_parts_of_a_batch() -> None:
    """The passes of accumulated parts stand in the body of a loop."""
    plain = compiled("mlp", accumulate=2)
    saving = compiled("mlp", accumulate=2, memory_budget=int(0.8 * arena(plain)))
    assert arena(saving) <= 0.8 * arena(plain)
    batch = CASES["mlp"][2]
    for _ in range(2):
        np.testing.assert_allclose(saving(*batch), plain(*batch), rtol=1e-6)


def test_what_cannot_be_reached_is_refused() -> None:
    plain = compiled("mlp")
    with pytest.raises(tw.CompileError, match=r"memory_budget: 4096 bytes .* (\d+) bytes.*accumulate=") as e:
        compiled("mlp", memory_budget="4KiB")
    least = int(str(e.value).rpartition("Allow ")[2].partition(",")[0])
    assert least < 0.75 * arena(plain)
    assert arena(compiled("mlp", memory_budget=least)) == least


def test_a_model_without_a_backward_pass() -> None:
    with pytest.raises(tw.CompileError, match="no value of a forward pass waits for a backward pass"):
        tw.compile(lambda x: tnp.tanh(x) @ x, (normal(64, 64),), memory_budget=1)


@pytest.mark.parametrize(
    ("text", "size"), [("2GB", 2 * 10**9), ("1.5 MiB", 3 * 2**19), ("300", 300), ("7k", 7000), (12, 12)]
)
def test_sizes(text: Any, size: int) -> None:
    assert memory_size(text) == size


@pytest.mark.parametrize("wrong", ["2 apples", "", 0, -1, 1.5, True, "0GB"])
def test_wrong_sizes_are_refused(wrong: Any) -> None:
    with pytest.raises(tw.CompileError, match="memory_budget=.*bytes above 0"):
        memory_size(wrong)
