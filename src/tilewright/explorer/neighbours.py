"""Pairs of kernels of which one reads what the other computes, with the reasons for which fusion left them
apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .recorder import Apart


def neighbours(function: Mapping[str, Any], name: str, apart: Iterable[Apart]) -> list[dict[str, Any]]:
    """The pairs of launches of a function that are neighbours.

    Args:
        function: A function of `artifact.structure.read_structure`.
        name: Its name.
        apart: The computations that rules of fusion left apart.

    Returns:
        A dictionary for each pair: ``from`` and ``to``, the numbers of the steps; ``operators``, the numbers
        of two operators, of which the second one reads the first one's result; ``reasons``, pairs of a rule
        and a reason. A pair without reasons is one that no rule has compared.
    """
    rules = _Rules(entry for entry in apart if entry.function == name)
    found = []
    for (first, second), edges in sorted(_pairs(function).items()):
        producers, readers = (function["steps"][k]["operators"] for k in (first, second))
        pair = {"from": first, "to": second, "operators": list(edges[0]) if edges else []}
        found.append(pair | {"reasons": rules.between(producers, readers, edges)})
    return found


class _Rules:
    """The reasons of rules, found by the operators of the computations that they left apart."""

    def __init__(self, apart: Iterable[Apart]) -> None:
        last = {(e.producers, e.readers, e.rule): e.reason for e in apart}
        self.entries = [(set(a), set(b), rule, reason) for (a, b, rule), reason in last.items()]
        self.of_producer: dict[int, list[int]] = {}
        for number, (producers, *_) in enumerate(self.entries):
            for k in producers:
                self.of_producer.setdefault(k, []).append(number)

    def between(
        self, producers: Iterable[int], readers: Iterable[int], edges: Iterable[tuple[int, int]]
    ) -> list[list[str]]:
        """Pairs of a rule and its reason for two sets of operators. Reasons for operators that exchange a
        value, `edges`, come first, and the last of a rule counts.
        """
        second = set(readers)
        from_, to = {a for a, _ in edges}, {b for _, b in edges}
        direct: dict[str, str] = {}
        others: dict[str, str] = {}
        for number in sorted({k for a in producers for k in self.of_producer.get(a, ())}):
            a, b, rule, reason = self.entries[number]
            if not b.isdisjoint(second):
                (others if a.isdisjoint(from_) or b.isdisjoint(to) else direct)[rule] = reason
        return [[*x] for x in {**direct, **{k: v for k, v in others.items() if k not in direct}}.items()]


def _pairs(function: Mapping[str, Any]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """The steps that read what other steps have written, with pairs of operators of the two."""
    steps, operators = function["steps"], function["operators"]
    writer: dict[int, int] = {}  # the last step that has written to a storage
    home: dict[int, int] = {}  # the last step that has computed an operator
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, step in enumerate(steps):
        if step["kind"] != "launch":
            continue
        own = set(step["operators"])
        before = {writer[storage] for storage in step["reads"] if storage in writer}
        found |= {(first, number): [] for first in before}
        for reader in step["operators"]:
            for producer in _computed(operators, home, reader):
                first = home[producer]
                # Results of the function lie in memory of the caller's, which is no storage.
                if producer not in own and (first in before or not steps[first]["writes"]):
                    found.setdefault((first, number), []).append((producer, reader))
        writer |= dict.fromkeys(step["writes"], number)
        home |= dict.fromkeys(own, number)
    return found


def _computed(operators: Sequence[Mapping[str, Any]], home: Mapping[int, int], reader: int) -> Iterator[int]:
    """The operators with a launch that an operator reads, through those without one, such as reshapes."""
    pending, seen = list(operators[reader]["operands"]), set()
    while pending:
        k = pending.pop()
        if k < 0 or k in seen:
            continue
        seen.add(k)
        if k in home:
            yield k
        else:
            pending += operators[k]["operands"]


def why_text(document: Mapping[str, Any], wanted: str = "") -> str:
    """The reasons for which kernels of a document's functions are apart, as lines of text.

    Args:
        document: The document of `explorer.document`.
        wanted: Only pairs with a kernel, operator, layer or line that has this in its name.
    """
    lines = []
    for function in document["functions"]:
        operators, steps = function["operators"], function["steps"]
        for pair in function["apart"]:
            ends = [steps[pair["from"]], steps[pair["to"]]]
            numbers = pair["operators"] or [end["operators"][-1] for end in ends if end["operators"]]
            a, b = (end["kernel"] for end in ends)
            shown = [_named(operators[k]) for k in numbers]
            if not any(wanted in text for text in (a, b, *shown, *(operators[k]["source"] for k in numbers))):
                continue
            lines.append(f"{a} -> {b}: {' | '.join(shown)}")
            lines += [f"  {rule}: {reason}" for rule, reason in pair["reasons"]]
            if not pair["reasons"]:
                lines.append("  no rule has compared the two: a later pass made one of them")
    return "\n".join(lines)


def _named(operator: Mapping[str, Any]) -> str:
    place = operator["place"] or operator["source"]
    return f"{operator['name']} at {place}" if place else str(operator["name"])


__all__ = ["neighbours", "why_text"]
