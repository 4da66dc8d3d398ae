"""The table of what the kernels of all models need on each architecture: registers, spills, shared memory,
occupancy, and loads of 16 bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import tilewright as tw
from tilewright.targets.cuda.devices import device_of
from tilewright.targets.cuda.toolchain import compiler
from tilewright.targets.gpu.performance import KernelResources, occupancy

from .cases import model_cases, speed_cases

ARCHITECTURES = ("sm_80", "sm_90")


def kernels_of(library: Any, arch: str) -> list[dict[str, Any]]:
    """The resources of each kernel of a library on an architecture."""
    found = []
    for kernel in library.metadata["kernels"]:
        device = kernel["device"]
        resources = KernelResources.from_metadata(device["code"][arch])
        held = occupancy(device_of(arch), resources, device["threads"], device["dynamic_shared_bytes"])
        found.append(
            {
                "kernel": kernel["name"],
                "kind": kernel["kind"],
                "threads": device["threads"],
                "registers": resources.registers,
                "spill_bytes": resources.spill_bytes,
                "stack_bytes": resources.stack_bytes,
                "shared_bytes": resources.shared_bytes + device["dynamic_shared_bytes"],
                "occupancy": round(held.share, 3),
                "loads": resources.count("global load"),
                "loads_16": resources.count("global load 16"),
                "async_copies": resources.count("async copy"),
                "matrix": resources.count("matrix"),
            }
        )
    return found


def measure(names: list[str] | None = None) -> dict[str, Any]:
    """Compile all cases for each architecture; return their kernels by case and architecture."""
    found: dict[str, Any] = {}
    for model in model_cases():
        if names and not any(n in model.name for n in names):
            continue
        (module, examples), options, _, _ = model.build()
        for arch in ARCHITECTURES:
            library = tw.compile(module, examples, target=f"cuda:{arch}", **options)
            found.setdefault(model.name, {})[arch] = kernels_of(library, arch)
        print(f"{model.name}: {len(found[model.name][ARCHITECTURES[0]])} kernels", flush=True)
    for case in speed_cases():
        if names and not any(n in case.name for n in names):
            continue
        name = f"{case.name}, {case.dtype}"
        for arch in ARCHITECTURES:
            library = tw.compile(case.function, tuple(case.inputs()), target=f"cuda:{arch}")
            found.setdefault(name, {})[arch] = kernels_of(library, arch)
        print(f"{name}: {len(found[name][ARCHITECTURES[0]])} kernels", flush=True)
    return found


def markdown(found: dict[str, Any]) -> str:
    """The table: a row for each case and architecture, and all kernels with spills below."""
    lines = [
        "# Resources of kernels on NVIDIA's GPUs",
        "",
        f"{found['date']}, {found['compiler']}, machine code without a device: `python -m bench.gpu "
        "--resources`.",
        "Registers are those of a thread, 255 at most. Spills are bytes of registers that a thread moves to",
        "memory. The occupancy is the share of the warps that a multiprocessor can hold. The last columns",
        "count kernels with a load of 16 bytes or an asynchronous copy, and with matrix instructions.",
        "",
        "| case | architecture | kernels | most registers | spilling kernels | stack | most shared memory | "
        "lowest occupancy | with wide loads | with matrix instructions |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    spilling = []
    for name, by_arch in found["cases"].items():
        for arch, kernels in by_arch.items():
            if not kernels:
                continue
            spills = [k for k in kernels if k["spill_bytes"]]
            spilling += [(name, arch, k) for k in spills]
            cells = [
                name,
                arch,
                len(kernels),
                max(k["registers"] for k in kernels),
                len(spills),
                max(k["stack_bytes"] for k in kernels),
                max(k["shared_bytes"] for k in kernels),
                min(k["occupancy"] for k in kernels),
                sum(bool(k["loads_16"] or k["async_copies"]) for k in kernels),
                sum(bool(k["matrix"]) for k in kernels),
            ]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "## Kernels that spill registers", ""]
    if not spilling:
        lines.append("None.")
    for name, arch, kernel in spilling:
        lines.append(f"- {name}, {arch}: `{kernel['kernel']}`, {kernel['spill_bytes']} bytes")
    kinds = Counter(k["kind"] for by in found["cases"].values() for ks in by.values() for k in ks)
    lines += ["", "Kernels by kind: " + ", ".join(f"{k} {n}" for k, n in kinds.most_common()) + "."]
    return "\n".join(lines) + "\n"


def write(folder: Path, names: list[str] | None = None) -> None:
    """Write gpu-resources.json and gpu-resources.md."""
    cases = measure(names)
    found = {"date": date.today().isoformat(), "compiler": compiler(), "cases": cases}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu-resources.json").write_text(json.dumps(found, indent=0) + "\n")
    (folder / "gpu-resources.md").write_text(markdown(found))
