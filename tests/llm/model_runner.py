"""`ModelRunner`, a model definition as a `Runner` of the engine. It runs eagerly, one sequence at a time,
over pages in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.llm.cache import attention
from tilewright.llm.runner import PAGE, Floats, Ints


class _Paged:
    """The `Cache` of one call: `n` tokens of one sequence, after the `length` tokens that its pages hold."""

    def __init__(self, runner: ModelRunner, length: int, n: int, pages: Ints, slot: int) -> None:
        self.runner, self.length, self.n, self.pages, self.slot = runner, length, n, pages, slot
        self.given = None

    @property
    def positions(self) -> Any:
        return np.arange(self.length, self.length + self.n)[None]

    places = positions

    def attend(self, layer: int, q: Any, k: Any, v: Any, **options: Any) -> Any:
        return attention(q, self._appended(layer, "key", k), self._appended(layer, "value", v), **options)

    def _appended(self, layer: int, name: str, new: Any) -> Any:
        new = np.asarray(new)[0]
        shape = (self.runner.pages, PAGE, *new.shape[1:])
        cache = self.runner.cache.setdefault((layer, name), np.full(shape, np.nan, np.float32))
        where = np.arange(self.length, self.length + self.n)
        cache[self.pages[where // PAGE], where % PAGE] = new
        where = np.arange(self.length + self.n)
        return cache[self.pages[where // PAGE], where % PAGE][None]

    def state(self, layer: int, name: str, shape: tuple[int, ...]) -> Any:
        kept = self.runner.states[self.slot].get((layer, name))
        return np.zeros((1, *shape), np.float32) if kept is None else kept

    def set_state(self, layer: int, name: str, value: Any) -> None:
        self.runner.states[self.slot][layer, name] = np.asarray(value)


class ModelRunner:
    def __init__(
        self, model: Any, *, vocabulary: int, pages: int, has_state: bool, max_batch: int = 4
    ) -> None:
        self.model, self.vocabulary, self.pages, self.has_state, self.max_batch = (
            model,
            vocabulary,
            pages,
            has_state,
            max_batch,
        )
        self.chunk, self.context, self.rows, self.uniform = 48, 256, 4 * max_batch, True
        self.drawing = self.guessing = self.adapters = self.page_access = self.window = self.sight = None
        self.source_kind, self.source, self.start = None, 0, []
        self.cache: dict[tuple[int, str], Any] = {}
        self.states: list[dict[tuple[int, str], Any]] = [{} for _ in range(max_batch)]

    def prefill(self, tokens: Ints, start: int, pages: Ints, slot: int, given: Any = None) -> Floats:
        return self._run(tokens, start, pages, slot)[-1]

    def decode(self, tokens: Ints, lengths: Ints, pages: Ints, slots: Ints) -> Floats:
        rows = zip(tokens[:, None], lengths.tolist(), pages, slots.tolist(), strict=True)
        return np.stack([self._run(*row)[0] for row in rows])

    def copy_page(self, source: int, target: int) -> None:
        for cache in self.cache.values():
            cache[target] = cache[source]

    def reset(self, slot: int) -> None:
        self.states[slot].clear()

    def embed(self, tokens: Ints) -> Floats:
        raise NotImplementedError("not an encoder")

    def _run(self, tokens: Ints, length: int, pages: Ints, slot: int) -> Floats:
        found = self.model(tokens[None].astype(np.int64), _Paged(self, length, len(tokens), pages, slot))
        return np.asarray(found)[0]
