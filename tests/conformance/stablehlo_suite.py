"""The tests of StableHLO's interpreter, from a checkout of its repository: each is compiled, run and compared
with the results that the file expects.

    git clone --depth 1 https://github.com/openxla/stablehlo /tmp/stablehlo
    python -m tests.conformance.stablehlo_suite /tmp/stablehlo
    python -m tests.conformance.stablehlo_suite /tmp/stablehlo --interpret --only scatter_add

The second command runs all tests and updates ``stablehlo_suite.json``.

Outcomes are written to a file beside the data as they come, and the next run continues after an interruption.
``pass`` means within the test's own tolerance, which is mostly three units in the last place, or equality.
Sums in another order exceed it: ``close`` means within `CLOSE`, relative to the largest number of the result.
Tests of several devices are left out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tests.conformance.stablehlo_cases import Case, cases_of, files
from tests.processes import Limits, in_processes
from tilewright.errors import CompileError, UnsupportedOperatorError
from tilewright.frontends.stablehlo import import_stablehlo
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify
from tilewright.runtime.nested import Nested

DATA = Path(__file__).with_suffix(".json")
CLOSE = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
DEVICES = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective",
    "partition_id",
    "reduce_scatter",
    "replica_id",
    "send_recv",
    "infeed",
    "outfeed",
)
"""Names of tests that use several devices, or channels between them."""

WARM = Case(
    "",
    "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }",
    [np.ones(2, np.float32)],
    [],
)


def outcome(case: Case, native: bool) -> str:
    """``pass``, ``close``, ``refused: ...`` with the reason, or a description of the error."""
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
            file.write(case.text)
            file.flush()
            results = (_compiled if native else _interpreted)(Path(file.name), case.inputs)
    except UnsupportedOperatorError as error:
        return (
            "refused: "
            f"{'; '.join(f'{o.operator}: {o.hint}' if o.hint else o.operator for o in error.operators)}"
        )
    except CompileError as error:
        return f"refused: {str(error).splitlines()[0].partition('.mlir: ')[2] or str(error).splitlines()[0]}"
    except Exception as error:  # every exception is recorded as the outcome
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    if len(results) != len(case.expected):
        return f"{len(results)} results instead of {len(case.expected)}"
    found = [_compared(got, *wanted) for got, wanted in zip(results, case.expected, strict=True)]
    return next((f for f in found if f not in ("pass", "close")), "close" if "close" in found else "pass")


def _compiled(path: Path, inputs: list[Any]) -> list[Any]:
    with tw.compile(path, cache=False) as library:
        results = library(*inputs)
    return list(results) if isinstance(results, tuple) else [results]


def _interpreted(path: Path, inputs: list[Any]) -> list[Any]:
    module = import_stablehlo(path)
    verify(module)
    nested = Nested(*entries) if (entries := module.symbol("main").attributes["nested"]) else None
    results = Interpreter(module).run("main", list(nested.flatten(inputs, {}) if nested else inputs))
    if nested is None:
        return list(results)
    found = nested.unflatten(results)
    return list(found) if isinstance(found, tuple) else [found]


def _compared(got: Any, want: Any, check: str, limits: dict[str, float]) -> str:
    got = np.asarray(got)
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"wrong: got {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
    if got.dtype.kind == "c":
        got, want = (np.ascontiguousarray(x).reshape(-1).view(x.real.dtype) for x in (got, want))
    if got.dtype.kind in "iub" or got.dtype.name.startswith(("int", "uint")):
        return "pass" if np.array_equal(got, want) else "wrong: other values"
    wide, wanted = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(np.isfinite(wide), finite) or not np.array_equal(
        wide[~finite], wanted[~finite], equal_nan=True
    ):
        return "wrong: NaN or infinity in other places"
    off = np.abs(wide[finite] - wanted[finite])
    if not off.size or not off.any():
        return "pass"
    if check == "expect_almost_eq" and off.max() <= limits.get("tolerance", 1e-4):
        return "pass"
    if check == "expect_close" and _ulps(got[finite], want[finite]) <= limits.get("max_ulp_difference", 3):
        return "pass"
    relative = off.max() / max(np.abs(wanted[finite]).max(), np.finfo(np.float32).tiny)
    return (
        "close"
        if relative <= CLOSE.get(got.dtype.name, 0.0)
        else f"wrong: differs by {relative:.1e} of the largest"
    )


def _ulps(a: Any, b: Any) -> int:
    """The largest distance between elements of two arrays, in representable numbers."""
    signed = np.dtype(f"i{a.dtype.itemsize}")

    def places(x: Any) -> Any:
        bits = np.ascontiguousarray(x).view(signed).astype(object)
        return np.where(bits < 0, -(bits & np.iinfo(signed).max), bits)

    return int(np.abs(places(a) - places(b)).max())


def run(path: Path, name: str, native: bool, first: int = 0) -> Iterator[tuple[str, str]]:
    """Names and outcomes of a file's cases from the `first` on."""
    for case in islice(cases_of(path, name), first, None):
        yield (case.name, outcome(case, native)) if isinstance(case, Case) else case


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="a checkout of openxla/stablehlo")
    parser.add_argument(
        "--only", default="", help="files whose name contains this; the results file is not written"
    )
    parser.add_argument("--interpret", action="store_true", help="interpret instead of compiling")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=120.0, help="processor seconds for a case")
    parser.add_argument(
        "--results",
        type=Path,
        help="file for outcomes during the run (default without --only: beside the results)",
    )
    options = parser.parse_args()
    chosen = {
        n: p
        for n, p in files(options.checkout)
        if options.only in n and not n.split("/")[1].startswith(DEVICES)
    }
    log = options.results or (None if options.only else DATA.with_suffix(".partial"))
    found: dict[str, dict[str, str]] = {}
    if log is not None and log.exists():
        found = dict(json.loads(line) for line in log.read_text().splitlines())
    # imports that happen on first use happen here, once, before processes fork
    outcome(WARM, not options.interpret)
    left = [n for n in chosen if n not in found]
    work = lambda name, first: run(chosen[name], name, not options.interpret, first)  # noqa: E731
    for name, rows in in_processes(left, work, options.processes, Limits(options.seconds)):
        found[name] = dict((f"{name} {k}", r) if isinstance(r, str) else r for k, r in enumerate(rows))
        for case, result in found[name].items():
            if result != "pass":
                print(f"{case}: {result}", flush=True)
        if log is not None:
            with log.open("a") as file:
                file.write(json.dumps([name, found[name]]) + "\n")
    row = summary({case: result for n, rows in found.items() if n in chosen for case, result in rows.items()})
    print(", ".join(f"{folder}: {dict(counts)}" for folder, counts in row["by_folder"].items()))
    if not options.only:
        by = "interpreted" if options.interpret else "compiled"
        DATA.write_text(json.dumps({**row, **_circumstances(), "by": by}, indent=1, sort_keys=True) + "\n")
        if options.results is None and log is not None:
            log.unlink()


def summary(found: dict[str, str]) -> dict[str, Any]:
    """Counts by folder, and the outcomes of cases that do not pass."""
    folders = {name: name.partition("/")[0] for name in found}
    by_folder = {
        folder: Counter(
            r if r in ("pass", "close") else "other" for n, r in found.items() if folders[n] == folder
        )
        for folder in sorted(set(folders.values()))
    }
    return {
        "cases": len(found),
        "by_folder": by_folder,
        "not_passed": {n: r for n, r in sorted(found.items()) if r not in ("pass", "close")},
        "close": sorted(n for n, r in found.items() if r == "close"),
    }


def _circumstances() -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {platform.system()}",
    }


if __name__ == "__main__":
    main()
