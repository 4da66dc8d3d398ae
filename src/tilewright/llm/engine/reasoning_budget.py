"""`ReasoningBudget`: the most tokens of a model's reasoning, after which its end is written for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReasoningBudget:
    """A limit of the reasoning at the beginning of an output.

    Args:
        tokens: The most tokens of reasoning, at least 0.
        opening: The text that opens reasoning.
        closing: The text that ends it.
        end: The tokens that are written when the budget is used up; their text contains `closing`.
        begun: Whether the prompt has opened the reasoning. Otherwise an output that does not begin with
            `opening` has none.
    """

    tokens: int
    opening: str
    closing: str
    end: tuple[int, ...]
    begun: bool = False


class BudgetState:
    """The use of a budget by one output."""

    def __init__(self, budget: ReasoningBudget) -> None:
        self.end = budget.end
        self._budget = budget
        self._inside, self._over = budget.begun, False
        self._count, self._text = 0, ""

    def spent(self) -> bool:
        """Whether the reasoning has to end before its first token; true once."""
        spent = self._inside and not self._over and self._count >= self._budget.tokens
        self._over = self._over or spent
        return spent

    def add(self, text: str) -> bool:
        """Count a token with its text; return whether the reasoning has to end now."""
        if self._over:
            return False
        self._text += text
        if self._inside:
            self._count += 1
        else:
            begin, opening = self._text.lstrip(), self._budget.opening
            if not begin.startswith(opening):
                self._over = not opening.startswith(begin)
                return False
            self._inside, self._text = True, begin.removeprefix(opening)
        if self._budget.closing in self._text:
            self._over = True
            return False
        self._text = self._text[-len(self._budget.closing) :]
        self._over = self._count >= self._budget.tokens
        return self._over


__all__ = ["BudgetState", "ReasoningBudget"]
