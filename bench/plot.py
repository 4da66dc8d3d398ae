"""A picture of the results: how much faster than the best peer, and each peer's time over ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Write an SVG: for each precision a panel, for each model the time of every peer over Tilewright's (1: equally fast)."""
    from .report import OURS, milliseconds

    precisions = [
        p for p in ("float32", "bf16") if any(r["case"]["precision"] == p and OURS in milliseconds(r) for r in rows)
    ]
    if not precisions:
        return
    figure = Figure(figsize=(11, 3.6 * len(precisions)), layout="constrained")
    for axes, precision in zip(figure.subplots(len(precisions), 1, squeeze=False)[:, 0], precisions, strict=True):
        chosen = [r for r in rows if r["case"]["precision"] == precision and OURS in milliseconds(r)]
        peers = list(dict.fromkeys(name for r in chosen for name in milliseconds(r) if name != OURS))
        width = 0.8 / max(1, len(peers))
        for place, peer in enumerate(peers):
            ratios = [r["engines"].get(peer, {}).get("ratio", 0) for r in chosen]
            positions = [index + (place - (len(peers) - 1) / 2) * width for index in range(len(chosen))]
            axes.bar(positions, ratios, width, label=peer)
        axes.axhline(1, color="black", linewidth=1)
        axes.set_yscale("log", base=2)
        axes.set_yticks([0.5, 1, 2, 4, 8], ["½", "1", "2", "4", "8"])
        axes.set_ylim(0.4, 12)
        axes.set_xticks(range(len(chosen)), [r["case"]["model"] for r in chosen], rotation=20)
        case = chosen[0]["case"]
        axes.set_title(f"{precision}, batch {case['batch']}, {case['threads']} threads")
        axes.set_ylabel("time ÷ Tilewright's")
        axes.legend(fontsize="small", ncols=4)
    figure.savefig(path, format="svg", metadata={"Date": None})
