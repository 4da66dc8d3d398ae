"""The table of families in docs/llm/families.md, and its figures.

``python -m tests.llm.models.families`` writes the table from the registry and the recorded figures;
``--record`` measures all of them first (8 minutes), ``--record NAME...`` those of some of `tiny.MODELS`,
`pairs.PAIRS` and, after ``images: ``, `small_models.MODELS`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library
from tilewright.llm.models import CausalLM, families
from tilewright.llm.models.encoder_decoder import EncoderDecoder
from tilewright.llm.models.vision import Vision, visions
from tilewright.llm.weights.gguf_names import architectures_of

from ..vision import small_models
from . import pairs, tiny

PAGE = Path(__file__).parents[3] / "docs" / "llm" / "families.md"
FIGURES = Path(__file__).with_name("families.json")
BEGIN, END = (
    "<!-- families: written by python -m tests.llm.models.families -->\n",
    "<!-- end of families -->\n",
)
PROMPT, TOKENS, CHUNK = 100, 32, 64
OF_IMAGES = "images: "
NAMES = (*tiny.MODELS, *pairs.PAIRS, *(OF_IMAGES + name for name in small_models.MODELS))


def figures(name: str) -> dict[str, Any]:
    """Return the `model_type` of a model of `tiny.MODELS`, and, compiled, the largest difference of
    a logit, relative to the largest logit, and the number of equal greedy tokens.
    """
    x = tiny.tokens(1, PROMPT)[0].astype(np.int32)
    with TemporaryDirectory() as folder:
        theirs = tiny.checkpoint(name, Path(folder), context=256)
        options = LibraryOptions(context=192, chunk=CHUNK, max_batch=1, cache_dtype="float32", precision=None)
        expected = tiny.logits(theirs, x[None].astype(np.int64))[0]
        with compile_library(folder, options) as library:
            runner = LibraryRunner(library)
            pages, slot = np.arange(3, dtype=np.int32), np.zeros(1, np.int32)
            found = [runner.prefill(x[k : k + CHUNK], k, pages, 0) for k in range(0, PROMPT, CHUNK)]
            wanted = [expected[min(k + CHUNK, PROMPT) - 1] for k in range(0, PROMPT, CHUNK)]
            tokens = list(x)
            equal = 0
            for _ in range(TOKENS):
                token = int(np.argmax(found[-1]))
                equal += token == int(np.argmax(wanted[-1]))
                tokens.append(token)
                length = np.array([len(tokens) - 1], np.int32)
                found.append(runner.decode(np.array([token], np.int32), length, pages[None], slot)[0])
                wanted.append(tiny.logits(theirs, np.array(tokens)[None])[0, -1])
    largest = max(float(np.abs(w).max()) for w in wanted)
    difference = max(float(np.abs(f - w).max()) for f, w in zip(found, wanted, strict=True)) / largest
    return {"model_type": theirs.config.model_type, "difference": float(f"{difference:.1e}"), "equal": equal}


def figures_of_pair(name: str) -> dict[str, Any]:
    """Return the same as `figures` for a model of `pairs.PAIRS`: the input of its encoder has 100 tokens, or
    140 frames, and its decoder begins with one token.
    """
    given = pairs.source(name, 1, PROMPT)[0]
    with TemporaryDirectory() as folder:
        theirs = pairs.checkpoint(name, Path(folder))
        options = LibraryOptions(
            context=64, max_batch=1, source=128, cache_dtype="float32", precision=None, chunk=CHUNK
        )
        with compile_library(folder, options) as library:
            tokens, found = pairs.greedy(LibraryRunner(library), [given], TOKENS)
        wanted = pairs.logits(theirs, given[None], tokens[:, :-1])
    difference = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    equal = int((tokens[0, 1:] == wanted[0].argmax(-1)).sum())
    return {"model_type": theirs.config.model_type, "difference": float(f"{difference:.1e}"), "equal": equal}


def figures_of_images(name: str) -> dict[str, Any]:
    """Return what `figures` does, of a model of `small_models.MODELS` after prompts with one and with two
    images.
    """
    differences, equal = [], TOKENS
    with TemporaryDirectory() as folder:
        theirs, reader = small_models.checkpoint(name, Path(folder)), small_models.reader_of(Path(folder))
        options = LibraryOptions(
            context=448, chunk=CHUNK, max_batch=1, cache_dtype="float32", precision=None,
            source=small_models.MOST,
        )  # fmt: skip
        with compile_library(folder, options) as library:
            for count in (1, 2):
                images = small_models.PICTURES[:count]
                tokens, placed = small_models.prompt_of(reader, images)
                chosen, found = small_models.greedy(LibraryRunner(library), tokens, placed, TOKENS)
                wanted = small_models.logits(name, theirs, tokens + chosen, len(tokens), images)
                wanted = wanted[len(tokens) - 1 : -1]
                differences.append(float(np.abs(found - wanted).max() / np.abs(wanted).max()))
                equal = min(equal, int((np.array(chosen) == wanted.argmax(-1)).sum()))
    kind = theirs.config.model_type
    whole = f"{kind}/{theirs.config.vision_config.model_type}"
    kind = whole if whole in visions() else kind
    return {"model_type": kind, "difference": float(f"{max(differences):.1e}"), "equal": equal}


def record(names: Iterable[str]) -> None:
    """Measure models and write their figures beside those of the others."""
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for name in names:
        if name.startswith(OF_IMAGES):
            known[name] = figures_of_images(name.removeprefix(OF_IMAGES))
        else:
            known[name] = figures(name) if name in tiny.MODELS else figures_of_pair(name)
        print(name, known[name], flush=True)
        FIGURES.write_text(json.dumps({n: known[n] for n in NAMES if n in known}, indent=1) + "\n")


def table() -> str:
    """Return the table in Markdown, one line for each class of the registry."""
    known = json.loads(FIGURES.read_text())
    names_of: dict[type, list[str]] = {}
    for name, cls in [*families().items(), *visions().items()]:
        if cls.__module__.startswith("tilewright."):
            names_of.setdefault(cls, []).append(name)
    rows = [
        "| class | `model_type` | a token leaves | GGUF | difference | equal tokens |",
        "|---|---|---|---|---|---|",
    ]
    for cls, names in sorted(names_of.items(), key=lambda item: item[0].__name__.lower()):
        of_class = [known[n] for n in known if known[n]["model_type"] in names]
        gguf = dict.fromkeys(name for kind in names for name in architectures_of(kind))
        if issubclass(cls, Vision):
            of_class = [
                known[n] for n in known if n.startswith(OF_IMAGES) and known[n]["model_type"] in names
            ]
        if (
            not issubclass(cls, CausalLM | Vision) or not of_class
        ):  # a decoder that sees in both directions has none
            left, shown = "nothing: an encoder", ["", ""]
        else:
            left = "pages; an encoder of images" if issubclass(cls, Vision) else "pages"
            if issubclass(cls, EncoderDecoder):
                left = f"pages; an encoder of {cls.source_kind}"
            elif issubclass(cls, CausalLM) and cls.has_state:
                left = "pages and state" if _attends(cls) else "state"
            worst, least = max(f["difference"] for f in of_class), min(f["equal"] for f in of_class)
            shown = [f"{worst:.0e}", f"{least} of {TOKENS}"]
        cells = [
            cls.__name__,
            ", ".join(f"`{n}`" for n in names),
            left,
            ", ".join(f"`{g}`" for g in gguf),
            *shown,
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _attends(cls: type[CausalLM]) -> bool:
    """Whether a family has attention: its small models of `tiny.MODELS` name heads of keys."""
    names = [name for name, c in families().items() if c is cls]
    known = json.loads(FIGURES.read_text())
    return any(
        "num_key_value_heads" in tiny.MODELS[n][1]
        for n in tiny.MODELS
        if n in known and known[n]["model_type"] in names
    )


def written(page: str) -> str:
    """Return the text of the page with the table of now."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    if "--record" in sys.argv:
        record(sys.argv[sys.argv.index("--record") + 1 :] or NAMES)
    PAGE.write_text(written(PAGE.read_text()))
