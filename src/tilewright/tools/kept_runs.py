"""Runs of `tilewright bench` that are kept in a file, with the artifact that ran, and their plot."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArtifactError, TilewrightError
from .timings import Turns, joined

if TYPE_CHECKING:
    from ..runtime.model import CompiledModel

FORMAT = 1
WIDTH, ROW, LEFT, TOP = 860, 84, 150, 34
"""Sizes of the plot in pixels: its width, the height of an engine's row, the space for labels."""


def keep(
    path: str | Path, result: Mapping[str, Any], turns: Mapping[str, Turns], library: CompiledModel
) -> str:
    """Write a run to a file, and the artifact that ran beside it, so that a later run can take turns with it.

    Args:
        path: The JSON file.
        result: The figures that the command shows.
        turns: The times by engine.
        library: The model; a copy of its artifact is written if it can be saved.

    Returns:
        The artifact's path; "" if there is none.

    Raises:
        ArtifactError: A file cannot be written.
    """
    path = Path(path)
    # A name that is only this run's: `model.json` must not replace the user's `model.so`.
    artifact = path.with_name(path.name + _suffix(library))
    try:
        getattr(library, "library", library).save(artifact)
        name = artifact.name
    except TilewrightError:
        name = ""  # of a kind that cannot be saved; the times are kept
    kept = {
        "format": FORMAT,
        "result": dict(result),
        "artifact": name,
        "turns": dict(turns),
    }
    try:
        path.write_text(json.dumps(kept) + "\n")
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from error
    return str(artifact) if name else ""


def _suffix(library: CompiledModel) -> str:
    """The suffix of a library's artifact."""
    from ..artifact.kinds import suffixes_of

    return suffixes_of(str(library.metadata.get("target", {}).get("triple", "")))[0]


def read_kept(path: str | Path) -> dict[str, Any]:
    """A run that `keep` wrote: ``result``, ``turns`` and ``artifact``, a path or None.

    Raises:
        ArtifactError: The file cannot be read, or is no kept run.
    """
    path = Path(path)
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be read as a kept run: {error}") from error
    if not isinstance(kept, dict) or kept.get("format") != FORMAT or "turns" not in kept:
        raise ArtifactError(f"{path}: is no run that 'tilewright bench --keep' wrote with this version")
    beside = path.parent / kept["artifact"]
    kept["artifact"] = beside if kept["artifact"] and beside.exists() else None
    return kept


def plot(turns: Mapping[str, Turns], title: str) -> str:
    """An SVG of all calls: a row for each engine, a dot for each call in order, a line at the median.

    Args:
        turns: The times by engine.
        title: The heading.
    """
    rows = {name: joined(parts) for name, parts in turns.items()}
    top = max(_high(times) for times in rows.values())
    height = TOP + ROW * len(rows) + 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="20" font-size="14">{html.escape(title)}</text>',
    ]
    for place, (name, times) in enumerate(rows.items()):
        parts += _row(name, times, TOP + ROW * place, top)
    parts.append(
        f'<text x="{LEFT}" y="{height - 8}" fill="#555">calls in order; the top of each row is '
        f"{top * 1e3:.3g} ms, slower calls lie on it</text></svg>"
    )
    return "\n".join(parts) + "\n"


def _high(times: Sequence[float]) -> float:
    """The limit of a row: outliers do not decide it."""
    ordered = sorted(times)
    return min(ordered[-1], 1.5 * ordered[len(ordered) * 95 // 100]) or 1e-9


def _row(name: str, times: Sequence[float], y: int, top: float) -> list[str]:
    ordered = sorted(times)
    median, floor = ordered[len(ordered) // 2], y + ROW - 12

    def at(seconds: float) -> float:
        return floor - min(seconds / top, 1.0) * (ROW - 20)

    step = (WIDTH - LEFT - 16) / max(len(times), 1)
    dots = "".join(f"M{LEFT + k * step:.1f} {at(x):.1f}h0" for k, x in enumerate(times))
    return [
        f'<text x="8" y="{y + 30}">{html.escape(name)}</text>',
        f'<text x="8" y="{y + 46}" fill="#555">{median * 1e3:.3f} ms</text>',
        f'<path d="M{LEFT} {floor}H{WIDTH - 12}" stroke="#ccc"/>',
        f'<path d="{dots}" stroke="#30638e" stroke-width="3" stroke-linecap="round" stroke-opacity=".6"/>',
        f'<path d="M{LEFT} {at(median):.1f}H{WIDTH - 12}" stroke="#d1495b"/>',
    ]


__all__ = ["keep", "plot", "read_kept"]
