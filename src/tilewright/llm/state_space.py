"""Layers with a state of fixed size for each sequence: the selective state space models of Mamba and Mamba 2.

Mamba steps through the sequence with one `scan`, Mamba 2 works through chunks of it with products of matrices. States are the cache's, so that a sequence goes
on where it ended. Activations are [batch, n, channels].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..frontends.nn import Linear, Module
from ..frontends.nn import functional as F
from ..frontends.nn.layers import uniform
from ..frontends.trace import Tensor, scan
from ..frontends.trace import numpy as _tnp
from ..ir.symbolic import bounds
from .cache import Cache

tnp: Any = _tnp


class CausalConv(Module):
    """A convolution over time of each channel, which sees the own and earlier tokens."""

    def __init__(self, channels: int, size: int, bias: bool) -> None:
        super().__init__()
        self.size = size
        self.weight = uniform((channels, 1, size), size**-0.5)
        self.bias = uniform((channels,), size**-0.5) if bias else None

    def forward(self, x: Tensor, cache: Cache, layer: int) -> Tensor:
        n, channels = x.shape[1:]
        seen = tnp.concatenate([tnp.astype(cache.state(layer, "conv", (self.size - 1, channels)), x.dtype), x], 1)
        cache.set_state(layer, "conv", tnp.astype(seen[:, n:], "float32"))
        y = sum(seen[:, k : k + n] * self.weight[:, 0, k] for k in range(self.size))
        return y if self.bias is None else y + self.bias  # type: ignore[no-any-return]


def _steps(x: Tensor) -> Tensor:
    """Time first."""
    return tnp.moveaxis(tnp.astype(x, "float32"), 1, 0)  # type: ignore[no-any-return]


class Mamba(Module):
    """Mamba's mixer (Gu & Dao, 2023): each of `channels` has `state` numbers, which decay and take in at rates that the token decides."""

    def __init__(
        self, hidden: int, channels: int, state: int, rank: int, kernel: int, bias: bool, conv_bias: bool, layer: int
    ) -> None:
        super().__init__()
        self.layer, self.channels, self.state, self.rank = layer, channels, state, rank
        self.in_proj = Linear(hidden, 2 * channels, bias)
        self.conv1d = CausalConv(channels, kernel, conv_bias)
        self.x_proj = Linear(channels, rank + 2 * state, bias=False)
        self.dt_proj = Linear(rank, channels)
        self.A_log, self.D = uniform((channels, state), 1), uniform((channels,), 1)
        self.out_proj = Linear(channels, hidden, bias)

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        y = self.in_proj(x)
        x, gate = y[..., : self.channels], y[..., self.channels :]
        x = F.silu(self.conv1d(x, cache, self.layer))
        y = self.x_proj(x)
        rate = F.softplus(self.dt_proj(y[..., : self.rank]))
        taken, read = y[..., self.rank : self.rank + self.state], y[..., self.rank + self.state :]
        decay = tnp.exp(self.A_log).T * -math.log2(math.e)  # of powers of 2, which take half of what `exp` takes

        def step(h: Tensor, now: Any) -> tuple[Tensor, Tensor]:
            x, rate, taken, read = now
            h = h * tnp.exp2(rate[:, None] * decay) + (rate * x)[:, None] * taken[:, :, None]
            return h, (h * read[:, :, None]).sum(1)

        # Channels are neighbours: lanes run over them.
        start = cache.state(self.layer, "ssm", (self.state, self.channels))
        last, out = scan(step, start, tuple(map(_steps, (x, rate, taken, read))))
        cache.set_state(self.layer, "ssm", last)
        out = tnp.astype(tnp.moveaxis(out, 0, 1), x.dtype) + x * self.D
        return self.out_proj(out * F.silu(gate))  # type: ignore[no-any-return]


CHUNK = 64
"""Tokens that Mamba 2 works through at once: what it computes of pairs of tokens grows with it, how often states are written shrinks."""


def state_space_dual(
    state: Tensor, x: Tensor, rate: Tensor, decay: Tensor, taken: Tensor, read: Tensor
) -> tuple[Tensor, Tensor]:
    """``h = exp(rate decay) h + rate x taken^T; y = h read`` for each token: the last h, and all y, like `x`.

    `state` [batch, groups, heads, size, state] is the h before, `x` [batch, n, groups, heads, size], `rate` [batch, n, groups, heads], `decay` [groups, heads], at most 0;
    `taken` and `read` [batch, n, groups, state]. All is computed in float32, tokens of a chunk by products of matrices (Dao & Gu, 2024, section 6): what a token takes
    in is read by the later ones of its chunk as in attention, with weights that decay, and by later chunks from the state.
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
        """[batch, n, groups, ...] to [batch, chunks, groups, chunk, ...]; behind the end nothing decays and nothing is taken in."""
        t = tnp.pad(t, [(0, 0), (0, count * chunk - n), *[(0, 0)] * (t.ndim - 2)])
        return tnp.moveaxis(t.reshape(batch, count, chunk, *t.shape[2:]), 2, 3)  # type: ignore[no-any-return]

    def by_head(t: Tensor) -> Tensor:
        """[batch, n, groups, heads, ...] to [batch, chunks, groups, heads, chunk, ...]."""
        return tnp.moveaxis(chunked(t), 4, 3)  # type: ignore[no-any-return]

    taken, read = chunked(taken)[:, :, :, None], chunked(read)[:, :, :, None]
    given = by_head(rate[..., None] * x)
    past = tnp.cumsum(by_head(rate * decay), -1)  # the logarithm of what is left of the state before the chunk
    earlier = tnp.arange(chunk)[None] <= tnp.arange(chunk)[:, None]
    left = tnp.exp(tnp.where(earlier, past[..., :, None] - past[..., None, :], float("-inf")))
    out = (left * (read @ tnp.swapaxes(taken, -1, -2))) @ given
    whole = past[..., -1:]
    added = tnp.swapaxes(given * tnp.exp(whole - past)[..., None], -1, -2) @ taken
    kept = tnp.exp(whole)[..., None]

    def step(h: Tensor, now: Any) -> tuple[Tensor, Tensor]:
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
    """RMS normalization over `groups` parts of the channels, of what `gate` has weighted or (`gate_last`) before it does."""

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
    """Mamba 2's mixer (Dao & Gu, 2024): `heads` of `size` channels share a decay; what they take in and read is the same for each of `groups`.

    `norm` None: the gate weights the result without a normalization. `scales` multiply the parts of the first projection: gate, channels, taken,
    read, rate.
    """

    def __init__(
        self, hidden: int, heads: int, size: int, groups: int, state: int, kernel: int, layer: int, *, norm: GatedNorm | None,
        bias: bool = False, conv_bias: bool = True, out_bias: bool = False, limit: Sequence[float] = (0.0, float("inf")),
        scales: Sequence[float] = (1.0,) * 5,
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
        gate, *mixed, rate = (p if s == 1.0 else p * s for p, s in zip(parts, self.scales, strict=True))
        mixed = F.silu(self.conv1d(tnp.concatenate(mixed, -1), cache, self.layer))
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
        return self.out_proj(out * F.silu(gate) if self.norm is None else self.norm(out, gate))  # type: ignore[no-any-return]


__all__ = ["CausalConv", "GatedNorm", "Mamba", "Mamba2"]
