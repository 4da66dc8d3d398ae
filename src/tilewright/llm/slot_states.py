"""`SlotStates`: what compiled libraries keep of running sequences beside pages, an array of fixed size for each name and slot (see `Runner`)."""

from __future__ import annotations

from ..frontends.trace import State, Tensor
from ..frontends.trace import numpy as tnp


class SlotStates:
    """The states of a library: float32 [slots + 1, ...] of each layer and name, made when a layer first asks for them.

    The last row is of slot -1: of rows of a batch that stand for no sequence, so that they change nothing of others.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._states: dict[str, State] = {}

    def read(self, layer: int, name: str, shape: tuple[int, ...], slots: Tensor) -> Tensor:
        """The rows of `slots` [batch]: [batch, *shape]."""
        key = f"layer{layer}.{name}"
        if key not in self._states:
            self._states[key] = State(key, (self.slots + 1, *shape))
        return self._states[key][self._rows(slots)]

    def write(self, layer: int, name: str, value: Tensor, slots: Tensor) -> None:
        """Replace rows that were read before."""
        self._states[f"layer{layer}.{name}"][self._rows(slots)] = value

    def reset(self, slots: Tensor) -> None:
        """Make the rows of `slots` [batch] zeros in every state."""
        for state in self._states.values():
            state[self._rows(slots)] = tnp.zeros((slots.shape[0], *state.shape[1:]))

    def _rows(self, slots: Tensor) -> Tensor:
        return tnp.where(slots < 0, self.slots, slots)


__all__ = ["SlotStates"]
