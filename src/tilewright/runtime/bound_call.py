"""`BoundCall`: a compiled model with its arguments, for many runs on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


class BoundCall:
    """The result of `CompiledModel.bind`: ``call()`` runs the model on the present contents of `inputs`,
    fills `out` and returns it.

    A run checks and allocates nothing. For other values, write into the bound tensors, which live as long as
    this object. Native code runs in the context of the thread that bound it. A call from another thread,
    while anything else runs in that context, raises an error.
    """

    __slots__ = ("__weakref__", "_check", "_kept", "inputs", "out", "run")

    inputs: tuple[Any, ...]
    """The tensors that the caller bound, in the order of the model's inputs."""
    out: Any
    """The tensor, or the tuple of tensors, that a call fills."""

    def __init__(
        self,
        inputs: tuple[Any, ...],
        out: object,
        run: Callable[[], int],
        check: Callable[[int], None] | None = None,
        kept: object = None,
    ) -> None:
        """Keep the parts of a call.

        Args:
            inputs: The bound inputs.
            out: The tensors that a run fills.
            run: Runs the model and returns its status, 0 for success.
            check: Raises the error of a status that is not 0.
            kept: Objects that have to live as long as the call.
        """
        self.inputs, self.out = inputs, out
        self.run, self._check, self._kept = run, check, kept

    def close(self, refuse: Callable[[], NoReturn]) -> None:
        """Release the library; later calls call `refuse`, which raises."""
        self.run, self._check, self._kept = refuse, None, None

    def __call__(self) -> Any:
        """Run once and return `out`. Raises the errors of a call of the model; ArtifactError: the library has
        been closed.
        """
        status = self.run()
        if status and self._check:
            self._check(status)
        return self.out
