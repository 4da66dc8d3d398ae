"""`SlotStates`: the unpaged states of running sequences, an array of fixed size for each name and slot (see
`Runner`).
"""

from __future__ import annotations

from ..frontends.trace import State, Tensor
from ..frontends.trace import numpy as tnp


class SlotStates:
    """The states of a library: float32 [slots + 1, ...] by name, created when a layer first asks for them.

    The last row belongs to slot -1, the rows of a batch without a sequence, so that they change no other
    state.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._states: dict[str, State] = {}

    def of(self, slots: Tensor) -> Rows:
        """The rows of `slots` [batch]."""
        return Rows(self, tnp.where(slots < 0, self.slots, slots))

    def reset(self, slots: Tensor) -> None:
        """Set the rows of `slots` [batch] to zero in every state."""
        rows = self.of(slots)
        for name, state in self._states.items():
            rows.write(name, tnp.zeros((slots.shape[0], *state.shape[1:])))

    def state(self, name: str, shape: tuple[int, ...]) -> State:
        if name not in self._states:
            self._states[name] = State(name, (self.slots + 1, *shape))
        return self._states[name]


class Rows:
    """The states of one batch of sequences: read by name and shape [batch, *shape], replaced by name."""

    def __init__(self, states: SlotStates, rows: Tensor) -> None:
        self._states, self._rows = states, rows

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._states.state(name, shape)[self._rows]

    def write(self, name: str, value: Tensor) -> None:
        self._states.state(name, value.shape[1:])[self._rows] = value


__all__ = ["Rows", "SlotStates"]
