"""Names of the values of an ONNX graph, subgraph or function body while it is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import CompileError
from .values import Absent, Tensor, TensorList

Binding = Tensor | TensorList | Absent | None
"""The value of a name; None is the result of an unsupported node."""


class Scope:
    """Names of one graph or function body.

    A subgraph also sees the names of the enclosing graph (`outer`), its opsets, and the attributes of the
    function call around it (`references`).
    """

    def __init__(
        self,
        outer: Scope | None = None,
        opsets: Mapping[str, int] | None = None,
        path: str = "",
        references: Mapping[str, Any] | None = None,
    ) -> None:
        self.names: dict[str, Binding] = {}
        self.omitted: set[str] = set()
        """Inputs of a function for which its call passes no value."""
        self.references: Mapping[str, Any] = references or (outer.references if outer is not None else {})
        self.outer = outer
        self.path: str = path or (outer.path if outer is not None else "")
        self.opsets: Mapping[str, int] = (
            opsets if opsets is not None else outer.opsets if outer is not None else {}
        )

    def is_present(self, name: str) -> bool:
        """Whether a node's input is present: it has a name, and the name is not that of an omitted function
        input.
        """
        if not name or name in self.omitted:
            return False
        return name in self.names or self.outer is None or self.outer.is_present(name)

    def find(self, name: str, user: str) -> Binding:
        """Return the value of `name`, which the node `user` reads.

        Raises:
            CompileError: no scope defines it.
        """
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        raise CompileError(f"node {user} uses '{name}', which no input, initializer or earlier node defines")


__all__ = ["Binding", "Scope"]
