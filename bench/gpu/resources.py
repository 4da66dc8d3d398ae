"""The table of what the kernels of all models need on each architecture: registers, spills, shared memory,
occupancy, how they access memory, and lower bounds of their times.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import tilewright as tw
from tilewright.dialects import loop
from tilewright.ir.parser import parse
from tilewright.targets.cuda.devices import device_of
from tilewright.targets.cuda.toolchain import compiler
from tilewright.tools.gpu_report import KernelReport, reports

from .accesses import MISSED, REASONS, SMALL, WIDE, GlobalAccess, accesses_of_kernel
from .cases import model_cases, speed_cases
from .real_sizes import real_cases

ARCHITECTURES = ("sm_80", "sm_90")
SECTIONS = {
    "real": "Models at their published sizes",
    "functions": "Functions whose time has a floor",
    "models": "Small models of the tests, with known and with dynamic sizes",
}


SECTORS = ("by_request", "least_by_request", "by_warp", "least_by_warp")
"""The fields of `accesses.Sectors` that the table adds up."""
LISTED = 0.02
"""The least share of a case's sectors for which an access is listed; of a kernel's, for which it is kept."""


def kernels_of(library: Any, arch: str) -> list[dict[str, Any]]:
    """The resources of each kernel of a library on an architecture, and how it accesses memory."""
    device = device_of(arch)
    loops = {kernel.sym_name: kernel for kernel in _loops(library.ir("loop"))}
    found = reports(library.metadata, {}, library.images)
    rows = next(rows for name, _, rows in found if name.removesuffix("a") == arch)
    return [_entry(row, loops.get(row.kernel["name"]), device) for row in rows]


def _loops(text: str) -> Sequence[loop.Kernel]:
    """The kernels in the text of a module at the loop level; host programs, which refer to weights, are left
    out.
    """
    return parse(re.sub(r"^  func\.func .*?^  }$", "", text, flags=re.M | re.S)).functions(loop.Kernel)


def _entry(row: KernelReport, kernel: loop.Kernel | None, device: Any) -> dict[str, Any]:
    entry, resources = row.kernel["device"], row.resources
    found = [] if kernel is None else accesses_of_kernel(kernel, device.gpu)
    reasons = Counter(access.reason for access in found)
    launches = row.kernel.get("launches", 1)
    result = {
        "kernel": row.kernel["name"],
        "kind": row.kernel["kind"],
        "threads": entry["threads"],
        "registers": resources.registers,
        "spill_bytes": resources.spill_bytes,
        "stack_bytes": resources.stack_bytes,
        "shared_bytes": resources.shared_bytes + entry["dynamic_shared_bytes"],
        "occupancy": round(row.occupancy.share, 3) if row.occupancy else None,
        "loads": resources.count("global load"),
        "loads_16": resources.count("global load 16"),
        "async_copies": resources.count("async copy"),
        "matrix": resources.count("matrix"),
        "accesses": {reason: reasons[reason] for reason in REASONS if reasons[reason]},
        "missed": [f"{a.buffer}, {a.bytes_at_once} bytes" for a in found if a.reason == MISSED],
        "sectors": {name: round(launches * sum(getattr(a.sectors, name) for a in found)) for name in SECTORS},
        "partial": [_partial(a, launches) for a in found if a.sectors.excess],
    }
    if row.prediction is not None:
        p = row.prediction
        moved, flops = (float(row.kernel[key]) for key in ("bytes", "flops"))
        arithmetic = p.arithmetic_seconds * (row.blocks or 1) / (p.rounds * device.gpu.multiprocessors)
        result |= {
            "microseconds": round(launches * 1e6 * (p.seconds - device.launch), 3),
            "floor": round(launches * 1e6 * max(moved / device.bandwidth, arithmetic if flops else 0.0), 3),
        }
    return result


def _partial(access: GlobalAccess, launches: int) -> dict[str, Any]:
    """An access that touches parts of sectors, and how many sectors fewer would have room for its bytes."""
    verb = "loads" if access.loads else "stores"
    return {
        "access": f"{verb} `{access.buffer}` by {access.bytes_at_once} bytes",
        "reason": access.reason,
        "excess": round(launches * access.sectors.excess),
    }


def _cases(wanted: Callable[[str, str], bool]) -> Iterator[tuple[str, str, Any]]:
    """Section, name, and a function that compiles it for a target."""
    for real in real_cases():
        if wanted("real", real.name):
            program = real.build()
            yield "real", real.name, lambda t, p=program: tw.compile(p, target=t, cache=False)
    for case in speed_cases():
        if wanted("functions", name := f"{case.name}, {case.dtype}"):
            yield (
                "functions",
                name,
                lambda t, c=case: tw.compile(c.function, tuple(c.inputs()), target=t),
            )
    for model in model_cases():
        if wanted("models", model.name):
            (module, examples), options, _, _ = model.build()
            yield (
                "models",
                model.name,
                lambda t, m=module, x=examples, o=options: tw.compile(m, x, target=t, **o),
            )


def measure(wanted: Callable[[str, str], bool], keep: Any = None) -> dict[str, Any]:
    """Compile cases for each architecture; return their kernels by section, case and architecture.

    Args:
        wanted: Whether the case of a section and a name is to be compiled.
        keep: Called with what was found so far, after each case.
    """
    found: dict[str, Any] = {section: {} for section in SECTIONS}
    for section, name, compiled in _cases(wanted):
        start = time.perf_counter()
        for arch in ARCHITECTURES:
            library = compiled(f"cuda:{arch}")
            found[section].setdefault(name, {})[arch] = kernels_of(library, arch)
        count, seconds = len(found[section][name][ARCHITECTURES[0]]), time.perf_counter() - start
        print(f"{name}: {count} kernels, {seconds:.0f} s", flush=True)
        if keep is not None:
            keep(found)
    return found


COLUMNS = (
    "case",
    "architecture",
    "kernels",
    "most registers",
    "spilling kernels",
    "most shared memory",
    "lowest occupancy",
    "kernels with wide loads",
    "with matrix instructions",
    "wide accesses",
    "missed",
    "sectors of requests",
    "of warps",
    "least time (µs)",
    "share of the floor",
)


def _row(name: str, arch: str, kernels: list[dict[str, Any]]) -> str:
    accesses: Counter[str] = Counter()
    for k in kernels:
        accesses.update(k["accesses"])
    timed = [k for k in kernels if k.get("microseconds")]
    time, floor = sum(k["microseconds"] for k in timed), sum(k["floor"] for k in timed)
    sectors: Counter[str] = Counter()
    for k in kernels:
        sectors.update(k["sectors"])
    known = len(timed) == len(kernels) and time > 0
    cells = [
        name,
        arch,
        len(kernels),
        max(k["registers"] for k in kernels),
        sum(bool(k["spill_bytes"]) for k in kernels),
        max(k["shared_bytes"] for k in kernels),
        min(k["occupancy"] for k in kernels),
        sum(bool(k["loads_16"] or k["async_copies"]) for k in kernels),
        sum(bool(k["matrix"]) for k in kernels),
        f"{accesses[WIDE]} of {accesses.total() - accesses[SMALL]}",
        accesses[MISSED],
        *(f"{sectors[by] / max(sectors[least], 1):.2f}" for by, least in (SECTORS[:2], SECTORS[2:])),
        f"{time:.1f}" if known else "",
        f"{floor / time:.2f}" if known else "",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def markdown(found: dict[str, Any]) -> str:
    """The tables: a row for each case and architecture; below, kernels with spills and missed accesses."""
    lines = [
        "# Resources of kernels on NVIDIA's GPUs",
        "",
        f"{found['date']}, {found['compiler']}, machine code without a device: `python -m bench.gpu "
        "--resources`.",
        "Registers are those of a thread, 255 at most. Spills are bytes of registers that a thread moves to",
        "memory. The occupancy is the share of the warps that a multiprocessor can hold.",
        "",
        "Memory moves sectors of 32 bytes. *Sectors of requests* are those that instructions of warps touch,",
        "as a multiple of those that their bytes fill: 1 is the best. *Sectors of warps* count a sector once",
        "that successive instructions of a warp touch in part, and a cache keeps. Wide accesses are loads",
        "and stores of global memory of 16 bytes a thread, of all but those of arrays that are too small for",
        "them; narrower ones that touch whole sectors cost instructions, no bandwidth. Missed ones could be",
        "wide, and touch parts of sectors. `bench/gpu/accesses.py` evaluates addresses to find all this.",
        "",
        "The least time is that of the kernels without launches: blocks divided among multiprocessors, each",
        "at its full rate. The floor is the time at the device's full bandwidth and rate; models with",
        "unknown sizes have neither. Rates are those of the A100 and of the H100.",
    ]
    by_case: list[tuple[str, str, list[dict[str, Any]]]] = []
    for section, title in SECTIONS.items():
        cases = found["cases"].get(section, {})
        if not cases:
            continue
        lines += ["", f"## {title}", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        for name, by_arch in cases.items():
            for arch, kernels in by_arch.items():
                if kernels:
                    lines.append(_row(name, arch, kernels))
                    by_case.append((name, arch, kernels))
    everything = [(name, arch, k) for name, arch, kernels in by_case for k in kernels]
    lines += ["", "## Kernels that spill registers", ""]
    spilling = [x for x in everything if x[2]["spill_bytes"]]
    lines += [f"- {n}, {a}: `{k['kernel']}`, {k['spill_bytes']} bytes" for n, a, k in spilling] or ["None."]
    lines += ["", "## Accesses that touch parts of sectors", ""]
    lines += [
        f"The table lists accesses whose excess is at least {LISTED:.0%} of a case's sectors of requests.",
        "The excess is the number of sectors that an access touches beyond those that its bytes fill.",
        "",
        "| case | architecture | kernel | access | why | excess |",
        "|---|---|---|---|---|---|",
    ]
    for name, arch, kernels in by_case:
        total = sum(k["sectors"][SECTORS[0]] for k in kernels)
        for k in kernels:
            for x in k["partial"]:
                if x["excess"] >= LISTED * total:
                    share = x["excess"] / total
                    cells = (name, arch, f"`{k['kernel']}`", x["access"], x["reason"], f"{share:.0%}")
                    lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Accesses by kind", "", "| kind | " + " | ".join(REASONS) + " |"]
    lines.append("|---" * (len(REASONS) + 1) + "|")
    kinds: dict[str, Counter[str]] = {}
    for _, _, k in everything:
        kinds.setdefault(k["kind"], Counter()).update(k["accesses"])
    lines += [f"| {kind} | " + " | ".join(str(c[r]) for r in REASONS) + " |" for kind, c in kinds.items()]
    return "\n".join(lines) + "\n"


def write(folder: Path, names: Sequence[str] | None = None, missing: bool = False) -> None:
    """Write gpu-resources.json and gpu-resources.md.

    Args:
        folder: Where they lie.
        names: Parts of the names of cases to measure; None: all. Others keep what they have.
        missing: Whether to measure only cases that the file lacks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "gpu-resources.json"
    old = json.loads(path.read_text())["cases"] if (names or missing) and path.exists() else {}

    def wanted(section: str, name: str) -> bool:
        named = not names or any(n in name for n in names)
        return named and not (missing and name in old.get(section, {}))

    def keep(cases: dict[str, Any]) -> None:
        merged = {s: {**old.get(s, {}), **cases[s]} for s in SECTIONS}
        found = {"date": date.today().isoformat(), "compiler": compiler(), "cases": merged}
        path.write_text(json.dumps(found, indent=0) + "\n")
        (folder / "gpu-resources.md").write_text(markdown(found))

    measure(wanted, keep)
