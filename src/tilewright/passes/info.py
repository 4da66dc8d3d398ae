"""Descriptions of passes: names, levels, conditions, and the properties of the target that passes read."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..ir.core import Module
from ..ir.passes import Pass, pass_name
from ..ir.target_info import TargetInfo

if TYPE_CHECKING:
    from ..ir.types import DType
    from .tensor.pack_operands import PanelRule, RowMajorRule

Level = Literal["graph", "tensor"]
"""The dialect of the modules that a pass changes: of operators, or of computations over index expressions."""


@dataclass(frozen=True)
class PassContext:
    """The properties of the target and the options of a compilation that passes may read."""

    info: TargetInfo = field(default_factory=TargetInfo)
    """The description of the device."""
    precision: DType | None = None
    """The 16-bit type that contractions read their operands in; None keeps the model's own types."""
    panel: PanelRule | None = None
    """The target's layout of packed right operands of contractions; None: operands are not packed."""
    row_groups: bool = True
    """Whether one worker can compute whole rows, so that reductions share a kernel with their neighbours."""
    in_place: bool = True
    """Whether inputs and outputs of a kernel may be the same memory."""
    row_major: RowMajorRule | None = None
    """Which right operands of contractions are row-major matrices instead of panels; None: none is."""


class Condition(enum.Enum):
    """When a pass runs at all; the values are texts for lists of passes."""

    ALWAYS = "always"
    PACKED_OPERANDS = "on targets that pack operands of contractions"
    LOWER_PRECISION = "when a lower precision is asked for"
    GPU = "on GPUs"
    UNSORTED = "on targets without a sorting statement"
    IN_PLACE = "on targets whose kernels may overwrite their inputs"
    OPERANDS_IN_PLACE = "on GPUs, which read operands of contractions where they lie"

    def holds(self, context: PassContext) -> bool:
        """Whether passes of this condition run in `context`."""
        match self:
            case Condition.ALWAYS:
                return True
            case Condition.PACKED_OPERANDS:
                return context.panel is not None
            case Condition.LOWER_PRECISION:
                return context.precision is not None
            case Condition.GPU:
                return context.info.gpu is not None
            case Condition.UNSORTED:
                return not context.row_groups or context.info.gpu is not None
            case Condition.IN_PLACE:
                return context.in_place
            case Condition.OPERANDS_IN_PLACE:
                return context.info.gpu is not None and context.panel is None


@dataclass(frozen=True)
class PassInfo:
    """A pass of the pipelines.

    `function` changes a module in place. It is called with the module, and with the fields of `PassContext`
    that are listed in `arguments` as keyword arguments.
    """

    name: str
    """The name in reports, metadata and ``disable``; by default the function's, with ``-`` for ``_``."""
    level: Level
    function: Callable[..., object]
    min_opt: int = 0
    """The lowest level of optimization that runs it, 0 to 3."""
    condition: Condition = Condition.ALWAYS
    """The targets, or the precision, that it runs for."""
    arguments: tuple[str, ...] = ()
    required: bool = False
    """Whether nothing can be compiled without it, because it lowers a module from one level to the next."""

    @property
    def description(self) -> str:
        """The first sentence of the function's docstring, in one line; "" without a docstring."""
        text = " ".join((self.function.__doc__ or "").partition("\n\n")[0].split())
        sentence = re.match(r".*?[.:](?=\s|$)", text)
        return (sentence[0] if sentence else text).rstrip(".:")

    def bound(self, context: PassContext) -> Pass:
        """A function of the module alone, which has the pass's name.

        Args:
            context: The values of the keyword arguments that the pass takes.
        """
        if not self.arguments and pass_name(self.function) == self.name:
            return self.function
        function, arguments = self.function, {name: getattr(context, name) for name in self.arguments}

        def run(module: Module) -> object:
            return function(module, **arguments)

        run.__name__ = self.name.replace("-", "_")
        run.__doc__ = function.__doc__
        return run


def describe(
    function: Callable[..., object],
    level: Level,
    *,
    min_opt: int = 0,
    condition: Condition = Condition.ALWAYS,
    arguments: tuple[str, ...] = (),
    required: bool = False,
) -> PassInfo:
    """The description of a pass that is called what its function is called.

    Args:
        function: Changes a module in place; its result is ignored.
        level: "graph" (operators) or "tensor" (computations).
        min_opt: The lowest level of optimization that runs the pass, 0 to 3.
        condition: The targets, or the precision, that the pass runs for.
        arguments: Names of the fields of `PassContext` that the function takes as keyword arguments.
        required: Whether nothing can be compiled without it.
    """
    return PassInfo(pass_name(function), level, function, min_opt, condition, arguments, required)


__all__ = ["Condition", "Level", "PassContext", "PassInfo", "describe"]
