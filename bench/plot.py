"""Plots of results: every peer's time divided by Tilewright's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

_STYLES = {  # Color and marker of each peer, the same in every plot; markers distinguish peers without color.
    "torch": ("#d1495b", "o"),
    "inductor": ("#edae49", "s"),
    "onnxruntime": ("#00798c", "^"),
    "openvino": ("#30638e", "D"),
    "tvm": ("#8f5fbf", "v"),
    "iree": ("#6a994e", "P"),
    "jax": ("#7f7f7f", "X"),
    "numpy": ("#333333", "*"),
    "llama.cpp-amx": ("#d1495b", "o"),
    "llama.cpp": ("#edae49", "s"),
    "openvino-genai": ("#30638e", "D"),
}
_TICKS = {0.5: "½", 1: "1", 2: "2", 4: "4", 8: "8", 16: "16"}
_LIMITS = (0.5, 20)


def plot(panels: dict[str, dict[str, dict[str, float]]], path: Path) -> None:
    """Write an SVG with one panel per title; each panel shows, by label, every peer's time divided by
    Tilewright's.
    """
    figure = Figure(figsize=(11, 3.4 * len(panels) + 0.4), layout="constrained", facecolor="white")
    subplots = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (title, rows) in zip(subplots, panels.items(), strict=True):
        _draw(axes, title, rows)
    seen = {name for rows in panels.values() for ratios in rows.values() for name in ratios}
    handles = [
        Line2D([], [], color=color, marker=marker, linestyle="", markersize=7, label=name)
        for name, (color, marker) in _STYLES.items()
        if name in seen
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=11)
    figure.savefig(path, format="svg", metadata={"Date": None})


def _draw(axes: Any, title: str, rows: dict[str, dict[str, float]]) -> None:
    for place, ratios in enumerate(rows.values()):
        if not ratios:
            continue
        best = min(ratios.values())
        for name, (color, marker) in _STYLES.items():
            if name in ratios:
                shown = min(
                    ratios[name], _LIMITS[1] * 0.9
                )  # Larger ratios are drawn at the edge of the plot.
                axes.plot(place, shown, marker, color=color, markersize=7, zorder=3, clip_on=False)
        axes.plot([place, place], [1, best], color="#bbbbbb", linewidth=6, solid_capstyle="butt", zorder=1)
        axes.annotate(
            f"{best:.2f}",
            (place, min(best, 1)),
            (0, -7),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=10,
        )
    axes.axhline(1, color="black", linewidth=1, zorder=2)
    axes.set_yscale("log", base=2)
    axes.set_yticks(list(_TICKS), list(_TICKS.values()), fontsize=10)
    axes.minorticks_off()
    axes.set_ylim(*_LIMITS)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_xticks(range(len(rows)), list(rows), rotation=20, ha="right", fontsize=10)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(title, fontsize=12, loc="left")
    axes.set_ylabel("time ÷ Tilewright's\n(above 1: slower)", fontsize=10)
