"""`GatedDeltaNet`: linear attention with a state that each token corrects (Yang et al. 2024)."""

from __future__ import annotations

from ..frontends.nn import Linear, Module
from ..frontends.nn import functional as F
from ..frontends.nn.layers import uniform
from ..frontends.trace import Tensor, scan
from ..frontends.trace import numpy as tnp
from .cache import Cache
from .layers import Rotations
from .state_space import CausalConv, steps


def gated_delta_rule(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rate: Tensor
) -> tuple[Tensor, Tensor]:
    """The last S and all y of ``S = exp(decay) S; S = S + rate k (v - k S)^T; y = q S``, token by token.

    Args:
        state: The initial S, float32 [batch, heads, size, values].
        q: Queries [batch, n, heads, size].
        k: Keys [batch, n, heads, size].
        v: Values [batch, n, heads, values].
        decay: Logarithms of decays [batch, n, heads], at most 0.
        rate: Rates of correction [batch, n, heads].

    Returns:
        S, and y [batch, n, heads, values], float32.
    """

    def step(s: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        q, k, v, decay, rate = now
        s = s * tnp.exp(decay)[..., None, None]
        change = (v - (s * k[..., None]).sum(-2)) * rate[..., None]
        s = s + k[..., None] * change[..., None, :]
        return s, (s * q[..., None]).sum(-2)

    last, out = scan(step, state, tuple(map(steps, (q, k, v, decay, rate))))
    return last, tnp.moveaxis(out, 0, 1)


def unit(x: Tensor) -> Tensor:
    """Vectors of the last axis, divided by ``sqrt(sum of squares + 1e-6)``."""
    size = x.shape[-1]
    return F.rms_norm(x, eps=1e-6 / size) * size**-0.5


class GatedDeltaNet(Module):
    """The mixer of Qwen3-Next's linear layers. Each of `heads` keys serves ``values_heads / heads`` values.

    Args:
        hidden: Elements of inputs and results.
        heads: The number of heads of queries and keys.
        size: Elements of a query or key.
        value_heads: The number of heads of values, a multiple of `heads`.
        value_size: Elements of a value.
        kernel: Tokens that the convolution of queries, keys and values sees.
        eps: The constant added to mean squares.
        layer: The number of the layer.
    """

    def __init__(
        self, hidden: int, heads: int, size: int, value_heads: int, value_size: int, kernel: int, eps: float,
        layer: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.size, self.value_heads, self.value_size = heads, size, value_heads, value_size
        self.eps, self.layer = eps, layer
        keys, values = heads * size, value_heads * value_size
        self.in_proj_qkvz = Linear(hidden, 2 * keys + 2 * values, bias=False)
        self.in_proj_ba = Linear(hidden, 2 * value_heads, bias=False)
        self.conv1d = CausalConv(2 * keys + values, kernel, bias=False)
        self.dt_bias, self.A_log = uniform((value_heads,), 1), uniform((value_heads,), 1)
        self.norm_weight = uniform((value_size,), 1)
        self.out_proj = Linear(values, hidden, bias=False)

    def forward(self, x: Tensor, cache: Cache, rotations: Rotations = None) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden]; `rotations` have no effect."""
        batch, n, _ = x.shape
        keys, values, per = (
            self.heads * self.size,
            self.value_heads * self.value_size,
            self.value_heads // self.heads,
        )
        # The projections have the columns of one key head after the other.
        ends = [self.size, 2 * self.size, 2 * self.size + per * self.value_size]
        whole = self.in_proj_qkvz(x).reshape(batch, n, self.heads, -1)
        q, k, v, gate = tnp.split(whole, ends, -1)
        rate, step = tnp.split(self.in_proj_ba(x).reshape(batch, n, self.heads, 2 * per), [per], -1)
        rate, step = (t.reshape(batch, n, self.value_heads) for t in (rate, step))
        joined = tnp.concatenate([t.reshape(batch, n, -1) for t in (q, k, v)], -1)
        q, k, v = tnp.split(F.silu(self.conv1d(joined, cache, self.layer)), [keys, 2 * keys], -1)
        q, k = (unit(tnp.astype(t.reshape(batch, n, self.heads, self.size), "float32")) for t in (q, k))
        if per > 1:
            shape = (batch, n, self.heads, per, self.size)
            q, k = (
                tnp.broadcast_to(t[:, :, :, None], shape).reshape(batch, n, self.value_heads, self.size)
                for t in (q, k)
            )
        v = v.reshape(batch, n, self.value_heads, self.value_size)
        decay = F.softplus(tnp.astype(step, "float32") + self.dt_bias) * -tnp.exp(self.A_log)
        start = cache.state(self.layer, "delta", (self.value_heads, self.size, self.value_size))
        last, y = gated_delta_rule(start, q * self.size**-0.5, k, v, decay, F.sigmoid(rate))
        cache.set_state(self.layer, "delta", last)
        gate = gate.reshape(batch, n, self.value_heads, self.value_size)
        y = F.rms_norm(tnp.astype(y, x.dtype), self.norm_weight, eps=self.eps) * F.silu(gate)
        result: Tensor = self.out_proj(y.reshape(batch, n, values))
        return result


__all__ = ["GatedDeltaNet", "gated_delta_rule"]
