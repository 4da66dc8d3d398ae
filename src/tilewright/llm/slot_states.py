"""`SlotStates`: what compiled libraries keep of running sequences beside pages, an array of fixed size for each name and slot (see `Runner`)."""

from __future__ import annotations

from typing import Any

from ..frontends.trace import State, Tensor
from ..frontends.trace import numpy as _tnp

tnp: Any = _tnp


class SlotStates:
    """The states of a library: float32 [slots + 1, ...] by name, made when a layer first asks for them.

    The last row is of slot -1: of rows of a batch that stand for no sequence, so that they change nothing of others.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._states: dict[str, State] = {}

    def of(self, slots: Tensor) -> Rows:
        """The rows of `slots` [batch]."""
        return Rows(self, tnp.where(slots < 0, self.slots, slots))

    def reset(self, slots: Tensor) -> None:
        """Make the rows of `slots` [batch] zeros in every state."""
        rows = self.of(slots)
        for name, state in self._states.items():
            rows.write(name, tnp.zeros((slots.shape[0], *state.shape[1:])))

    def state(self, name: str, shape: tuple[int, ...]) -> State:
        if name not in self._states:
            self._states[name] = State(name, (self.slots + 1, *shape))
        return self._states[name]


class Rows:
    """The states' rows of one batch of sequences: read by name and shape [batch, *shape], replaced by name."""

    def __init__(self, states: SlotStates, rows: Tensor) -> None:
        self._states, self._rows = states, rows

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._states.state(name, shape)[self._rows]

    def write(self, name: str, value: Tensor) -> None:
        self._states.state(name, value.shape[1:])[self._rows] = value


__all__ = ["Rows", "SlotStates"]
