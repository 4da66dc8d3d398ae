"""Writes docs/guide/coverage.md from the outcomes of the suites beside this file: ``python -m
tests.conformance.coverage``.
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from . import device_table, hf_page, reasons
from .onnx_draws import DRAWN

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "guide" / "coverage.md"


def page() -> Iterator[str]:
    """The lines of the page."""
    yield "# Coverage"
    yield ""
    yield "Results of test suites from other projects, run by `tests/conformance`. Every case is compiled for"
    yield (
        "this machine and run, and its results are compared with "
        "the suite's own tolerances. Compiling a model"
    )
    yield (
        "with anything unsupported fails with a message. `python -m "
        "tests.conformance.coverage` writes this page."
    )
    onnx = HERE / "onnx_suite.json"
    if onnx.exists():
        yield from _onnx(json.loads(onnx.read_text()))
    yield from device_table.section()
    opinfo = HERE / "opinfo_suite.json"
    if opinfo.exists():
        yield from _opinfo(json.loads(opinfo.read_text()))
    yield from _gradients(json.loads((HERE / "opinfo_gradients.json").read_text()))
    for name, section in (("stablehlo_suite", _stablehlo), ("jax_programs", _jax)):
        yield from section(json.loads((HERE / name).with_suffix(".json").read_text()))
    yield from _numpy(json.loads((HERE / "numpy_names.json").read_text()))
    models = HERE / "hf_sweep.json"
    if models.exists():
        yield from hf_page.section(json.loads(models.read_text()))
    yield from _CONVERSIONS.splitlines()


_CONVERSIONS = """
## Floats that an integer type does not hold

In PyTorch, NumPy and ONNX Runtime the result of `torch.tensor(300.0).to(torch.uint8)` depends on the processor.
Models of all three, and traced functions, follow one rule here, on every target and in every pass
(`src/tilewright/frontends/conversions.py`):

| to | a number within | is | beyond |
|---|---|---|---|
| 2 to 16 bits | int32 | truncated toward zero, then the lower bits: -1.5 is 255 and 300.0 is 44 as uint8 | the lower bits of int32's nearest number |
| uint32 | int64 | likewise | the lower bits of int64's nearest number |
| int32, int64, uint64 | the type itself | truncated toward zero | the type's nearest number |

NaN is 0. Within these ranges this is what the three do on x86 and ARM. Beyond them ARM does the same; x86 gives
the least number of int32 or int64 for every number and NaN. StableHLO and JAX have a rule of their own: the
nearest number of the type itself."""  # noqa: E501


def filled(lines: Iterator[str]) -> str:
    """The text of the page: paragraphs are wrapped at 110 columns, tables and headings are unchanged."""
    written: list[str] = []
    for prose, block in groupby(lines, lambda line: bool(line) and not line.startswith(("|", "#"))):
        text = list(block)
        if prose:
            text = textwrap.wrap(" ".join(text), 110, break_long_words=False, break_on_hyphens=False)
        written += text
    return "\n".join(line.rstrip() for line in written) + "\n"


FOLDERS = {
    "interpret": "written by hand (`tests/interpret`), those of one device",
    "quantized": "quantized and others (`testdata/quantized`)",
    "testdata": "generated from JAX's tests (`testdata`)",
}


def _stablehlo(found: dict[str, Any]) -> Iterator[str]:
    passed = sum(counts.get("pass", 0) + counts.get("close", 0) for counts in found["by_folder"].values())
    yield ""
    yield f"## StableHLO: {passed} of {found['cases']}"
    yield ""
    yield (
        f"The tests of StableHLO's own interpreter, {found['by']}, "
        f"{found['date']}. Most of them allow three units in"
    )
    yield (
        'the last place; "close" results are sums and compositions '
        "in another order, within 1e-5 (float32) of the"
    )
    yield "result's largest number."
    yield ""
    yield "| tests | pass | close | not |"
    yield "|---|---|---|---|"
    for folder, counts in found["by_folder"].items():
        yield (
            f"| {FOLDERS[folder]} | {counts.get('pass', 0)} | "
            f"{counts.get('close', 0)} | {counts.get('other', '')} |"
        )
    yield from _reasons(found["not_passed"], ("interpret/", "quantized/", "testdata/"))


def _jax(found: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"## JAX: {found['passed']} of {found['cases']}"
    yield ""
    yield (
        f"{found['programs']} programs and the gradients of those that "
        "have one (`tests/conformance/jax_programs.py`),"
    )
    yield f"compiled and run, against jax {found['jax']}, {found['date']}."
    if found["not_passed"]:
        yield from _reasons(found["not_passed"], ())


def _reasons(outcomes: dict[str, str], prefixes: tuple[str, ...]) -> Iterator[str]:
    """A table of reasons for failures; names of cases lose their prefixes."""
    for prefix in prefixes:
        outcomes = {name.removeprefix(prefix): outcome for name, outcome in outcomes.items()}
    return reasons.table("not passing because", "cases", outcomes.items())


def _onnx(found: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"## ONNX: {found['passed']} of {found['cases']}"
    yield ""
    yield (
        f"The tests bundled with onnx {found['onnx']} (nodes, small "
        f"models, exports of PyTorch), {found['date']}."
    )
    yield (
        f"{found['in_python']} of the passing cases have strings or "
        "image files, which no target supports: the"
    )
    yield "interpreter runs these operators in Python, between compiled parts."
    yield ""
    yield "| opset | pass | not |"
    yield "|---|---|---|"
    for opset, counts in sorted(
        found["by_opset"].items(), key=lambda item: (not item[0].isdigit(), item[0].zfill(3))
    ):
        yield f"| {opset} | {counts.get('pass', 0)} | {counts.get('other', '')} |"
    if drawn := sum(outcome == DRAWN for outcome in found["not_passed"].values()):
        yield ""
        yield (
            f"{drawn} of the cases that do not pass draw random numbers. "
            "Types, shapes and distributions are right, but"
        )
        yield (
            "the suite compares with one draw of NumPy's, which no other "
            "generator repeats. ONNX's own runner compares"
        )
        yield "the numbers too, and would count these cases as failed."
    doctor = json.loads((HERE / "doctor_suite.json").read_text())
    yield ""
    yield (
        "`tilewright doctor` predicts whether a case will compile: "
        f"right for {doctor['right']} of {doctor['cases']}"
    )
    yield f"({doctor['date']}, `python -m tests.conformance.doctor_suite`)."
    alone = found["without_examples"]
    kinds = Counter(_kind_of_refusal(outcome) for outcome in alone["not_passed"].values())
    yield ""
    yield (
        "These cases are compiled with the case's inputs as "
        f"examples. Without examples {alone['passed']} pass"
    )
    yield (
        f"({alone['by']}, {alone['date']}, `--without-examples`): axes, "
        "shapes, counts and factors that are inputs are"
    )
    yield f"computed by the run. The others: {', '.join(f'{n} {kind}' for kind, n in kinds.most_common())}."
    yield from reasons.table(
        "not passing because",
        "cases",
        (
            (name.rpartition("/")[2].removeprefix("test_"), outcome)
            for name, outcome in found["not_passed"].items()
        ),
    )


def _kind_of_refusal(outcome: str) -> str:
    """The reason, in a few words, why a case does not pass without example inputs."""
    for part, kind in (
        ("is a sequence", "have lists of tensors, whose length an example tells"),
        ("is optional", "have optional inputs"),
        ("is compiled in", "need a value (the message says so)"),
        ("drawn", "draw random numbers"),
        ("Gradient", "are derivatives"),
        ("numbers differ", "differs by the interpreter's rounding after every step"),
    ):
        if part in outcome:
            return kind
    return "have sizes that are not seen to be equal"


def _opinfo(found: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "## PyTorch: OpInfo"
    yield ""
    yield (
        "Samples of each operator in torch's own database, evenly "
        "spread, exported by torch.export. Samples that it"
    )
    yield (
        'does not export are not counted. "Wrong" results in bfloat16 '
        "are off by one unit in the last place of a sum"
    )
    yield (
        "to which something is added after (eager mode rounds once), "
        "or eager mode rounds to the nearest by luck."
    )
    yield ""
    yield "| element type | torch | date | by | operators | whole | samples | pass |"
    yield "|---|---|---|---|---|---|---|---|"
    for dtype, row in found.items():
        cells = [
            dtype,
            *(row[key] for key in ("torch", "date", "by", "operators", "whole", "samples", "passed")),
        ]
        yield f"| {' | '.join(map(str, cells))} |"
    for dtype, row in found.items():
        yield from _reasons_of_operators(dtype, row)


def _reasons_of_operators(dtype: str, row: dict[str, Any]) -> Iterator[str]:
    """A table of the reasons why samples in an element type do not pass."""
    return reasons.table(
        f"{dtype}: not passing because",
        "operators",
        (
            (name, outcome)
            for name, outcomes in row["not_passed"].items()
            for outcome in outcomes
            if outcome != "pass" and not outcome.startswith("not exported")
        ),
    )


def _gradients(found: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "## PyTorch: gradients of OpInfo's operators"
    yield ""
    yield (
        "Gradients of all operators of the database that torch differentiates and that draw no random"
        " numbers, against torch.autograd: to 1e-9 of the largest element in float64, to 1e-5 in float32. The"
        " first sample of each is compiled and differentiated twice, the others are interpreted (`python -m"
        " tests.conformance.opinfo_gradients`). Gradients that equal central differences where torch's do not"
        " are named below: elements that are written twice or over, and a constant that torch rounds."
    )
    yield ""
    yield "| element type | torch | date | operators | whole | samples | pass |"
    yield "|---|---|---|---|---|---|---|"
    for dtype, row in found.items():
        cells = [row[key] for key in ("torch", "date", "operators", "whole", "samples", "passed")]
        yield f"| {' | '.join(map(str, [dtype, *cells]))} |"
    for dtype, row in found.items():
        yield from _reasons_of_operators(dtype, row)


def _numpy(found: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"## NumPy's names: {found['has']} of {found['has'] + len(found['lacks'])}"
    yield ""
    yield (
        f"Functions of NumPy {found['numpy']} and `numpy.linalg` that "
        "accept other packages' arrays, on `tw.Tensor`."
    )
    yield f"These raise TypeError: {', '.join(found['lacks'])}."


def main() -> None:
    PAGE.write_text(filled(page()))
    models = HERE / "hf_sweep.json"
    if models.exists():
        PAGE.with_name("hugging-face.md").write_text(filled(hf_page.page(json.loads(models.read_text()))))


if __name__ == "__main__":
    main()
