"""Collects what the page shows of a compiled model, as plain data for JSON. An artifact without its model has
its graph, memory, kernels and metadata; a library that was compiled in this process also has the texts of all
levels, the passes and the user's source lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifact.structure import KEY, read_structure
from ..driver.origins import compiled_here
from ..errors import CompileError
from ..runtime.kernels import describe_kernels
from .neighbours import neighbours
from .trials import trials_of

if TYPE_CHECKING:
    from ..driver.compile import Compilation
    from ..driver.tuning_database import Database
    from ..runtime.model import CompiledModel
    from ..runtime.timeline import Timeline
    from ..tools.roofline import Roofline
    from .recorder import Recorder

FORMAT = 1
LARGEST_SOURCE = 400_000
"""Bytes of a file of the user's that the page contains."""
CODE_LEVELS = ("llvm", "asm", "cuda", "ptx", "sass", "wgsl", "opencl", "metal", "hip", "glsl", "spirv", "c")


def document(
    metadata: Mapping[str, Any],
    *,
    title: str,
    library: CompiledModel | None = None,
    recorder: Recorder | None = None,
    timeline: Timeline | None = None,
    machine: Roofline | None = None,
    sizes: Mapping[str, int] | None = None,
    tuned: Database | None = None,
) -> dict[str, Any]:
    """The data of one model that the page shows.

    Args:
        metadata: The artifact's metadata.
        title: The name of the model.
        library: The library, if it was loaded or compiled.
        recorder: The record of the passes.
        timeline: A call's launches.
        machine: The roofline of the machine that the timeline is from.
        sizes: The dynamic dimensions of the timeline's call.
        tuned: Trials of kernels.
    """
    functions = metadata.get("functions") or {getattr(library, "name", "main"): metadata}
    structure = read_structure(metadata)
    compilations: list[Compilation] = []
    whole = getattr(library, "library", library)  # the library of a function
    if whole is not None:
        try:
            compilations = compiled_here(whole)
        except CompileError:
            compilations = []  # loaded from a file
    trials = {} if tuned is None else trials_of(compilations, tuned)
    return {
        "format": FORMAT,
        "title": title,
        "facts": _facts(metadata),
        "metadata": {
            k: v for k, v in metadata.items() if k not in (KEY, "kernels", "functions", "parameters")
        },
        "functions": [
            {
                "name": name,
                "inputs": entry.get("inputs", []),
                "outputs": entry.get("outputs", []),
                "symbols": entry.get("symbols", {}),
                "memory": entry.get("memory") or metadata.get("memory", {}),
                **(own := structure.get(name, {"operators": [], "steps": [], "storages": []})),
                "apart": [] if recorder is None else neighbours(own, name, recorder.apart),
            }
            for name, entry in functions.items()
        ],
        "states": metadata.get("states", []),
        "kernels": _kernels(metadata, whole, compilations, trials),
        "sources": _sources(compilations),
        "passes": [] if recorder is None else [asdict(record) for record in recorder.passes],
        "profile": None if timeline is None else _profile(metadata, timeline, machine, dict(sizes or {})),
    }


def _facts(metadata: Mapping[str, Any]) -> dict[str, str]:
    target = metadata.get("target", {})
    memory, fusion = metadata.get("memory", {}), metadata.get("fusion", {})
    facts = {
        "compiler": metadata.get("compiler", ""),
        "target": target.get("name", "") if isinstance(target, Mapping) else str(target),
        "precision": metadata.get("precision") or "the model's own",
        "optimization": metadata.get("opt", ""),
        "kernels before fusion": fusion.get("kernels_before", ""),
        "kernels after fusion": fusion.get("kernels_after", ""),
        "bytes of weights": memory.get("weights_bytes", ""),
        "bytes of the arena": memory.get("arena_bytes", ""),
    }
    return {name: str(value) for name, value in facts.items() if value != ""}


def _kernels(
    metadata: Mapping[str, Any],
    library: CompiledModel | None,
    compilations: Sequence[Compilation],
    trials: Mapping[str, list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    entries = metadata.get("kernels", [])
    schedules = {
        k.name: k.schedule for base in describe_kernels(entries).values() for k in (base, *base.variants)
    }
    texts: dict[str, dict[str, str]] = {}
    for compilation in compilations:
        texts |= compilation.kernel_texts()
    code = {} if library is None else _code(library, [entry["name"] for entry in entries])
    kept = ("name", "kind", "launches", "flops", "bytes", "operators", "locations", "slower", "tuned")
    return [
        {
            **{key: entry[key] for key in kept if key in entry},
            **({"variant_of": entry["variant_of"], "when": entry["when"]} if "variant_of" in entry else {}),
            "choices": entry.get("choices", []),
            "schedule": schedules.get(entry["name"], ""),
            "trials": trials.get(entry["name"], []),
            "levels": {
                **texts.get(entry.get("variant_of", entry["name"]), {}),
                **code.get(entry["name"], {}),
            },
        }
        for entry in entries
    ]


def _code(library: CompiledModel, kernels: Iterable[str]) -> dict[str, dict[str, str]]:
    """The target code of each kernel with the functions that it calls, by level."""
    kernels = list(kernels)
    found: dict[str, dict[str, str]] = {name: {} for name in kernels}
    if library.origin is None:
        return found  # loaded from a file
    for level in CODE_LEVELS:
        try:
            text = library.ir(level)
        except CompileError:
            continue  # the target has no such level
        parts = split_functions(text, level)
        for name in kernels:
            code = _of_kernel(name, parts)
            if code:
                found[name][level] = code
    return found


_DEFINITIONS = {
    "llvm": re.compile(r'^define\b[^@\n]*@"?([\w.$]+)"?\(', re.MULTILINE),
    "asm": re.compile(r"^\s*\.type\s+([\w.$]+),\s*[@%]function", re.MULTILINE),
}
_OTHERS = re.compile(
    r"^(?:[^\n;={]*\s)?(?:__global__|__kernel|kernel|\.entry|\.func|fn|void)\b[^\n;=]*?\b(\w+)\s*\(",
    re.MULTILINE,
)


def split_functions(text: str, level: str) -> dict[str, str]:
    """The functions of a text of LLVM IR, assembly (``asm``) or a GPU's language, by name."""
    found = list(_DEFINITIONS.get(level, _OTHERS).finditer(text))
    ends = [*(m.start() for m in found[1:]), len(text)]
    parts = {m[1]: text[m.start() : end] for m, end in zip(found, ends, strict=True)}
    # Declarations and constants after the end of a function belong to none.
    last = {"llvm": r"^\}", "asm": r"^\s*\.size\s.*"}.get(level)
    if last is None:
        return {name: part.rstrip() for name, part in parts.items()}
    cut = {name: re.search(last, part, re.MULTILINE) for name, part in parts.items()}
    return {n: part.rstrip() if (end := cut[n]) is None else part[: end.end()] for n, part in parts.items()}


def _of_kernel(name: str, parts: Mapping[str, str]) -> str:
    """The code of a kernel and of the functions that it reaches, the kernel first."""
    entry = re.compile(rf"(?:\w+_)?{re.escape(name)}(?:\.body)?$")
    exact = [part for part in parts if part in (name, f"kernel_{name}", f"kernel_{name}.body")]
    pending = exact or [part for part in parts if entry.match(part)]
    reached: dict[str, None] = {}
    while pending:
        current = pending.pop(0)
        if current in reached:
            continue
        reached[current] = None
        words = set(re.findall(r"[\w.$]+", parts[current]))
        pending += [part for part in parts if part in words and part not in reached]
    return "\n\n".join(parts[part] for part in reached)


def _sources(compilations: Iterable[Compilation]) -> dict[str, str]:
    """The user's files that operators come from, by the name under which the artifact mentions them."""
    found: dict[str, str] = {}
    for compilation in compilations:
        for op in compilation.graph.walk() if compilation.graph is not None else ():
            for place in (op.location, *op.location.fused):
                portable = place.portable.file
                if not portable or portable in found:
                    continue
                path = Path(place.file)
                try:
                    found[portable] = path.read_text() if path.stat().st_size <= LARGEST_SOURCE else ""
                except (OSError, UnicodeDecodeError):
                    found[portable] = ""
    return {name: text for name, text in found.items() if text}


def _profile(
    metadata: Mapping[str, Any], timeline: Timeline, machine: Roofline | None, sizes: dict[str, int]
) -> dict[str, Any]:
    from ..runtime.expressions import evaluate

    dtypes = metadata.get("contractions", {})
    launched = {x.kernel for x in timeline.launches}  # those of other functions have other dimensions
    costs = {
        k["name"]: (evaluate(k["flops"], sizes), evaluate(k["bytes"], sizes))
        for k in metadata["kernels"]
        if k["name"] in launched
    }
    launches = []
    for x in timeline.launches:
        flops, moved = costs[x.kernel]
        floor = None if machine is None else machine.floor_seconds(flops, moved, moved, dtypes)
        launches.append({**asdict(x), "flops": flops, "bytes": moved, "floor": floor, "layer": x.layer})
    roofs = None
    if machine is not None:
        roofs = {
            "processor": machine.processor,
            "threads": machine.threads,
            "flops": machine.peak_of(dtypes),
            "memory": machine.bandwidth,
            "caches": [[size, rate] for size, rate in machine.cached],
        }
    return {
        "seconds": timeline.seconds,
        "kernels": timeline.in_kernels,
        "outside": {share.name: share.seconds for share in timeline.outside()},
        "sizes": sizes,
        "launches": launches,
        "machine": roofs,
    }


__all__ = ["FORMAT", "document", "split_functions"]
