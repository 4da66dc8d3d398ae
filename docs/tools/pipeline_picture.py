"""Draw docs/images/pipeline.svg, the picture of the pipeline: ``python docs/tools/pipeline_picture.py``."""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "images" / "pipeline.svg"

FRONT_ENDS = ("PyTorch", "ONNX", "JAX, TensorFlow", "tw.nn, functions")
LEVELS = (
    # title, what it holds, what is decided, step to the next level, its folder
    (
        "Graph level",
        "operators on tensors",
        "meaning, layout, folding",
        "decompose, lower",
        "passes/tensor/lower_to_tensor.py",
    ),
    (
        "Tensor level",
        "index-mapped computations",
        "fusion: groups of one kernel each",
        "schedule, bufferize",
        "lowering/",
    ),
    (
        "Loop and host level",
        "loop nests; launches and buffers",
        "tiles, vectors, threads; memory",
        "generate code",
        "targets/",
    ),
    ("Target code", "LLVM IR, WGSL", "instructions", "compile, link", "artifact/"),
    ("Artifact", ".so, .wasm, .tar with weights", "loaded by Python, C, JavaScript", "", ""),
)
PASSES = (
    "passes/graph/",
    "passes/tensor/",
    "schedule/, targets/*/rules",
    "targets/llvm/, webgpu/",
    "runtime/",
)
WIDTH, BOX, LEFT, STEP, HEIGHT = 760, 400, 60, 104, 62
"""Pixels: of the picture, of a box, of its left edge, from one level to the next, of a box's height."""


def text(
    x: int,
    y: int,
    content: str,
    size: int = 14,
    weight: str = "normal",
    fill: str = "#1b1f24",
    anchor: str = "middle",
) -> str:
    """One line of text at a point of its base line."""
    style = f'font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(content)}</text>'


def box(x: int, y: int, width: int, height: int, fill: str) -> str:
    """A box with round corners."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="#57606a"/>'


def arrow(x: int, start: int, end: int) -> str:
    """An arrow that points down."""
    return f'<path d="M{x} {start} V{end}" stroke="#57606a" stroke-width="1.5" marker-end="url(#head)"/>'


def picture() -> str:
    """The picture as SVG."""
    top, middle = 84, LEFT + BOX // 2
    height = top + STEP * len(LEVELS) - 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'role="img">',
        "<title>From a model to an artifact: graph, tensor, loop and host level, target code</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto">'
        '<path d="M0 0 L8 4 L0 8 Z" fill="#57606a"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    share = BOX // len(FRONT_ENDS)
    for n, name in enumerate(FRONT_ENDS):
        parts += [
            box(LEFT + n * share + 3, 12, share - 6, 34, "#ddf4ff"),
            text(LEFT + n * share + share // 2, 34, name, 11),
        ]
    parts += [
        arrow(middle, 46, top - 2),
        text(LEFT + BOX + 16, 34, "frontends/", 12, fill="#57606a", anchor="start"),
    ]
    parts.append(text(middle + 10, 70, "import", 12, fill="#57606a", anchor="start"))
    for n, (title, content, decided, step, folder) in enumerate(LEVELS):
        y = top + n * STEP
        parts += [
            box(LEFT, y, BOX, HEIGHT, "#fff8c5" if n < 3 else "#dafbe1"),
            text(middle, y + 20, title, 15, "bold"),
            text(middle, y + 37, content, 12),
            text(middle, y + 54, decided, 12, fill="#57606a"),
            text(LEFT + BOX + 16, y + 36, PASSES[n], 12, fill="#57606a", anchor="start"),
        ]
        if step:
            parts.append(arrow(middle, y + HEIGHT, y + STEP - 2))
            parts.append(
                text(middle + 10, y + HEIGHT + 25, f"{step}  ({folder})", 12, fill="#57606a", anchor="start")
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    PICTURE.write_text(picture())


if __name__ == "__main__":
    main()
