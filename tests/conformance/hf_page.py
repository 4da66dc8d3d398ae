"""Writes the page of the Hugging Face sweep, docs/guide/hugging-face.md, and its section of
docs/guide/coverage.md. `coverage` calls both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

Rows = dict[str, dict[str, Any]]


def is_exported(row: dict[str, Any]) -> bool:
    return row.get("exported", "no") != "no"


def section(found: dict[str, Any]) -> Iterator[str]:
    """The section's lines: counts by family."""
    rows: Rows = found["models"]
    exported = [r for r in rows.values() if is_exported(r)]
    yield ""
    yield (
        "## Hugging Face: "
        f"{sum(r['outcome'] == 'right' for r in exported)} of {len(exported)} that torch exports"
    )
    yield ""
    yield (
        f"Architectures of transformers {found['transformers']} with "
        f"random weights, torch {found['torch']}, {found['date']};"
    )
    others = sum(r["outcome"] == "right" for r in rows.values()) - sum(
        r["outcome"] == "right" for r in exported
    )
    yield (
        f"[Hugging Face models](hugging-face.md) lists each. {others} more, which "
        "torch does not export, are right through `torch.compile`."
    )
    yield ""
    yield "| family | architectures | exported | with all sizes dynamic | right |"
    yield "|---|---|---|---|---|"
    families = list(dict.fromkeys(r["family"] for r in rows.values()))
    for family in families:
        own = [r for r in rows.values() if r["family"] == family]
        out = [r for r in own if is_exported(r)]
        dynamic, right = (
            sum(r.get(k) == v for r in out) for k, v in (("exported", "dynamic"), ("outcome", "right"))
        )
        yield f"| {family} | {len(own)} | {len(out)} | {dynamic} | {right} |"


def page(found: dict[str, Any]) -> Iterator[str]:
    """The page's lines: a table row for each architecture."""
    rows: Rows = found["models"]
    times = {n: r["time"] for n, r in rows.items() if "eager" in r.get("time", {})}
    yield "# Hugging Face models"
    yield ""
    yield (
        f"Models of transformers {found['transformers']}, built from "
        "their configurations with random weights, by"
    )
    yield (
        f"`python -m tests.conformance.hf_sweep` (torch {found['torch']}, "
        f"{found['date']}, {found['machine']}). Small models are"
    )
    yield (
        "compared with eager torch in float32 at two sizes; the error "
        "is relative to an output's largest magnitude."
    )
    yield (
        "Column *exported*: with all sizes dynamic, with some, for "
        "one size (static), or not at all; torch decides."
    )
    yield (
        "Models that are not exported are tried through "
        '`torch.compile(backend="tilewright")`, which may split a model'
    )
    yield (
        "into several graphs and leave operators to torch. "
        "Milliseconds are those of the same architecture at real"
    )
    yield "widths and few layers, on two threads, with interleaved engines (`--time`)."
    if times:
        yield ""
        for engine in ("eager", "inductor"):
            ratios = [t[engine] / t["tilewright"] for t in times.values() if isinstance(t.get(engine), float)]
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
            slower = sum(r < 1 for r in ratios)
            yield (
                f"Against {engine}: {mean:.2f} times as fast in the "
                f"geometric mean of {len(ratios)}, slower in {slower}."
            )
    family = ""
    for name, row in rows.items():
        if row["family"] != family:
            family = row["family"]
            yield ""
            yield f"## {family[0].upper()}{family[1:]}"
            yield ""
            yield (
                "| architecture | class | exported | outcome | error | "
                "Tilewright ms | eager ms | Inductor ms |"
            )
            yield "|---|---|---|---|---|---|---|---|"
        time = row.get("time", {})
        errors = [e for e in row.get("errors", {}).values() if isinstance(e, float)]
        cells = [
            name,
            row["class"],
            row.get("exported", ""),
            _outcome(row),
            f"{max(errors):.0e}" if errors else "",
        ]
        for engine in ("tilewright", "eager", "inductor"):
            cells.append(f"{time[engine]:.2f}" if isinstance(time.get(engine), float) else "")
        yield f"| {' | '.join(str(c).replace('|', '/') for c in cells)} |"
    whys = Counter(_short(r["why"]) for r in rows.values() if "why" in r)
    yield ""
    yield "| why not all sizes are dynamic, or nothing is exported | architectures |"
    yield "|---|---|"
    for why, _ in whys.most_common():
        names = [n for n, r in rows.items() if "why" in r and _short(r["why"]) == why]
        yield f"| {why.replace('|', '/')} | {', '.join(names)} |"


def _outcome(row: dict[str, Any]) -> str:
    if "through" not in row:
        return str(row["outcome"])
    left = f", {', '.join(row['in torch'])} in torch" if "in torch" in row else ""
    return f"{row['outcome']} by {row['through']} ({row['graphs']} graphs{left})"


def _short(why: str) -> str:
    return why.removeprefix("torch: ")[:160]
