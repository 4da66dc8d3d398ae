"""Draw docs/images/levels.svg, fusion.svg, arena.svg and roofline.svg by the command
``python docs/tools/model_pictures.py``.

They show one matmul at each level, one layer of BERT before and after fusion, the arena of BERT over the
steps of a call, and how near the models of the benchmark come to the roofline. The first three are compiled
for AArch64, whatever machine draws them, so that a test can compare them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parents[1] / "images"
RESULTS = Path(__file__).parents[2] / "bench" / "results" / "models-avx512-avx-vnni.json"
TARGET = "aarch64-linux"
INK, QUIET, HOT, COOL, SOFT = "#1b1f24", "#57606a", "#d9542b", "#9db8dd", "#eef0f3"


def text(x: float, y: float, content: str, size: int = 12, fill: str = INK, style: str = "") -> str:
    """One line of text that begins at a point of its base line."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" {style}>{escape(content)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str = QUIET) -> str:
    """A box with its left upper corner at a point."""
    at = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {at} rx="3" fill="{fill}" stroke="{stroke}"/>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = QUIET, more: str = "") -> str:
    """A line between two points."""
    at = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {at} stroke="{stroke}" {more}/>'


def svg(title: str, width: float, height: float, parts: list[str]) -> str:
    """A picture of parts on white ground."""
    size = f'viewBox="0 0 {width:.0f} {height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def lowered(model: Any, inputs: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    """A model's compilation for `TARGET`, without code, and the structure of its function."""
    from tilewright.artifact.structure import read_structure
    from tilewright.driver.compile import Compilation
    from tilewright.driver.frontend_registry import import_model
    from tilewright.driver.options import CompileOptions
    from tilewright.driver.structure import describe_structure, number_operators
    from tilewright.lowering.memory_plan import plan_memory
    from tilewright.targets.registry import resolve

    compilation = Compilation(CompileOptions(target=resolve(TARGET)))
    module = import_model(model, inputs, None, None)
    compilation._optimize(module)
    number_operators(module)
    compilation.graph = module.clone()
    made = compilation._lower(module)
    plan = plan_memory(made.module, compilation.target.info.alignment)
    packed = describe_structure(compilation.graph, made.module, plan)
    return compilation, read_structure({"structure": packed})["main"]


def bert(layers: int) -> tuple[Any, tuple[Any, ...]]:
    """BERT-base with so many layers, without weights, for one text of 128 tokens."""
    import torch
    from transformers import BertConfig, BertModel

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = BertConfig(num_hidden_layers=layers, vocab_size=100)
            self.bert = BertModel(config, add_pooling_layer=False)

        def forward(self, ids: Any) -> Any:
            return self.bert(ids).last_hidden_state

    return Hidden().eval(), (torch.zeros(1, 128, dtype=torch.int64),)


def levels() -> str:
    """One product with an epilogue as text at the graph, tensor and loop level."""
    import numpy as np

    import tilewright as tw
    from tilewright.ir.printer import print_op

    weight = tw.State("weight", (64, 48), "float32")

    def model(x: tw.Tensor) -> tw.Tensor:
        return tw.nn.functional.relu(x @ weight.value)

    compilation, _ = lowered(model, (np.zeros((32, 64), np.float32),))
    assert compilation.graph is not None
    (texts,) = compilation.kernel_texts().values()
    shown = {
        "Graph: operators on tensors": print_op(compilation.graph),
        "Tensor: what one kernel computes": texts["tensor"],
        "Loop: the kernel's loops and tiles": texts["loop"],
    }
    parts, y, width = [], 14.0, 900
    for title, content in shown.items():
        lines = [x for x in content.split("\n") if x.strip()][:16]
        height = 16 * len(lines) + 34
        parts += [
            box(10, y, width - 20, height, SOFT),
            text(20, y + 19, title, 14, style='font-weight="bold"'),
        ]
        style = 'font-family="monospace" xml:space="preserve"'
        parts += [
            text(20, y + 40 + 16 * k, x if len(x) <= 122 else x[:121] + "…", 11, style=style)
            for k, x in enumerate(lines)
        ]
        y += height + 10
    return svg("A matrix product with ReLU at the graph, tensor and loop level", width, y + 4, parts)


def fusion(structure: dict[str, Any]) -> str:
    """The operators of the second layer of a BERT, and the kernels that compute them."""
    operators = structure["operators"]

    def inside(k: int) -> bool:
        return ".layer.1." in operators[k]["place"] and operators[k]["name"] != "constant"

    kernels = [
        (step["kernel"], [k for k in step["operators"] if inside(k)])
        for step in structure["steps"]
        if any(inside(k) for k in step.get("operators", ()))
    ]
    rows, home = [], dict[int, int]()
    for number, (_, found) in enumerate(kernels):
        for k in found:
            home.setdefault(k, number)
    for k in sorted(home, key=lambda k: (home[k], k)):
        rows.append(k)
    parts = [
        text(20, 26, "operators of one layer", 14, style='font-weight="bold"'),
        text(430, 26, "kernels after fusion", 14, style='font-weight="bold"'),
    ]
    top, step = 40, 26
    for row, k in enumerate(rows):
        place = operators[k]["place"].partition(".layer.1.")[2].rpartition("/")[0]
        parts += [
            box(20, top + row * step, 300, step - 6, "#fff8c5"),
            text(28, top + row * step + 14, f"{operators[k]['name']}  ·  {place}", 12),
        ]
    for number, (name, _) in enumerate(kernels):
        own = [row for row, k in enumerate(rows) if home[k] == number]
        if not own:
            continue
        y1, y2 = top + own[0] * step, top + own[-1] * step + step - 6
        parts += [
            box(430, y1, 300, y2 - y1, "#dafbe1"),
            text(440, (y1 + y2) / 2 + 4, name, 13),
            *(line(322, top + row * step + 10, 428, (y1 + y2) / 2) for row in own),
        ]
    count = len([1 for number in range(len(kernels)) if number in home.values()])
    height = top + len(rows) * step + 30
    parts.append(text(20, height - 12, f"{len(rows)} operators, {count} kernels", 12, QUIET))
    return svg("A layer of BERT before and after fusion", 760, height, parts)


def arena(structure: dict[str, Any]) -> str:
    """The buffers in the arena of a BERT over the steps of a call."""
    storages, steps = structure["storages"], len(structure["steps"])
    whole = max(s["offset"] + s["bytes"] for s in storages)
    live = [sum(s["bytes"] for s in storages if s["first"] <= k <= s["last"]) for k in range(steps)]
    peak = live.index(max(live))
    left, top, width, height = 80, 40, 660, 300

    def across(step: float) -> float:
        return left + width * step / steps

    def down(offset: float) -> float:
        return top + height * (1 - offset / whole)

    parts = [text(left, 24, "bytes of the arena over the steps of a call; red: in use at the peak", 13)]
    for s in storages:
        fill = HOT if s["first"] <= peak <= s["last"] else COOL
        x1, x2 = across(s["first"]), across(s["last"] + 1)
        y1, y2 = down(s["offset"] + s["bytes"]), down(s["offset"])
        parts.append(box(x1, y1, x2 - x1, y2 - y1, fill, "#ffffff"))
    for k in range(5):
        size = whole * k / 4
        parts += [
            line(left - 5, down(size), left, down(size)),
            text(12, down(size) + 4, f"{size / 1e6:.2f} MB", 11, QUIET),
        ]
    for k in range(0, steps, max(1, steps // 10)):
        parts += [
            line(across(k), top + height, across(k), top + height + 5),
            text(across(k) - 4, top + height + 18, str(k), 11, QUIET),
        ]
    separate = sum(s["bytes"] for s in storages)
    note = f"{len(storages)} buffers of {separate / 1e6:.1f} MB together lie in {whole / 1e6:.1f} MB"
    parts.append(text(left, top + height + 38, note, 12, QUIET))
    return svg("The arena of BERT", left + width + 20, top + height + 50, parts)


def roofline() -> str:
    """The share of the roofline that the models of the benchmark reach at batch 1, from its results."""
    shares: dict[str, dict[str, float]] = {}
    for row in json.loads(RESULTS.read_text())["rows"]:
        found = row["engines"].get("tilewright") or {}
        if row["case"]["batch"] == 1 and (share := found.get("roofline_share")):
            shares.setdefault(row["case"]["model"], {})[row["case"]["precision"]] = share
    order = sorted(shares, key=lambda name: -max(shares[name].values()))
    left, top, width, step = 150, 60, 560, 34
    parts = [
        text(left, 24, "share of the roofline: the least time that the machine allows, over the time", 13),
        *(x for k, (name, fill) in enumerate({"float32": COOL, "bf16": HOT}.items())
          for x in (box(left + 100 * k, 34, 12, 12, fill), text(left + 18 + 100 * k, 44, name))),
    ]  # fmt: skip
    most = max(1.0, *(share for found in shares.values() for share in found.values()))
    ticks = math.ceil(most / 0.25)
    for k in range(ticks + 1):
        x = left + width * k / ticks
        parts += [
            line(x, top, x, top + step * len(order), "#d0d7de"),
            text(x - 12, top + step * len(order) + 18, f"{25 * k} %", 11, QUIET),
        ]
    for row, name in enumerate(order):
        parts.append(text(12, top + row * step + 19, name, 12))
        for k, (precision, fill) in enumerate({"float32": COOL, "bf16": HOT}.items()):
            share = shares[name].get(precision, 0.0)
            parts.append(box(left, top + row * step + 3 + 13 * k, width * share / (ticks * 0.25), 12, fill))
    return svg(
        "Models of the benchmark under the roofline", left + width + 40, top + step * len(order) + 30, parts
    )


def pictures() -> dict[str, Callable[[], str]]:
    """The makers of the pictures by file."""
    structure: dict[str, Any] = {}

    def of_bert() -> dict[str, Any]:
        if not structure:
            structure.update(lowered(*bert(3))[1])
        return structure

    return {
        "levels.svg": levels,
        "fusion.svg": lambda: fusion(of_bert()),
        "arena.svg": lambda: arena(of_bert()),
        "roofline.svg": roofline,
    }


def main() -> None:
    for name, make in pictures().items():
        (IMAGES / name).write_text(make())


if __name__ == "__main__":
    main()
