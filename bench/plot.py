"""A picture of the results: every peer's time over Tilewright's, by model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

_STYLES = {  # color and marker of a peer: the same in every picture, told apart without color
    "torch": ("#d1495b", "o"),
    "inductor": ("#edae49", "s"),
    "onnxruntime": ("#00798c", "^"),
    "openvino": ("#30638e", "D"),
    "tvm": ("#8f5fbf", "v"),
    "iree": ("#6a994e", "P"),
    "jax": ("#7f7f7f", "X"),
    "numpy": ("#333333", "*"),
}
_TICKS = {0.5: "½", 1: "1", 2: "2", 4: "4", 8: "8", 16: "16"}
_LIMITS = (0.5, 20)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Write an SVG: for each precision a panel, for each model the time of every peer over Tilewright's (1: equally fast)."""
    from .report import OURS, milliseconds

    precisions = [
        p for p in ("float32", "bf16") if any(r["case"]["precision"] == p and OURS in milliseconds(r) for r in rows)
    ]
    if not precisions:
        return
    figure = Figure(figsize=(11, 3.4 * len(precisions) + 0.4), layout="constrained", facecolor="white")
    panels = figure.subplots(len(precisions), 1, squeeze=False)[:, 0]
    seen: set[str] = set()
    for axes, precision in zip(panels, precisions, strict=True):
        seen |= _panel(axes, [r for r in rows if r["case"]["precision"] == precision and OURS in milliseconds(r)])
    handles = [
        Line2D([], [], color=color, marker=marker, linestyle="", markersize=7, label=name)
        for name, (color, marker) in _STYLES.items()
        if name in seen
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=11)
    figure.savefig(path, format="svg", metadata={"Date": None})


def _panel(axes: Any, rows: list[dict[str, Any]]) -> set[str]:
    """Draw the rows of one precision; returns the peers in them."""
    from .report import best_peer, ratios

    seen: set[str] = set()
    for place, row in enumerate(rows):
        best = best_peer(row)
        if best is None:
            continue
        for name, (color, marker) in _STYLES.items():
            ratio = ratios(row).get(name)
            if ratio is not None:
                seen.add(name)
                shown = min(ratio, _LIMITS[1] * 0.9)  # what is slower still stands at the edge
                axes.plot(place, shown, marker, color=color, markersize=7, zorder=3, clip_on=False)
        axes.plot([place, place], [1, best[1]], color="#bbbbbb", linewidth=6, solid_capstyle="butt", zorder=1)
        low = min(best[1], 1)
        axes.annotate(
            f"{best[1]:.2f}", (place, low), (0, -7), textcoords="offset points", ha="center", va="top", fontsize=10
        )
    case = rows[0]["case"]
    axes.axhline(1, color="black", linewidth=1, zorder=2)
    axes.set_yscale("log", base=2)
    axes.set_yticks(list(_TICKS), list(_TICKS.values()), fontsize=10)
    axes.minorticks_off()
    axes.set_ylim(*_LIMITS)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_xticks(range(len(rows)), [r["case"]["model"] for r in rows], rotation=20, ha="right", fontsize=10)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    threads = f"{case['threads']} thread{'s' * (case['threads'] > 1)}"
    axes.set_title(f"{case['precision']}, batch {case['batch']}, {threads}", fontsize=12, loc="left")
    axes.set_ylabel("time ÷ Tilewright's\n(above 1: slower)", fontsize=10)
    return seen
