"""`BoundCall`: a compiled model with its arguments, to be run again and again on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


class BoundCall:
    """What `CompiledModel.bind` returns: `call()` runs the model on what `inputs` hold now, fills `out` and returns it.

    Nothing is checked or allocated any more. For other values, write into the bound tensors; they stay alive as long as this
    object. Native code runs in the context of the thread that bound it: called from another thread at the same time as
    anything else in that context, it is refused.
    """

    __slots__ = ("__weakref__", "_check", "_kept", "inputs", "out", "run")

    inputs: tuple[Any, ...]
    """The tensors that were given, in the order of the model's inputs."""
    out: Any
    """The tensor, or the tuple of tensors, that a call fills."""

    def __init__(
        self,
        inputs: tuple[Any, ...],
        out: Any,
        run: Callable[[], int],
        check: Callable[[int], None] | None = None,
        kept: Any = None,
    ) -> None:
        """`run`: runs the model and returns its status; `check` raises for one that is not 0; `kept`: what has to live as long."""
        self.inputs, self.out = inputs, out
        self.run, self._check, self._kept = run, check, kept

    def close(self, refuse: Callable[[], NoReturn]) -> None:
        """Let go of the library: what is called from now on is refused by `refuse`, which raises."""
        self.run, self._check, self._kept = refuse, None, None

    def __call__(self) -> Any:
        """Run once. Raises what a call of the model raises; ArtifactError: the library has been closed."""
        status = self.run()
        if status and self._check:
            self._check(status)
        return self.out
