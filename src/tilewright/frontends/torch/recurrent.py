"""Recurrent layers stay whole in torch's exporter, which would unroll them into one copy of the cell per time
step, and so does the CTC loss, which it refuses.

During an export, calls of ``torch.lstm`` and its relatives, and of ``torch.ctc_loss``, go to custom operators
for which torch knows only the shapes.
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

_LOSSES = {"ctc_loss": "Tensor", "ctc_loss_of_lists": "SymInt[]"}


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
    for name, lengths in _LOSSES.items():
        arguments = f"Tensor log_probs, Tensor targets, {lengths} input_lengths, {lengths} target_lengths"
        library.define(
            f"{name}({arguments}, int blank=0, int reduction=1, bool zero_infinity=False) -> Tensor"
        )
        library.impl(name, torch.ctc_loss, "CompositeExplicitAutograd")
        torch.library.register_fake(f"tilewright::{name}", _shape_of_loss, lib=library)
    _libraries.append(library)
    return custom


def _loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int | str = 1,
    zero_infinity: bool = False,
) -> Any:
    """Compute the CTC loss by the custom operator for its kind of lengths. `reduction` is a name in
    `torch.nn.functional.ctc_loss`, a number in `torch.ctc_loss`.
    """
    import torch

    own = torch.ops.tilewright
    operator = own.ctc_loss if isinstance(input_lengths, torch.Tensor) else own.ctc_loss_of_lists
    number = ("none", "mean", "sum").index(reduction) if isinstance(reduction, str) else reduction
    return operator(log_probs, targets, input_lengths, target_lengths, blank, number, zero_infinity)


def _shape_of_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: object,
    target_lengths: object,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Any:
    rows = log_probs.shape[1:-1] if reduction == 0 else ()
    return log_probs.new_empty(rows)


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

    losses = (torch.ctc_loss, torch.nn.functional.ctc_loss)
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
            if func in losses:
                return _loss(*args, **(kwargs or {}))
            if func in pools and (pooled := _max_pool1d(*args, **(kwargs or {}))) is not None:
                return pooled
            return func(*args, **(kwargs or {}))

    return Mode()


__all__ = ["keep_calls_whole", "operators"]
