"""`FakeRunner`, a model in NumPy whose logits depend on every token in the pages that it is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import WeightsError
from tilewright.llm.runner import PAGE, Floats, Ints

MASK = (1 << 64) - 1


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def salt_of(folder: Path) -> int:
    """Return what distinguishes the cells of the adapter in a folder, which need not exist."""
    return mix(int.from_bytes(str(folder).encode()) & MASK)


class FakeAdapters:
    """Adapters that change every cell. Folders whose names begin with "bad" cannot be loaded."""

    def __init__(self, count: int, slots: int) -> None:
        self.count, self.of_slot = count, [0] * slots
        self.salts = [0] * (count + 1)

    def read(self, folder: Path) -> Path:
        if folder.name.startswith("bad"):
            raise WeightsError(f"{folder}: damaged")
        return folder

    def write(self, number: int, adapter: Path) -> None:
        if not 1 <= number <= self.count:
            raise Misuse(f"adapter number {number}")
        self.salts[number] = salt_of(adapter)

    def use(self, slot: int, number: int) -> None:
        self.of_slot[slot] = number

    def salt(self, slot: int) -> int:
        return self.salts[self.of_slot[slot]]


class FakeGuessing:
    """The model's own tokens, one at a time, as one call."""

    def __init__(self, runner: FakeRunner, most: int) -> None:
        self.most, self._runner = most, runner

    def guess(self, tokens: Ints, lengths: Ints, pages: Ints, last: Ints, count: int) -> Ints:
        runner, found = self._runner, []
        runner.calls["guess"] = runner.calls.get("guess", 0) + 1
        slots = np.unique(pages[:, 0], return_inverse=True)[1]
        for i in range(count):
            logits = runner.decode(tokens, lengths, pages, slots)
            logits = logits if i else logits[last]
            tokens = logits.argmax(axis=1).astype(np.int32)
            found.append(tokens)
            if not i:
                lengths, pages, slots = lengths[last], pages[last], slots[last]
            lengths = lengths + 1
        return np.stack(found, axis=1)


class Misuse(AssertionError):
    """The engine passed pages or slots that cannot be right."""


class FakeRunner:
    """A runner without a network. A cell of its cache is a hash of its token, its position and all cells
    before it, like a key of a deep layer; logits are a hash of the sum of all cells.

    A wrong page table, a stale page or a lost token therefore changes everything that follows, and equal
    sequences have equal logits to the bit, whatever else is in the batch. If the runner is not `uniform`, a
    decoded cell differs from a prefilled one. `local` is the part of a logit that depends on the last token
    alone, which is the part that a `draft` of the same seed knows.
    """

    def __init__(
        self,
        *,
        vocabulary: int = 64,
        pages: int = 64,
        chunk: int = 128,
        max_batch: int = 8,
        context: int = 1024,
        speculated: int = 8,
        has_state: bool = False,
        uniform: bool = True,
        local: float = 0.5,
        scale: float = 12.0,
        draft: bool = False,
        adapters: int = 0,
        guesses: int = 0,
    ) -> None:
        self.vocabulary, self.pages, self.chunk = vocabulary, pages, chunk
        self.max_batch, self.context, self.has_state = max_batch, context, has_state
        self.rows, self.uniform = max_batch * speculated, uniform
        self.drawing = self.sight = None
        self.guessing = FakeGuessing(self, guesses) if guesses else None
        self.page_access = None
        self.window: int | None = None
        self.source_kind, self.source, self.start = None, 0, []
        self.adapters = FakeAdapters(adapters, max_batch) if adapters else None
        self.local, self.scale, self.draft = local, scale, draft
        self.cells = np.zeros((pages, PAGE), np.uint64)
        self.places = np.full((pages, PAGE), -1, np.int64)
        """The position for which each cell was written; -1 for none."""
        self.states = [0] * max_batch
        self.misuses: list[str] = []
        self.calls: dict[str, int] = dict.fromkeys(("prefill", "decode", "copy_page", "embed", "tokens"), 0)
        self.may_write: Callable[[int], bool] = lambda page: True
        self.before: Callable[[str], None] = lambda call: None
        """Called with the name of each call; may raise."""
        self.bias: Floats = np.zeros(vocabulary, np.float32)
        """Added to all logits."""
        ids = np.arange(vocabulary, dtype=np.uint64)
        self._ids = ids * np.uint64(0xD1342543DE82EF95)

    # Methods that the engine calls.

    def prefill(self, tokens: Ints, start: int, pages: Ints, slot: int, given: Any = None) -> Floats:
        self._called("prefill", len(tokens))
        if not 0 < len(tokens) <= self.chunk:
            self._misuse(f"prefill of {len(tokens)} tokens")
        if len(pages) < -(-(start + len(tokens)) // PAGE):
            self._misuse(f"{len(pages)} pages for {start + len(tokens)} tokens")
        total = self._sum(pages, start)
        for i, token in enumerate(tokens.tolist()):
            total = self._write(token, start + i, total, pages, slot)
        return self._logits(total, int(tokens[-1]), slot)

    def decode(self, tokens: Ints, lengths: Ints, pages: Ints, slots: Ints) -> Floats:
        self._called("decode", len(tokens))
        self._check(lengths, pages, slots)
        found = np.empty((len(tokens), self.vocabulary), np.float32)
        rows = zip(tokens.tolist(), lengths.tolist(), pages, slots.tolist(), strict=True)
        for logits, (token, length, table, slot) in zip(found, rows, strict=True):
            total = self._write(token, length, self._sum(table, length), table, slot, decoded=True)
            logits[:] = self._logits(total, token, slot)
        return found

    def copy_page(self, source: int, target: int) -> None:
        self._called("copy_page")
        if not self.may_write(target) or source == target:
            self._misuse(f"page {source} copied to {target}")
        self.cells[target] = self.cells[source]
        self.places[target] = self.places[source]

    def reset(self, slot: int) -> None:
        self.states[slot] = 0

    def embed(self, tokens: Ints) -> Floats:
        self._called("embed")
        return np.cumsum(tokens).astype(np.float32)[-4:]

    # Methods that tests call.

    def forget(self, page: int) -> None:
        """Record that the page is free: reading it from now on is an error."""
        self.places[page] = -1

    def greedy(self, prompt: list[int], count: int, adapter: str = "") -> list[int]:
        """Return the greedy output of the model with the adapter of a folder, computed without pages."""
        salt = salt_of(Path(adapter)) if adapter else 0
        total, found = 0, []
        tokens = list(prompt)
        state = 0
        for position in range(len(prompt) + count):
            if position >= len(prompt):
                found.append(int(self._of(total, tokens[-1], state).argmax()))
                tokens.append(found[-1])
            total = (
                total + self._cell(total, tokens[position], position, position >= len(prompt), salt)
            ) & MASK
            state = mix(state ^ mix(tokens[position])) if self.has_state else 0
        return found

    def _called(self, name: str, tokens: int = 0) -> None:
        self.calls[name] += 1
        self.calls["tokens"] += tokens
        self.before(name)

    def _misuse(self, what: str) -> None:
        self.misuses.append(what)
        raise Misuse(what)

    def _check(self, lengths: Ints, pages: Ints, slots: Ints) -> None:
        """Check that the rows of a slot are consecutive tokens in the same pages, and that no other slot
        writes to these pages.
        """
        if not 0 < len(slots) <= self.rows or not 0 <= slots.min() <= slots.max() < self.max_batch:
            self._misuse(f"slots {slots.tolist()}")
        if int(lengths.max()) >= self.context:
            self._misuse(f"{lengths.max()} tokens and one more")
        written: dict[int, int] = {}
        for i, slot in enumerate(slots.tolist()):
            if slot in slots[:i] and not (
                slots[i - 1] == slot
                and lengths[i] == lengths[i - 1] + 1
                and (pages[i] == pages[i - 1]).all()
                and not self.has_state
            ):
                self._misuse(f"slots {slots.tolist()} with lengths {lengths.tolist()}")
            at = int(lengths[i]) // PAGE
            if at < len(pages[i]) and written.setdefault(int(pages[i][at]), slot) != slot:
                self._misuse(f"page {pages[i][at]} written by two sequences")

    def _sum(self, pages: Ints, length: int) -> int:
        """Return the sum of the first `length` cells."""
        used = np.asarray(pages[: -(-length // PAGE)])
        if len(used) * PAGE < length or (used < 0).any():
            self._misuse(f"pages {used.tolist()} for {length} tokens")
        if (self.places[used].reshape(-1)[:length] != np.arange(length)).any():
            self._misuse(f"pages {used.tolist()} do not hold {length} tokens")
        return int(self.cells[used].reshape(-1)[:length].sum(dtype=np.uint64))

    def _write(
        self, token: int, position: int, total: int, pages: Ints, slot: int, decoded: bool = False
    ) -> int:
        page = int(pages[position // PAGE]) if position // PAGE < len(pages) else -1
        if page < 0 or not self.may_write(page):
            self._misuse(f"page {page} written")
        if not 0 <= token < self.vocabulary:
            self._misuse(f"token {token}")
        salt = 0 if self.adapters is None else self.adapters.salt(slot)
        cell = self._cell(total, token, position, decoded, salt)
        self.cells[page, position % PAGE] = cell
        self.places[page, position % PAGE] = position
        if self.has_state:
            self.states[slot] = mix(self.states[slot] ^ mix(token))
        return (total + cell) & MASK

    def _cell(self, total: int, token: int, position: int, decoded: bool, salt: int = 0) -> int:
        return mix(total ^ mix(token * 0x10001 + position) ^ (decoded and not self.uniform) ^ salt)

    def _logits(self, total: int, last: int, slot: int) -> Floats:
        return self._of(total, last, self.states[slot] if self.has_state else 0)

    def _of(self, total: int, last: int, state: int) -> Floats:
        whole = self._noise(mix(total ^ state) if not self.draft else 0)
        near = self._noise(mix(last)) ** 32  # Few tokens are likely, so that a draft is often right.
        return self.scale * (self.local * near + (1 - self.local) * whole) + self.bias

    def _noise(self, key: int) -> Any:
        x = self._ids ^ np.uint64(key)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((x ^ (x >> np.uint64(31))) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
