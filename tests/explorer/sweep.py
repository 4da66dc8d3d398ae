"""Pages of large models in headless Chromium: how fast they open and move, and whether questions about a
model are answered.

    python -m tests.explorer.sweep                          # all models; results to tests/explorer/sweep.json
    python -m tests.explorer.sweep -m MiniLM --keep FOLDER  # one model; its page and screenshots stay
    python -m tests.explorer.sweep --again FOLDER           # the models kept there, with today's page

Each model is compiled, and its page measured, in a process of its own. For each page: seconds from the
request to the first picture; frames per second while the graph zooms and moves, as it opens and with all
modules open; bytes of the file; the way from a search over a layer to its assembly and back; the peak of
memory; the slowest kernel; what axe finds serious, on a desktop's and a phone's screen, light and dark. The
exit status is 1 if a page misses a bound.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.machines import machine

from tests.explorer.sweep_models import MODELS
from tests.web.site import chromium, serious

RESULTS = Path(__file__).with_suffix(".json")
MOST_SECONDS, LEAST_FRAMES = 2.0, 30.0
SCREENS = {"desktop": (1280, 800), "phone": (390, 844)}
VIEWS = ("graph", "kernels", "code", "time", "memory", "passes", "metadata")
SEARCHES = {
    "MiniLM": "layer.3 intermediate",
    "ResNet-50": "conv stages.2",
    "UNet": "attn1 mid_block",
    "language model": "matmul layers.11",
    "training step": "blocks.2 matmul",
}
"""The words by which a layer of each model is searched for."""

MOVES = """async (frames) => {
  const canvas = document.querySelector("canvas");
  const { left, top, width, height } = canvas.getBoundingClientRect();
  const at = (share) =>
    ({ clientX: left + width * share, clientY: top + height / 2, bubbles: true, view: window });
  const frame = () => new Promise(requestAnimationFrame);
  await frame();
  const begin = performance.now();
  for (let k = 0; k < frames; k++) {
    const deltaY = k % 40 < 20 ? -40 : 40;
    canvas.dispatchEvent(new WheelEvent("wheel", { ...at(0.5), deltaY, cancelable: true }));
    await frame();
  }
  canvas.dispatchEvent(new MouseEvent("mousedown", at(0.5)));
  for (let k = 0; k < frames; k++) {
    window.dispatchEvent(new MouseEvent("mousemove", at(0.5 + 0.4 * Math.sin(k / 6))));
    await frame();
  }
  window.dispatchEvent(new MouseEvent("mouseup", at(0.5)));
  return (2 * frames * 1000) / (performance.now() - begin);
}"""
"""Zooms by the wheel and moves by the mouse, one event a frame; gives frames per second."""


def visit(browser: Any, file: Path, screen: str = "desktop", scheme: str = "light") -> tuple[Any, float]:
    """An opened page, and the seconds from the request to its first picture."""
    width, height = SCREENS[screen]
    context = browser.new_context(
        viewport={"width": width, "height": height}, bypass_csp=True, color_scheme=scheme
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.troubles = []
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.goto(file.resolve().as_uri(), wait_until="commit")
    page.wait_for_function("document.body?.dataset.ready")
    shown = "new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"
    return page, page.evaluate(shown) / 1e3


def measured(browser: Any, name: str, file: Path) -> dict[str, Any]:
    """The figures of a page."""
    opened = []
    for _ in range(3):
        page, seconds = visit(browser, file)
        opened.append(seconds)
        page.context.close()
    page, _ = visit(browser, file)
    found: dict[str, Any] = {
        "bytes": file.stat().st_size,
        "seconds to open": statistics.median(opened),
        "frames per second": page.evaluate(MOVES, 60),
    }
    begin = time.perf_counter()
    page.click("button:has-text('Open all')")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    found["seconds to open all modules"] = time.perf_counter() - begin
    found["frames per second, all open"] = page.evaluate(MOVES, 60)
    found |= _answers(page, name)
    assert not page.troubles, page.troubles
    page.context.close()
    return found


def _answers(page: Any, name: str) -> dict[str, Any]:
    """The answers of a page to the questions of the sweep."""
    begin = time.perf_counter()
    page.fill("input[type=search]", SEARCHES[name])
    page.click(".results button")
    layer = page.inner_text(".panel dd >> nth=1")
    page.click(".panel h3:has-text('Kernel') + p button")
    assembly = page.locator(".pane .cm-content").nth(1).inner_text()
    kernel = page.input_value("select[aria-label=Kernel]")
    assert f"kernel_{kernel}" in assembly, f"{name}: the assembly of {kernel} is not shown"
    page.click("#view .buttons button")
    page.wait_for_selector(".panel dd")
    back = page.inner_text(".panel dd >> nth=1")
    seconds = time.perf_counter() - begin
    page.click("#tab-memory")
    peak = page.inner_text("#view .summary")
    page.click("#tab-kernels")
    row = page.locator("#view tbody tr").first
    slowest = [row.locator("td").nth(k).inner_text() for k in (0, 3, 4)]
    views = {}
    for view in VIEWS:
        begin_view = time.perf_counter()
        page.click(f"#tab-{view}")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        views[view] = time.perf_counter() - begin_view
    return {
        "searched layer": layer,
        "its kernel": kernel,
        "back at": back,
        "seconds from search to assembly and back": seconds,
        "peak of memory": peak,
        "slowest kernel": " ".join(slowest),
        "seconds to show a view": {view: round(s, 3) for view, s in views.items()},
    }


def troubles_of(browser: Any, file: Path, pictures: Path | None) -> list[str]:
    """The serious findings of axe in the views of a page, on each screen in each scheme."""
    found = []
    for screen in SCREENS:
        for scheme in ("light", "dark"):
            page, _ = visit(browser, file, screen, scheme)
            for view in VIEWS:
                page.click(f"#tab-{view}")
                page.wait_for_timeout(50)
                found += [f"{view}, {screen}, {scheme}: {name}" for name, _ in serious(page)]
                if pictures is not None:
                    page.screenshot(path=pictures / f"{file.stem}-{view}-{screen}-{scheme}.png")
            assert not page.troubles, page.troubles
            page.context.close()
    return found


def one(name: str, keep: Path | None, again: Path | None) -> dict[str, Any]:
    """Compile a model, or take the document that `again` keeps of it; write its page and measure it."""
    from tilewright.explorer.page import write_page

    with tempfile.TemporaryDirectory() as temporary:
        folder = again or keep or Path(temporary)
        file = folder / f"{name.replace(' ', '-')}.html"
        kept = file.with_suffix(".json.gz")
        if again is None:
            begin = time.perf_counter()
            made = {"document": MODELS[name](), "seconds": time.perf_counter() - begin}
            with gzip.open(kept, "wt") as to:
                json.dump(made, to)
        else:
            with gzip.open(kept, "rt") as stream:
                made = json.load(stream)
        model = made["document"]
        write_page([model], file)
        counts = {
            "operators": sum(len(f["operators"]) for f in model["functions"]),
            "kernels": len(model["kernels"]),
            "launches": len(model["profile"]["launches"]) if model["profile"] else 0,
            "seconds to compile and time": made["seconds"],
        }
        with chromium() as browser:
            found = measured(browser, name, file)
            found["serious troubles by axe"] = troubles_of(browser, file, again or keep)
    return {"model": name, **counts, **found}


def misses(result: dict[str, Any]) -> list[str]:
    """The bounds that a page misses."""
    found = []
    if result["seconds to open"] > MOST_SECONDS:
        found.append(f"opens in {result['seconds to open']:.2f} s, more than {MOST_SECONDS} s")
    for figure in ("frames per second", "frames per second, all open"):
        if result[figure] < LEAST_FRAMES:
            found.append(f"{figure}: {result[figure]:.0f}, fewer than {LEAST_FRAMES:.0f}")
    return [f"{result['model']}: {text}" for text in [*found, *result["serious troubles by axe"]]]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 3) if isinstance(value, float) else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("-m", "--models", help="names, separated by commas; the default is all")
    parser.add_argument("--keep", type=Path, help="folder in which pages and screenshots stay")
    parser.add_argument("--again", type=Path, help="folder of an earlier --keep: no model is compiled")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    if options.one:
        print(json.dumps(one(options.one, options.keep, options.again)))
        return 0
    names = options.models.split(",") if options.models else list(MODELS)
    if options.again and not options.models:
        names = [name for name in names if (options.again / f"{name.replace(' ', '-')}.json.gz").exists()]
    known = json.loads(RESULTS.read_text())["pages"] if RESULTS.exists() else []
    results = {result["model"]: result for result in known}
    missed = []
    for name in names:
        command = [sys.executable, "-m", "tests.explorer.sweep", "--one", name]
        for option in ("keep", "again"):
            if getattr(options, option):
                command += [f"--{option}", str(getattr(options, option))]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results[name] = json.loads(done.stdout.splitlines()[-1])
        missed += misses(results[name])
        print(name, {k: v for k, v in results[name].items() if "second" in k or k == "bytes"}, flush=True)
        whole = {
            "date": datetime.date.today().isoformat(),
            "machine": machine()["processor"],
            "cores": machine()["cores"],
            "pages": [results[known] for known in MODELS if known in results],
        }
        RESULTS.write_text(json.dumps(_rounded(whole), indent=1) + "\n")
    print("\n".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
