"""The table of the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

QUANTITIES = ("instructions", "flash", "ram")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as Markdown: each quantity of ours, of the peer, and the quotient."""
    lines = [
        "| network | processor | weights "
        + "".join(f"| {name} | peer | ratio " for name in ("instructions", "flash", "RAM"))
        + "|",
        "|---|---|---|---" + "|---" * 8 + "|",
    ]
    for row in rows:
        cells = [row["network"], row["processor"], f"{row['weight_bits']} bits"]
        for quantity in QUANTITIES:
            own, other = row["ours"][quantity], row.get("peer", {}).get(quantity)
            cells += [f"{own:,}", f"{other:,}" if other else "", f"{own / other:.2f}" if other else ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


__all__ = ["table"]
