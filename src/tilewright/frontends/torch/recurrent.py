"""Recurrent layers stay whole in torch's exporter, which would unroll them into one copy of the cell per time
step.

During an export, calls of ``torch.lstm`` and its relatives go to custom operators for which torch knows only
the shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SCHEMAS = {
    "lstm": "Tensor[] hx",
    "gru": "Tensor hx",
    "rnn_tanh": "Tensor hx",
    "rnn_relu": "Tensor hx",
}
_REST = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool "
    "batch_first"
)


@cache
def operators() -> dict[Any, Any]:
    """Return the custom operator for each of torch's functions; the first call registers them with torch."""
    import torch

    library = torch.library.Library("tilewright", "FRAGMENT")
    custom = {}
    for name, hidden in _SCHEMAS.items():
        results = "(Tensor, Tensor, Tensor)" if name == "lstm" else "(Tensor, Tensor)"
        library.define(f"{name}(Tensor input, {hidden}, {_REST}) -> {results}")
        library.impl(name, getattr(torch, name), "CompositeExplicitAutograd")
        torch.library.register_fake(f"tilewright::{name}", _shapes_of(name), lib=library)
        custom[getattr(torch, name)] = getattr(torch.ops.tilewright, name).default
    _libraries.append(library)
    return custom


_libraries: list[Any] = []  # The operators exist as long as their library.


def _shapes_of(name: str) -> Any:
    def fake(
        input: torch.Tensor,
        hx: torch.Tensor | Sequence[torch.Tensor],
        params: Sequence[torch.Tensor],
        *options: float,
    ) -> Any:
        *_, bidirectional, _ = options
        states: list[torch.Tensor] = list(hx) if name == "lstm" else [hx]
        width = states[0].shape[2] * (2 if bidirectional else 1)
        outputs = input.new_empty((*input.shape[:2], width))
        return (outputs, *(input.new_empty(h.shape) for h in states))

    return fake


def _max_pool1d(
    input: torch.Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Pool dynamic sizes by torch's function for images, since the one for sequences would fix them; None for
    fixed sizes.
    """
    import torch

    if return_indices or not any(isinstance(s, torch.SymInt) for s in input.shape):
        return None
    options = [
        x if isinstance(x, int) else x[0] for x in (kernel_size, stride or kernel_size, padding, dilation)
    ]
    windows = [(other, size) for other, size in zip((1, 1, 0, 1), options, strict=True)]
    return torch.max_pool2d(input.unsqueeze(-2), *windows, ceil_mode).squeeze(-2)


def keep_calls_whole() -> Any:
    """Return a context in which torch's recurrent functions call `operators`, and functions that would fix
    dynamic sizes are replaced.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    # Create them now: Dynamo traces bodies of loops and branches in this mode and cannot trace the creation.
    known = operators()

    pools = (torch.max_pool1d, torch.nn.functional.max_pool1d)

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self,
            func: Callable[..., Any],
            types: object,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:
            operator = known.get(func)
            # The form for packed sequences has the batch sizes before the states.
            if operator is not None and len(args) == 9 and isinstance(args[2], (list, tuple)):
                return operator(*args)
            if func in pools and (pooled := _max_pool1d(*args, **(kwargs or {}))) is not None:
                return pooled
            return func(*args, **(kwargs or {}))

    return Mode()


__all__ = ["keep_calls_whole", "operators"]
