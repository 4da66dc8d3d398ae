"""`python -m bench.llm.speculation`: tokens per second with speculation, relative to plain decoding.

A model and a draft of a quarter of its size are trained on a few modules of the standard library
(`bench.llm.pair`). Their weights are served in float32 and in bfloat16; the model's exceed the third-level
cache of many machines, the draft's fit in it. They are asked to continue modules that they were trained on
and others, and to repeat a text that they have in the prompt. A draft with the same shape and random weights,
whose guesses are wrong, shows what speculation costs where it loses. Answers of all engines must have the
same tokens. Engines take turns, an answer at a time, so that ratios hold on a machine that does other work;
figures are medians over answers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Request
from tilewright.llm.library import LibraryOptions, compile_library, open_library, save_library
from tilewright.llm.weights import open_checkpoint
from tilewright.targets.cpu.machine import common, this_machine

from ..machines import features, machine, results_file
from ..report import table
from .model import kept_or_temporary
from .pair import BATCH, COUNT, LENGTH, PROMPT, VOCABULARY, pair, prompts, training_tokens

TEXTS = ("training modules", "unseen modules", "repetition")
WEIGHTS = {"float32": None, "bfloat16": "bf16"}
"""The precisions of libraries by the data types of their weights."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.llm.speculation", description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="steps of training of each model")
    parser.add_argument("--tokens", type=int, default=384, help="tokens of an answer")
    parser.add_argument("--guesses", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60, help="time for each text")
    parser.add_argument(
        "--weights", choices=WEIGHTS, nargs="+", default=list(WEIGHTS), help="data types to measure"
    )
    parser.add_argument("--folder", type=Path, help="keeps models and libraries for the next run")
    parser.add_argument("--build", action="store_true", help="only train and compile")
    options = parser.parse_args(arguments)
    with kept_or_temporary(options.folder) as folder:
        _run(options, Path(folder))


def _run(options: argparse.Namespace, folder: Path) -> None:
    checkpoints = pair(folder, options.steps)
    checkpoints["random draft"] = _random(folder)
    built = {
        weights: {
            name: _built(at, weights, 0 if name == "model" else options.guesses)
            for name, at in checkpoints.items()
        }
        for weights in WEIGHTS
    }
    if options.build:
        return
    path = results_file("speculation")
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [row for row in rows if row["weights"] not in options.weights]
    for weights in options.weights:
        for text in TEXTS:
            rows += _measured(text, built[weights], folder, options, weights)
    result = {"note": datetime.date.today().isoformat(), "machine": machine(), "tokens": options.tokens,
              "guesses": options.guesses, "training_steps": options.steps,
              "training_tokens": training_tokens(folder), "cache": _largest_cache(),
              "rows": rows}  # fmt: skip
    path.write_text(json.dumps(result, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(result))
    print(markdown(result))


def _largest_cache() -> int:
    """Bytes of the machine's largest cache."""
    caches = this_machine(common(32, 1024)).caches
    return max(cache.size for cache in caches)


def _random(folder: Path) -> Path:
    """A checkpoint of the draft's shape without training."""
    import torch
    import transformers

    path = folder / "random draft"
    if not (path / "config.json").exists():
        torch.manual_seed(1)
        config = transformers.LlamaConfig.from_pretrained(folder / "draft")
        transformers.LlamaForCausalLM(config).save_pretrained(path)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / "draft" / name, path / name)
    return path


def _built(path: Path, weights: str, guesses: int) -> Path:
    library_path = path / weights / "model.so"
    if not library_path.exists():
        library_path.parent.mkdir(exist_ok=True)
        options = LibraryOptions(
            context=1024, chunk=128, max_batch=4, precision=WEIGHTS[weights], guesses=guesses
        )
        checkpoint = open_checkpoint(path)
        with compile_library(checkpoint, options) as library:
            save_library(library, checkpoint, library_path)
    return library_path


def _measured(
    text: str, paths: dict[str, Path], folder: Path, options: argparse.Namespace, weights: str
) -> list[dict[str, Any]]:
    """The figures of all engines on one kind of text."""
    speculations = {
        "plain": None,
        "prompt lookup": Speculation(tokens=options.guesses),
        "draft": Speculation(open_library(paths["draft"])[0], options.guesses),
        "random draft": Speculation(open_library(paths["random draft"])[0], options.guesses),
        "random draft, always": Speculation(
            open_library(paths["random draft"])[0], options.guesses, adaptive=False
        ),
    }
    engines = {
        name: Engine(*open_library(paths["model"])[:2], EngineOptions(speculation=speculation))
        for name, speculation in speculations.items()
    }
    asked = prompts(folder, seen=text == "training modules")
    if text == "repetition":
        asked = [prompt[: PROMPT // 2] * 4 for prompt in asked]
    rates: dict[str, list[float]] = {name: [] for name in engines}
    end, turn = time.perf_counter() + options.seconds, 0
    while turn < 3 or time.perf_counter() < end:
        request = Request(
            asked[turn % len(asked)],
            SamplingParameters(temperature=0),
            max_tokens=options.tokens,
            ignore_eos=True,
        )
        answers = {name: _answer(engine, request) for name, engine in engines.items()}
        first = answers["plain"][0]
        for name, (tokens, rate) in answers.items():
            assert tokens == first, f"{name} has changed the answer"
            if turn:  # the first answers include what is done once
                rates[name].append(rate)
        turn += 1
    rows = []
    for name, engine in engines.items():
        counts = engine.stats()
        ratios = [a / b for a, b in zip(rates[name], rates["plain"], strict=True)]
        rows.append(
            {
                "weights": weights,
                "megabytes": paths["model"].with_suffix(".weights").stat().st_size / 1e6,
                "draft_megabytes": paths["draft"].with_suffix(".weights").stat().st_size / 1e6,
                "text": text,
                "engine": name,
                "tokens_per_second": statistics.median(rates[name]),
                "ratio": statistics.median(ratios),
                "accepted": counts.accepted_tokens / max(1, counts.proposed_tokens),
                "proposed": counts.proposed_tokens,
                "answers": len(ratios),
            }
        )
    return rows


def _answer(engine: Engine, request: Request) -> tuple[list[int], float]:
    """The tokens of an answer, and how many of them arrived per second after the first ones."""
    tokens: list[int] = []
    begin, first = 0.0, 0
    for delta in engine.submit(request):
        tokens += delta.tokens
        if not begin:
            begin, first = time.perf_counter(), len(tokens)
    return tokens, (len(tokens) - first) / (time.perf_counter() - begin)


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    here = result["machine"]
    head = ["text", "engine", "tokens/s", "of plain", "accepted guesses", "answers"]
    parts = [
        "# Speculation",
        f"{result['note']}, {here['processor']} ({features(here['flags'])}), {here['cores']} cores.",
        "Llamas of 10 and 2 layers, 44.9 and 9.5 million parameters, vocabulary "
        f"{VOCABULARY}, both trained for {result['training_steps']} steps of {BATCH * LENGTH} tokens on "
        f"{COUNT} modules of the standard library with {result['training_tokens']} tokens. Prompts are the "
        f"first {PROMPT} tokens of modules of this text, of modules that no model has seen, and the "
        f"beginnings of the latter four times. One user, greedy answers of {result['tokens']} tokens, at "
        f"most {result['guesses']} guesses a step. The ratio is the median over answers, each relative to "
        "the plain engine's answer of the same turn. `python -m bench.llm.speculation` measures it.",
    ]
    for weights in WEIGHTS:
        if rows := [row for row in result["rows"] if row["weights"] == weights]:
            parts.append(f"## Weights in {weights}")
            parts.append(
                f"The model has {rows[0]['megabytes']:.0f} MB of weights, the draft "
                f"{rows[0]['draft_megabytes']:.0f} MB; the processor's largest cache has "
                f"{result['cache'] / 1e6:.0f} MB."
            )
            parts.append(table(head, [_line(row) for row in rows]))
    return "\n\n".join(parts) + "\n"


def _line(row: dict[str, Any]) -> list[str]:
    accepted = f"{100 * row['accepted']:.0f} %" if row["proposed"] else ""
    rate, ratio = f"{row['tokens_per_second']:.0f}", f"{row['ratio']:.2f}"
    return [row["text"], row["engine"], rate, ratio, accepted, str(row["answers"])]


if __name__ == "__main__":
    main()
