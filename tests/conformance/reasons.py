"""Tables of the reasons for which cases do not pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

_SHOWN = 4
"""The cases that are named for each reason."""


def table(title: str, column: str, outcomes: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A blank line and a table of reasons, the most frequent first, with the names of some cases for each.

    Args:
        title: The heading of the reasons.
        column: The heading of the cases.
        outcomes: Names of cases with the outcome of each.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for name, outcome in outcomes:
        found[outcome.removeprefix("refused: ")].append(name)
    yield ""
    yield f"| {title} | {column} |"
    yield "|---|---|"
    for reason, names in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        yield f"| {reason.replace('|', '/')} | {', '.join(n[:60] for n in sorted(names)[:_SHOWN])}{more} |"


__all__ = ["table"]
