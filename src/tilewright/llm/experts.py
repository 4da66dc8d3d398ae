"""Mixtures of experts: feed-forward blocks, of which a router chooses a few for each token.

Activations are [batch, n, hidden], or [tokens, hidden] where the batch does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..frontends.nn import Linear, Module
from ..frontends.nn import functional as F
from ..frontends.nn.layers import uniform
from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from .config import Config
from .layers import activation


class GroupedLinear(Module):
    """A linear layer of `count` matrices, `weight` [count, outputs, inputs].

    Each row of x [rows, inputs] is multiplied by the matrix that `index` [rows] selects.
    """

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.count = count
        self.weight = uniform((count, outputs, inputs), inputs**-0.5)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        """Return [rows, outputs] for `x` [rows, inputs] and integers `index` [rows] in 0 .. count - 1.

        Raises:
            ShapeError: A shape does not fit, or `index` has no integers.
        """
        return F.grouped_matmul(x, self.weight.mT, index)


class Experts(Module):
    """Gated feed-forward blocks, each for the tokens routed to it. Only selected experts are computed and
    read.

    Args:
        config: The configuration of the model, whose ``num_experts`` is the number of blocks.
        width: The elements between the projections of one block.
        joint: Whether one projection has the gate's columns first, then the others.

    Raises:
        CompileError: The configuration's activation is unknown.
    """

    def __init__(self, config: Config, width: int, joint: bool = False) -> None:
        super().__init__()
        count, self.width, self.joint = int(config["num_experts"]), width, joint
        self.activation = activation(config)
        if joint:
            self.gate_up_proj = GroupedLinear(count, config.hidden, 2 * width)
        else:
            self.gate_proj = GroupedLinear(count, config.hidden, width)
            self.up_proj = GroupedLinear(count, config.hidden, width)
        self.down_proj = GroupedLinear(count, width, config.hidden)

    def transformed(self, x: Tensor, index: Tensor) -> Tensor:
        """The results of expert ``index[i]`` [rows] for row i of `x`, both [rows, hidden]."""
        if self.joint:
            y = self.gate_up_proj(x, index)
            gate, up = y[:, : self.width], y[:, self.width :]
        else:
            gate, up = self.gate_proj(x, index), self.up_proj(x, index)
        result: Tensor = self.down_proj(self.activation(gate) * up, index)
        return result

    def forward(self, x: Tensor, chosen: Tensor, shares: Tensor, scales_inputs: bool = False) -> Tensor:
        """The sum of the results of each token's experts, weighted by their shares, [tokens, hidden].

        Args:
            x: The hidden states [tokens, hidden].
            chosen: The experts of each token [tokens, top], i64.
            shares: The weights of these experts [tokens, top], of the type of `x`.
            scales_inputs: Whether shares multiply what an expert gets, instead of what it gives.
        """
        tokens, top = chosen.shape
        # Pairs of token and expert are sorted by expert, so that an expert's tokens are a contiguous range of
        # rows that is multiplied at once.
        experts = chosen.reshape(tokens * top)
        order = tnp.argsort(experts)
        rows, index = x[order // top], experts[order]
        if scales_inputs:
            rows = rows * shares.reshape(tokens * top)[order][:, None]
        y = self.transformed(rows, index)
        y = y[tnp.argsort(order)].reshape(tokens, top, x.shape[1])
        result: Tensor = (y if scales_inputs else y * shares[:, :, None]).sum(1)
        return result


@dataclass(frozen=True)
class Routing:
    """How the experts of a token and their shares follow from the router's logits, in float32."""

    top: int
    """Experts of a token."""
    normalized: bool = True
    """Whether the shares of a token's experts are scaled to the sum 1."""
    scores: Literal["softmax", "sigmoid"] = "softmax"
    """The function that makes scores of logits."""
    groups: int = 1
    """Groups of experts; only experts of the `chosen_groups` best groups are chosen (DeepSeek-AI 2024)."""
    chosen_groups: int = 1
    best: int = 1
    """A group is as good as the sum of its `best` highest scores."""
    scale: float = 1.0
    """The factor of the shares."""

    def __call__(self, logits: Tensor, correction: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Shares and experts [tokens, top] for `logits` [tokens, experts] of float32; `correction` [experts]
        is added to the scores by which experts are chosen, not to shares (Wang et al. 2024).
        """
        scores = F.softmax(logits) if self.scores == "softmax" else F.sigmoid(logits)
        order = scores if correction is None else scores + correction
        if self.groups > 1:
            order = order.reshape(order.shape[0], self.groups, order.shape[1] // self.groups)
            _, groups = tnp.topk(tnp.topk(order, self.best)[0].sum(-1), self.chosen_groups)
            open_ = (groups[:, :, None] == tnp.arange(self.groups)).any(1)
            order = tnp.where(open_[:, :, None], order, float("-inf")).reshape(scores.shape)
        shares, chosen = tnp.topk(order, self.top)
        if correction is not None:
            shares = tnp.take_along_axis(scores, chosen, 1)
        if self.normalized:
            total = shares.sum(-1, keepdims=True)
            # Sigmoids may all be 0.
            shares = shares / (total if self.scores == "softmax" else total + 1e-20)
        return (shares if self.scale == 1.0 else shares * self.scale), chosen


class RoutedMLP(Module):
    """A mixture of `Experts`: each token passes the few experts that a linear router (`gate`) scores highest
    (Shazeer et al. 2017).

    Args:
        config: The configuration of the model, with ``num_experts``.
        experts: The experts.
        routing: How experts are chosen.
        shared: A block that all tokens pass as well, whose result is added.
        bias: Whether the router adds a bias.
        corrected: Whether there is a `correction` of the scores by which experts are chosen.
        scales_inputs: As for `Experts`.
    """

    def __init__(
        self, config: Config, experts: Experts, routing: Routing, *, shared: Module | None = None,
        bias: bool = False, corrected: bool = False, scales_inputs: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        count = int(config["num_experts"])
        self.routing, self.scales_inputs = routing, scales_inputs
        self.gate = Linear(config.hidden, count, bias)
        self.correction = uniform((count,), 1) if corrected else None
        self.experts, self.shared_experts = experts, shared

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden]. The router's shares are computed in
        float32.
        """
        rows = x.reshape(x.shape[0] * x.shape[1], x.shape[2])
        shares, chosen = self.routing(tnp.astype(self.gate(rows), "float32"), self.correction)
        y = self.experts(rows, chosen, tnp.astype(shares, x.dtype), self.scales_inputs).reshape(x.shape)
        result: Tensor = y if self.shared_experts is None else y + self.shared_experts(x)
        return result


SEPARATE_EXPERTS = {r"\.experts\.(\d+)\.(\w+)\.weight$": r".experts.\2.weight[\1]"}
"""Renames the matrices of experts that a checkpoint stores one by one."""


__all__ = ["SEPARATE_EXPERTS", "Experts", "GroupedLinear", "RoutedMLP", "Routing"]
