"""Layers with a state of fixed size for each sequence: the selective state space models of Mamba and Mamba 2.

Mamba iterates over the sequence with one `scan`; Mamba 2 processes chunks of it with matrix products. The
cache stores the states, so that a sequence can be continued. Activations are [batch, n, channels].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..frontends.nn import Linear, Module
from ..frontends.nn import functional as F
from ..frontends.nn.layers import uniform
from ..frontends.trace import Tensor, scan
from ..frontends.trace import numpy as tnp
from ..ir.symbolic import bounds
from .cache import Cache
from .layers import Rotations


class CausalConv(Module):
    """A convolution of each channel over time that sees the current and earlier tokens."""

    def __init__(self, channels: int, size: int, bias: bool) -> None:
        super().__init__()
        self.size = size
        self.weight = uniform((channels, 1, size), size**-0.5)
        self.bias = uniform((channels,), size**-0.5) if bias else None

    def forward(self, x: Tensor, cache: Cache, layer: int) -> Tensor:
        n, channels = x.shape[1:]
        window = tnp.concatenate(
            [tnp.astype(cache.state(layer, "conv", (self.size - 1, channels)), x.dtype), x], 1
        )
        cache.set_state(layer, "conv", tnp.astype(window[:, n:], "float32"))
        y = sum(window[:, k : k + n] * self.weight[:, 0, k] for k in range(self.size))
        result: Tensor = y if self.bias is None else y + self.bias
        return result


def steps(x: Tensor) -> Tensor:
    """A tensor with its time axis moved to the front."""
    result: Tensor = tnp.moveaxis(tnp.astype(x, "float32"), 1, 0)
    return result


def rank_of(rank: object, hidden: int) -> int:
    """The elements from which Mamba projects the rates of channels; "auto" are a sixteenth of `hidden`."""
    return math.ceil(hidden / 16) if rank == "auto" else int(str(rank))


class Mamba(Module):
    """Mamba's mixer (Gu & Dao, 2023).

    Each of `channels` has `state` numbers, which decay and take in input at rates that depend on the token.
    """

    def __init__(
        self,
        hidden: int,
        channels: int,
        state: int,
        rank: int,
        kernel: int,
        bias: bool,
        conv_bias: bool,
        layer: int,
        norm: Callable[[int], Module] | None = None,
    ) -> None:
        """`norm` makes normalizations of what the second projection gives: rates, taken, read."""
        super().__init__()
        self.layer, self.channels, self.state, self.rank = layer, channels, state, rank
        self.in_proj = Linear(hidden, 2 * channels, bias)
        self.conv1d = CausalConv(channels, kernel, conv_bias)
        self.x_proj = Linear(channels, rank + 2 * state, bias=False)
        self.dt_proj = Linear(rank, channels)
        self.A_log, self.D = uniform((channels, state), 1), uniform((channels,), 1)
        self.out_proj = Linear(channels, hidden, bias)
        self.normalized = norm is not None
        if norm is not None:
            self.dt_layernorm, self.b_layernorm, self.c_layernorm = norm(rank), norm(state), norm(state)

    def forward(self, x: Tensor, cache: Cache, rotations: Rotations = None) -> Tensor:
        """`rotations` have no effect."""
        y = self.in_proj(x)
        x, gate = y[..., : self.channels], y[..., self.channels :]
        x = F.silu(self.conv1d(x, cache, self.layer))
        rate, taken, read = tnp.split(self.x_proj(x), [self.rank, self.rank + self.state], -1)
        if self.normalized:
            rate, taken, read = self.dt_layernorm(rate), self.b_layernorm(taken), self.c_layernorm(read)
        rate = F.softplus(self.dt_proj(rate))
        decay = tnp.exp(self.A_log).T * -math.log2(math.e)  # The exponential of base 2 costs half of `exp`.

        def step(h: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            x, rate, taken, read = now
            h = h * tnp.exp2(rate[:, None] * decay) + (rate * x)[:, None] * taken[:, :, None]
            return h, (h * read[:, :, None]).sum(1)

        # Channels are the innermost axis, so that lanes run over them.
        start = cache.state(self.layer, "ssm", (self.state, self.channels))
        last, out = scan(step, start, tuple(map(steps, (x, rate, taken, read))))
        cache.set_state(self.layer, "ssm", last)
        out = tnp.astype(tnp.moveaxis(out, 0, 1), x.dtype) + x * self.D
        result: Tensor = self.out_proj(out * F.silu(gate))
        return result


CHUNK = 64
"""Tokens that Mamba 2 processes at once.

A larger value increases the work on pairs of tokens and decreases the number of times that states are
written.
"""


def state_space_dual(
    state: Tensor, x: Tensor, rate: Tensor, decay: Tensor, taken: Tensor, read: Tensor
) -> tuple[Tensor, Tensor]:
    """The last h and all y of ``h = exp(rate decay) h + rate x taken^T; y = h read``, computed token by
    token.

    `state` [batch, groups, heads, size, state] is the initial h, `x` is [batch, n, groups, heads, size],
    `rate` [batch, n, groups, heads], `decay` [groups, heads], at most 0; `taken` and `read` are [batch, n,
    groups, state]. All arithmetic is float32. Tokens of a chunk interact by matrix products (Dao & Gu, 2024,
    section 6): later tokens of the chunk read an input as in attention with decaying weights; later chunks
    read it from the state.
    """
    x, rate, taken, read = (tnp.astype(t, "float32") for t in (x, rate, taken, read))
    batch, n, groups, heads, size = x.shape
    if isinstance(n, int) and n == 1:
        h = state * tnp.exp(rate[:, 0] * decay)[..., None, None]
        h = h + (rate[:, 0, ..., None] * x[:, 0])[..., None] * taken[:, 0, :, None, None]
        return h, (h * read[:, 0, :, None, None]).sum(-1)[:, None]
    most = bounds(n)[1]
    chunk, count = (CHUNK, (n + CHUNK - 1) // CHUNK) if most is None or most > CHUNK else (n, 1)

    def chunked(t: Tensor) -> Tensor:
        """[batch, n, groups, ...] to [batch, chunks, groups, chunk, ...]; padding decays nothing and adds
        nothing.
        """
        t = tnp.pad(t, [(0, 0), (0, count * chunk - n), *[(0, 0)] * (t.ndim - 2)])
        result: Tensor = tnp.moveaxis(t.reshape(batch, count, chunk, *t.shape[2:]), 2, 3)
        return result

    def by_head(t: Tensor) -> Tensor:
        """[batch, n, groups, heads, ...] to [batch, chunks, groups, heads, chunk, ...]."""
        result: Tensor = tnp.moveaxis(chunked(t), 4, 3)
        return result

    taken, read = chunked(taken)[:, :, :, None], chunked(read)[:, :, :, None]
    scaled_input = by_head(rate[..., None] * x)
    past = tnp.cumsum(by_head(rate * decay), -1)  # the logarithm of the decay of the state before the chunk
    earlier = tnp.arange(chunk)[None] <= tnp.arange(chunk)[:, None]
    left = tnp.exp(tnp.where(earlier, past[..., :, None] - past[..., None, :], float("-inf")))
    out = (left * (read @ tnp.swapaxes(taken, -1, -2))) @ scaled_input
    whole = past[..., -1:]
    added = tnp.swapaxes(scaled_input * tnp.exp(whole - past)[..., None], -1, -2) @ taken
    kept = tnp.exp(whole)[..., None]

    def step(h: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        kept, added = now
        return h * kept + added, h

    if isinstance(count, int) and count == 1:
        last, before = state * kept[:, 0] + added[:, 0], state[:, None]
    else:
        last, before = scan(step, state, (tnp.moveaxis(kept, 1, 0), tnp.moveaxis(added, 1, 0)))
        before = tnp.moveaxis(before, 0, 1)
    out = out + tnp.exp(past)[..., None] * (read @ tnp.swapaxes(before, -1, -2))
    out = tnp.moveaxis(tnp.moveaxis(out, 3, 4), 3, 2).reshape(batch, count * chunk, groups, heads, size)
    return last, tnp.pad(out, [(0, 0), (0, n - count * chunk), *[(0, 0)] * 3])


class GatedNorm(Module):
    """RMS normalization over `groups` parts of the channels, after multiplication by the gate or
    (`gate_last`) before it.
    """

    def __init__(self, channels: int, groups: int, eps: float, gate_last: bool = False) -> None:
        super().__init__()
        self.groups, self.eps, self.gate_last = groups, eps, gate_last
        self.weight = uniform((channels,), 1)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        x = x if self.gate_last else x * F.silu(gate)
        parts = x.reshape(*x.shape[:2], self.groups, x.shape[2] // self.groups)
        x = F.rms_norm(parts, eps=self.eps).reshape(x.shape) * self.weight
        return x * F.silu(gate) if self.gate_last else x


class Mamba2(Module):
    """Mamba 2's mixer (Dao & Gu, 2024).

    `heads` of `size` channels share a decay; `groups` of heads share their input and output projections of
    the state. `norm` None applies the gate without a normalization. `scales` multiply the parts of the first
    projection: gate, channels, taken, read, rate.
    """

    def __init__(
        self, hidden: int, heads: int, size: int, groups: int, state: int, kernel: int, layer: int, *,
        norm: GatedNorm | None, bias: bool = False, conv_bias: bool = True, out_bias: bool = False,
        limit: Sequence[float] = (0.0, float("inf")), scales: Sequence[float] = (1.0,) * 5,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layer, self.heads, self.size, self.groups, self.state = layer, heads, size, groups, state
        self.limit, self.scales = tuple(map(float, limit)), tuple(scales)
        channels, shared = heads * size, groups * state
        self.ends = [channels, 2 * channels, 2 * channels + shared, 2 * channels + 2 * shared]
        self.in_proj = Linear(hidden, self.ends[-1] + heads, bias)
        self.conv1d = CausalConv(channels + 2 * shared, kernel, conv_bias)
        self.dt_bias, self.A_log, self.D = (uniform((heads,), 1) for _ in range(3))
        self.norm = norm
        self.out_proj = Linear(channels, hidden, out_bias)

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        batch, n, _ = x.shape
        parts = tnp.split(self.in_proj(x), self.ends, -1)
        gate, *inner, rate = (p if s == 1.0 else p * s for p, s in zip(parts, self.scales, strict=True))
        mixed = F.silu(self.conv1d(tnp.concatenate(inner, -1), cache, self.layer))
        channels, taken, read = tnp.split(mixed, [e - self.ends[0] for e in self.ends[1:3]], -1)
        channels = channels.reshape(batch, n, self.groups, self.heads // self.groups, self.size)
        taken, read = (t.reshape(batch, n, self.groups, self.state) for t in (taken, read))
        rate = F.softplus(rate + self.dt_bias)
        if self.limit != (0.0, float("inf")):
            rate = tnp.clip(rate, *self.limit)
        decay = (-tnp.exp(self.A_log)).reshape(self.groups, self.heads // self.groups)
        rate = rate.reshape(batch, n, *decay.shape)

        start = cache.state(self.layer, "ssm", (*decay.shape, self.size, self.state))
        last, out = state_space_dual(start, channels, rate, decay, taken, read)
        cache.set_state(self.layer, "ssm", last)
        out = tnp.astype(out, x.dtype) + channels * self.D.reshape(*decay.shape, 1)
        out = out.reshape(batch, n, self.heads * self.size)
        result: Tensor = self.out_proj(out * F.silu(gate) if self.norm is None else self.norm(out, gate))
        return result


__all__ = ["CausalConv", "GatedNorm", "Mamba", "Mamba2", "rank_of", "steps"]
