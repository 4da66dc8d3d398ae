"""`python -m bench.web.llm --site FOLDER --wllama FOLDER...` compares language models with wllama.

One page in headless Chromium loads the engines, which run in workers of their own and take turns; wllama is
llama.cpp compiled for WebAssembly. `FOLDER` of ``--wllama`` is the npm package ``@wllama/wllama``; several
versions can be given. Version 3 has 64-bit addresses, version 2 has 32-bit ones and is faster. The package of
``web/`` must have been built (``npm run build``). Models are written and compiled into the site's folder
first, unless they are there.

With ``--record`` the figures go to ``bench/results/web-llm.md`` and ``.json``, beside those of other models.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

from tests.web.site import PACKAGE

from ..roofline import measure_roof
from .__main__ import HERE, link, opened
from .llm_models import SIZES, TARGETS, file_of, prepare
from .report import RESULTS, processor

PROMPT = 512
"""Tokens of the prompt whose time is measured."""
START, DECODED = 16, 128
"""Tokens of a short prompt, and tokens that are measured after it."""
CONTEXT = 1024
OURS = "tilewright"


def measure(browser: Any, address: str, model: str, threads: int, rounds: int, engines: list[str]) -> Any:
    """For each engine, lists of ms until the first token of a long prompt ("prefill") and of ms of each token
    after a short one ("decode"), and the texts.
    """
    page = browser.new_page()
    page.set_default_timeout(0)
    page.goto(f"{address}/index.html")
    given = {
        "model": model,
        "target": file_of(TARGETS[threads > 1]),
        "threads": threads,
        "prompt": PROMPT,
        "start": START,
        "decoded": DECODED,
        "context": CONTEXT,
        "rounds": rounds,
        "names": engines,
    }
    result = page.evaluate("async given => (await import('/llm.js')).run(given)", given)
    page.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--site", type=Path, required=True, help="folder for the files of the page")
    parser.add_argument("--wllama", type=Path, nargs="+", required=True, help="packages @wllama/wllama")
    parser.add_argument("--models", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    site: Path = arguments.site
    for model in arguments.models:
        prepare(model, site / "models" / model)
    (site / "index.html").write_text("<!doctype html><title>Benchmark</title>")
    shutil.copy(HERE / "llm.js", site / "llm.js")
    link(site, "tilewright", PACKAGE / "bundle")
    engines = [OURS]
    for package in arguments.wllama:
        engines.append(f"wllama-{json.loads((package / 'package.json').read_text())['version']}")
        link(site, engines[-1], package)
    rows = []
    for threads in arguments.threads:
        roof = measure_roof(threads)
        with opened(site, "wasm") as (browser, address):
            for model in arguments.models:
                found = measure(browser, address, model, threads, arguments.rounds, engines)
                rows.append(
                    row_of(model, threads, found) | {"bandwidth": roof.bandwidth, "int8": roof.flops["int8"]}
                )
                rows[-1]["browser"] = f"Chromium {browser.version}"
                print(line_of(rows[-1], engines), flush=True)
    if arguments.record:
        record(rows)


def row_of(model: str, threads: int, found: dict[str, Any]) -> dict[str, Any]:
    """Medians in ms; ratios are the fastest peer's time over ours; and whether the greedy texts of each peer
    are ours.
    """
    medians = {
        kind: {engine: statistics.median(values[kind]) for engine, values in found.items()}
        for kind in ("prefill", "decode")
    }
    ratios = {
        kind: min(ms for engine, ms in times.items() if engine != OURS) / times[OURS]
        for kind, times in medians.items()
    }
    texts = {engine: values["texts"] for engine, values in found.items()}
    same = {engine: some == texts[OURS] for engine, some in texts.items() if engine != OURS}
    return {"model": model, "threads": threads, **medians, "ratios": ratios, "same_texts": same}


def line_of(row: dict[str, Any], engines: list[str]) -> str:
    """A row as a line of the table: rates of the engines in tokens/s, ratios, and shares of the floors."""
    size, cells = SIZES[row["model"]], [row["model"], str(row["threads"])]
    rate = lambda tokens, ms: f"{1000 * tokens / ms:,.0f}" if ms else "—"  # noqa: E731
    for kind, tokens in (("decode", 1), ("prefill", PROMPT)):
        ours = row[kind][OURS]
        if kind == "decode":
            floor = size.step_bytes("int4", 1, START + DECODED / 2) / row["bandwidth"]
        else:  # Registers of 128 bits do a quarter of the work of the widest ones.
            floor = size.flops(PROMPT) / (row["int8"] / 4)
        cells += [rate(tokens, row[kind].get(engine)) for engine in engines]
        cells += [f"{row['ratios'][kind]:.2f}", f"{100_000 * floor / ours:.0f} %"]
    return f"| {' | '.join(cells)} |"


def record(rows: list[dict[str, Any]]) -> None:
    """Write the rows to `RESULTS`, and keep those of other models of the same date, browser and processor."""
    path = RESULTS / "web-llm"
    about = {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "browser": rows[0]["browser"],
    }
    before = json.loads(path.with_suffix(".json").read_text()) if path.with_suffix(".json").exists() else {}
    if about == {key: before.get(key) for key in about}:
        new = {(row["model"], row["threads"]) for row in rows}
        rows = [row for row in before["rows"] if (row["model"], row["threads"]) not in new] + rows
    rows.sort(key=lambda row: (list(SIZES).index(row["model"]), row["threads"]))
    path.with_suffix(".json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    engines = sorted({engine for row in rows for engine in row["decode"]})
    versions = [engine.replace("-", " ") for engine in engines[1:]]
    columns = ["model", "threads"]
    for kind in ("decode", "prefill"):
        columns += [f"{kind}: Tilewright", *versions, "ratio", "floor"]
    lines = [
        "# Language models in a browser",
        "",
        f"Measured {about['date']} on two cores of {about['processor']} in headless {about['browser']}. The",
        "engines are loaded by one page and take turns, with the same int4 weights (GGUF, Q4_0): the",
        "example `small-model` (5.8 M parameters) and a Llama of 100 M parameters with random weights.",
        f"Medians of tokens/s, as the page sees them: of {DECODED} greedy tokens after a prompt of {START}",
        f"(decode), and of a prompt of {PROMPT} until its first token (prefill). Ratio: to the faster",
        "wllama. Command: `python -m bench.web.llm --site FOLDER --wllama FOLDER... --record`.",
        "",
        "Floor: the share of the time that the machine needs at least. Decode: the bytes of the weights at",
        "the bandwidth of memory; the small model's weights stay in caches, so its steps are calls and small",
        "kernels. Prefill: the operations at a quarter of the processor's peak of int8 products, because",
        "WebAssembly's registers have 128 bits.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *(line_of(row, engines) for row in rows),
        "",
        "A dash: wllama 3 ends at texts that are not UTF-8, which the model with random weights produces.",
    ]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
