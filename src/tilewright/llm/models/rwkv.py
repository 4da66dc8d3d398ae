"""RWKV 4: a decaying average of values, weighted by exponentials of keys. Peng et al., 2023."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...frontends.nn import LayerNorm, Linear, Module
from ...frontends.nn import functional as F
from ...frontends.nn.layers import uniform
from ...frontends.trace import Tensor, scan
from ...frontends.trace import numpy as tnp
from ...frontends.trace.tensor import TensorLike
from ..cache import Cache
from ..config import Config
from ..layers import Rotations
from ..state_space import steps
from .base import CausalLM, register
from .mamba import UNLIMITED


class Shifted(Module):
    """A block that mixes each token with the one before it, in a share for each of `names` and each element.

    Args:
        hidden: Elements of inputs and results.
        layer: The number of the layer.
        names: The uses of the mixtures.
    """

    def __init__(self, hidden: int, layer: int, *names: str) -> None:
        super().__init__()
        self.layer, self.names = layer, names
        for name in names:
            setattr(self, f"time_mix_{name}", uniform((1, 1, hidden), 1))

    def mixtures(self, x: Tensor, cache: Cache) -> list[Tensor]:
        """The mixture for each name, [batch, n, hidden] as `x`."""
        n, hidden = x.shape[1:]
        state = f"{type(self).__name__.lower()}.token"
        window = tnp.concatenate([tnp.astype(cache.state(self.layer, state, (1, hidden)), x.dtype), x], 1)
        cache.set_state(self.layer, state, tnp.astype(window[:, n:], "float32"))
        before = window[:, :n]
        shares = [getattr(self, f"time_mix_{name}") for name in self.names]
        return [x * share + before * (1.0 - share) for share in shares]


class TimeMix(Shifted):
    """The average of the values of all tokens so far, each weighted by the exponential of its key and of its
    distance times `time_decay`, the current one by `time_first` instead.

    The state of an element is a numerator, a denominator, and the logarithm of the factor that both lack.
    Before the first token the denominator is 0; afterwards it is at least 1.
    """

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__(config.hidden, layer, "key", "value", "receptance")
        self.width = int(config.get("attention_hidden_size", config.hidden))
        self.time_decay, self.time_first = uniform((self.width,), 1), uniform((self.width,), 1)
        self.key, self.value, self.receptance = (
            Linear(config.hidden, self.width, bias=False) for _ in range(3)
        )
        self.output = Linear(self.width, config.hidden, bias=False)

    def forward(self, x: Tensor, cache: Cache, rotations: Rotations = None) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden]; `rotations` have no effect."""
        of_key, of_value, of_gate = self.mixtures(x, cache)
        k, v = self.key(of_key), self.value(of_value)
        decay, first = -tnp.exp(self.time_decay), self.time_first

        def step(state: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            k, v = now
            above, below, most = state[:, 0], state[:, 1], state[:, 2]
            most = tnp.where(below == 0, -1e30, most)

            def added(most: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                new = tnp.maximum(most, k)
                old, now = tnp.exp(most - new), tnp.exp(k - new)
                return old * above + now * v, old * below + now, new

            up, down, _ = added(most, k + first)
            return tnp.stack(added(most + decay, k), 1), up / down

        start = cache.state(self.layer, "average", (3, self.width))
        last, out = scan(step, start, (steps(k), steps(v)))
        cache.set_state(self.layer, "average", last)
        average = tnp.astype(tnp.moveaxis(out, 0, 1), x.dtype)
        result: Tensor = self.output(F.sigmoid(self.receptance(of_gate)) * average)
        return result


class ChannelMix(Shifted):
    """``sigmoid(receptance) * value(relu(key) ** 2)`` of mixtures with the token before."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__(config.hidden, layer, "key", "receptance")
        self.key = Linear(config.hidden, config.intermediate, bias=False)
        self.receptance = Linear(config.hidden, config.hidden, bias=False)
        self.value = Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden]."""
        of_key, of_gate = self.mixtures(x, cache)
        k = F.relu(self.key(of_key))
        result: Tensor = F.sigmoid(self.receptance(of_gate)) * self.value(k * k)
        return result


class RwkvBlock(Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = LayerNorm(config.hidden, config.eps), LayerNorm(config.hidden, config.eps)
        self.attention, self.feed_forward = TimeMix(config, layer), ChannelMix(config, layer)

    def forward(self, x: Tensor, cache: Cache, rotations: Rotations) -> Tensor:
        x = x + self.attention(self.ln1(x), cache)
        result: Tensor = x + self.feed_forward(self.ln2(x), cache)
        return result


@register("rwkv")
class Rwkv(CausalLM):
    """RWKV 4. Its layers are not scaled down for float16, which `rescale_every` asks for: that changes
    nothing in float32.
    """

    has_state = True
    norm_class = LayerNorm
    renamed: ClassVar[Mapping[str, str]] = {
        r"^rwkv\.blocks\.0\.pre_ln\.": "model.embed_norm.",
        r"^rwkv\.blocks\.": "model.layers.",
        r"^rwkv\.embeddings\.": "model.embed_tokens.",
        r"^rwkv\.ln_out\.": "model.norm.",
        r"^head\.": "lm_head.",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "tie_word_embeddings": False, "layer_norm_epsilon": 1e-5, "intermediate_size": 4 * config.hidden,
            "max_position_embeddings": UNLIMITED, "num_attention_heads": 0, "num_key_value_heads": 0,
            "head_dim": 0,
        }  # fmt: skip

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.model.embed_norm = self.norm(config.hidden)

    def block(self, config: Config, layer: int) -> Module:
        return RwkvBlock(config, layer)

    def make_rotary(self) -> None:
        return None

    def embed(self, tokens: TensorLike, cache: Cache) -> Tensor:
        result: Tensor = self.model.embed_norm(super().embed(tokens, cache))
        return result
