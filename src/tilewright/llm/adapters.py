"""Low-rank adapters of a compiled library: several are loaded at a time, and each row of a call has its own.

The matrices of all adapters are states of the library. Row i of a linear layer's input x gives
``x[i] @ W.T + (x[i] @ A[k]) @ B[k]``, where k is the row's adapter. Number 0 is none: its matrices are zero.
Where rows have adapters of their own, the products with A and B are grouped, as those of experts are, so that
only matrices that rows choose are read (as in Punica, Chen et al. 2023).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CompileError, WeightsError
from ..frontends.nn import Linear, Module
from ..frontends.nn import functional as F
from ..frontends.trace import State, Tensor
from ..frontends.trace import numpy as tnp
from ..frontends.trace.dtypes import DTypeLike
from .models.base import LanguageModel, build
from .quantized_linear import QuantizedLinear, replace_linears
from .runner import ADAPTER, Ints
from .weights.adapters import of_another, read_adapter

if TYPE_CHECKING:
    from ..runtime.model import CompiledModel

TERMS = 128
"""The most terms of one sum of a product with A. More terms make fewer and longer sums."""
WIDTH = 64
"""The columns of a panel of B. Wider panels make fewer products; in one panel of all columns, successive rows
are so far apart that they displace each other in the caches.
"""
_KINDS = (QuantizedLinear, Linear)
_rows: ContextVar[Tensor | None] = ContextVar("rows", default=None)


@contextmanager
def adapters_of(rows: Tensor | None) -> Iterator[None]:
    """Make linear layers called in the ``with`` block add the changes of adapters.

    Args:
        rows: The numbers of the adapters of sequences, integers [batch], or of all of them, an integer (shape
            ()); None: no changes.
    """
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)


class AdaptedLinear(Module):
    """A linear layer, and the states of the changes to its matrix.

    Args:
        base: The layer, called with x [..., in].
        name: The layer's name in the model.
        inputs: The last size of its input.
        outputs: The last size of its result.
        count: The number of adapters.
        rank: The largest rank.
        dtype: The type of the states, in which the changes are computed.
    """

    def __init__(
        self, base: Module, name: str, inputs: int, outputs: int, count: int, rank: int, dtype: DTypeLike
    ) -> None:
        super().__init__()
        self.base = base
        self.a = State(f"{ADAPTER}{name}.A", (count + 1, inputs, rank), dtype)
        panels = _parts(outputs, WIDTH)
        self.b = State(f"{ADAPTER}{name}.B", (count + 1, panels, rank, outputs // panels), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, ..., out] for `x` [batch, ..., in]; all tokens of a sequence have its adapter."""
        y: Tensor = self.base(x)
        rows = _rows.get()
        if rows is None:
            return y
        narrow = tnp.astype(x, self.a.dtype)
        change = self._by_one(narrow, rows) if rows.ndim == 0 else self._by_rows(narrow, rows)
        result: Tensor = y + tnp.astype(change, y.dtype)
        return result

    def _by_one(self, x: Tensor, number: Tensor) -> Tensor:
        """The change [..., out] by one adapter of the tokens x [..., in] of a prompt."""
        b = tnp.moveaxis(self.b.value[number], 0, 1)
        result: Tensor = x @ self.a.value[number] @ b.reshape(b.shape[0], -1)
        return result

    def _by_rows(self, x: Tensor, numbers: Tensor) -> Tensor:
        """The change [batch, ..., out] of x [batch, ..., in] by an adapter for each sequence [batch]."""
        shape = x.shape[:-1]
        index = tnp.broadcast_to(numbers.reshape(-1, *[1] * (len(shape) - 1)), shape).reshape(-1)
        change = self._expanded(self._reduced(x.reshape(-1, x.shape[-1]), index), index)
        result: Tensor = change.reshape(*shape, -1)
        return result

    def _reduced(self, x: Tensor, index: Tensor) -> Tensor:
        """The products with A, [rows, rank], of rows x [rows, in].

        A result has few elements and many terms. It is computed as a sum of products of `TERMS` terms, so
        that each thread can take a share of them.
        """
        count, inputs, rank = self.a.shape
        parts = _parts(inputs, TERMS)
        pieces = tnp.moveaxis(x.reshape(x.shape[0], parts, -1), 1, 0)
        products = _products(pieces, self.a.value.reshape(count, parts, -1, rank), index)
        result: Tensor = tnp.astype(tnp.astype(products, "float32").sum(0), x.dtype)
        return result

    def _expanded(self, x: Tensor, index: Tensor) -> Tensor:
        """The products with B, [rows, out], of rows x [rows, rank]."""
        panels = self.b.shape[1]
        products = _products(tnp.broadcast_to(x, (panels, *x.shape)), self.b.value, index)
        result: Tensor = tnp.moveaxis(products, 0, 1).reshape(x.shape[0], -1)
        return result


def _parts(size: int, of: int) -> int:
    """The number of equal parts `of` so many elements that `size` elements have; 1 if there is a rest."""
    return 1 if size % of else size // of


def _products(x: Tensor, matrices: Tensor, index: Tensor) -> Tensor:
    """The products [parts, rows, n] of x [parts, rows, k] with parts of the rows' matrices.

    Args:
        x: The factors of each part.
        matrices: The matrices [count, parts, k, n].
        index: The number of each row's matrix, integers [rows].
    """
    count, parts, k, n = matrices.shape
    chosen = (index * parts + tnp.arange(parts, dtype=index.dtype)[:, None]).reshape(-1)
    flat = F.grouped_matmul(x.reshape(-1, k), matrices.reshape(count * parts, k, n), chosen)
    result: Tensor = flat.reshape(*x.shape[:2], n)
    return result


def adapt(
    model: LanguageModel, count: int, rank: int, dtype: DTypeLike, targets: Sequence[str] | None = None
) -> None:
    """Let linear layers of a model have the changes of `count` adapters.

    Args:
        model: The model; its layers are replaced.
        count: The number of adapters that can be loaded at a time.
        rank: The largest rank of an adapter.
        dtype: The type in which the changes are computed.
        targets: The last parts of the layers' names; None: all layers but the head.

    Raises:
        CompileError: No layer has one of these names.
    """
    ends = {path.rpartition(".")[2] for path, layer in model.named_modules() if isinstance(layer, _KINDS)}
    if unknown := sorted(set(targets or ()) - ends):
        raise CompileError(
            f"adapter_targets: the model has no linear layer {', '.join(unknown)}; it has "
            f"{', '.join(sorted(ends))}"
        )

    def replacement(path: str, layer: Any) -> Module | None:
        if path == "lm_head" if targets is None else path.rpartition(".")[2] not in targets:
            return None
        outputs, inputs = (layer.qvalues if isinstance(layer, QuantizedLinear) else layer.weight).shape
        return AdaptedLinear(layer, path, inputs, outputs, count, rank, dtype)

    for kind in _KINDS:
        replace_linears(model, replacement, kind)


class LibraryAdapters:
    """The `AdapterSlots` of a library.

    Args:
        library: The library.
        config: The model's config.json.
        count: The number of adapters that can be loaded at a time.
        rank: The largest rank.
        slots: The number of running sequences.
    """

    def __init__(
        self, library: CompiledModel, config: Mapping[str, Any], count: int, rank: int, slots: int
    ) -> None:
        self.count, self.rank = count, rank
        self._library, self._config = library, config
        self._shapes = {
            state["name"]: tuple(state["shape"][1:])
            for state in library.metadata["states"]
            if state["name"].startswith(ADAPTER)
        }
        self._of_slot: Ints = np.zeros(slots, np.int32)
        self._loading = threading.Lock()

    def use(self, slot: int, number: int) -> None:
        self._of_slot[slot] = number

    def of(self, slots: Ints) -> Ints:
        """The numbers of the adapters of running sequences; 0 for a row without one (slot -1)."""
        result: Ints = np.where(slots < 0, 0, self._of_slot[slots])
        return result

    def write(self, number: int, adapter: Mapping[str, np.ndarray[Any, Any]]) -> None:
        state = self._library.state
        with self._loading:
            for name in self._shapes:
                whole = state[name]
                whole[number] = 0
                if (value := adapter.get(name)) is not None:
                    whole[number][tuple(map(slice, value.shape))] = value
                state[name] = whole

    def read(self, folder: Path) -> Mapping[str, np.ndarray[Any, Any]]:
        """The matrices A [in, rank] and B [panels, rank, columns] of an adapter by the names of their states;
        the second ones include the scale.

        Raises:
            WeightsError: A file is missing or damaged, the adapter is of another model, or a rank is too
                large.
        """
        adapter = read_adapter(folder)
        model, result = build(self._config), {}
        for name, change in adapter.items():
            destination = model.destination(f"{name}.weight")
            path = "" if destination is None else destination.name.removesuffix(".weight")
            a, b = f"{ADAPTER}{path}.A", f"{ADAPTER}{path}.B"
            if destination is None or destination.part is not None or a not in self._shapes:
                raise WeightsError(
                    f"{of_another(adapter)}: {name} is not one of its linear layers that take adapters"
                )
            outputs, inputs = change.shape
            panels, _, columns = self._shapes[b]
            here = [panels * columns, self._shapes[a][0]]
            if [outputs, inputs] != here:
                raise WeightsError(
                    f"{of_another(adapter)}: {name} is {here} here, the change {[outputs, inputs]}"
                )
            if change.rank > self.rank:
                raise WeightsError(
                    f"{adapter.path}: {name} has rank {change.rank}; the library was compiled for at most "
                    f"{self.rank}: compile it with --max-adapter-rank {adapter.rank}"
                )
            result[a] = change.a.read().T
            expanding = change.b.read().astype(np.float32) * np.float32(change.scale)
            result[b] = np.moveaxis(expanding.reshape(panels, columns, -1), 2, 1)
        return result


__all__ = ["AdaptedLinear", "LibraryAdapters", "adapt", "adapters_of"]
