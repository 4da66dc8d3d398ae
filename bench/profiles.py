"""Profiles of ten models, checked: `python -m bench.profiles [--model NAME] [--output FILE.json]`.

For each model: whether each launch names a line of the model that another way confirms; the shares of the
parts of a call; what all parts but the reads of the clock add up to, over the time of calls without a
profile; the largest share of the roofline; and whether the trace is well formed.

The lines are confirmed without the compiler. Models of PyTorch: the modules and stacks that torch's own
export keeps. ONNX: the nodes' metadata in the file. `tw.nn`: the named line of the source calls the operator.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tests.zoo.models import MINILM, MODELS, ZooModel

import tilewright as tw
from tilewright.driver.cores import usable_cores
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.timeline import Timeline
from tilewright.tools.roofline import machine

from .models import BENCH_MODELS

RESULTS = Path(__file__).parent / "results" / "profiles.json"
Lines = set[tuple[str, str]]
"""Pairs of a module's path and ``FILE:LINE`` with the file's name alone; "" where the model has none."""


class Case:
    """A model as it is compiled, with its inputs, and the lines that its own framework knows."""

    def __init__(self, model: Any, arrays: list[np.ndarray], args: Any, dims: Any, lines: Lines) -> None:
        self.model, self.arrays, self.args, self.dims, self.lines = model, arrays, args, dims, lines


def _torch(module: Any, inputs: Mapping[str, Any]) -> Case:
    """A module; the lines are all frames of the stacks of torch's export."""
    import torch

    args = tuple(inputs.values())
    program = torch.export.export(module, args)
    lines: Lines = set()
    for node in program.graph.nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = re.sub(r"^L\['self'\]\.?", "", str(stack[-1][0])) if stack else ""
        lines |= {(path, at) for at in _frames(node.meta.get("stack_trace") or "")}
    return Case(module, [x.numpy() for x in args], args, None, lines)


def _frames(stack: str) -> list[str]:
    return [f"{Path(f).name}:{line}" for f, line in re.findall(r'File "([^"]+)", line (\d+)', stack)]


def _onnx(model: ZooModel, size: str) -> Case:
    """An export with dynamic sizes; the lines are those of the nodes' metadata."""
    import onnx

    path = model.onnx_model(size, dynamic=True)
    lines: Lines = set()
    for node in onnx.load(path, load_external_data=False).graph.node:
        notes = {entry.key: entry.value for entry in node.metadata_props}
        modules = re.findall(r"'([^']*)'", notes.get("pkg.torch.onnx.name_scopes", ""))
        for at in _frames(notes.get("pkg.torch.onnx.stack_trace", "")):
            lines.add((modules[-2] if len(modules) > 1 else "", at))
    arrays = [x.numpy() for x in model.inputs(size, batch=2, seq=32).values()]
    return Case(str(path), arrays, None, model.dims, lines)


def _own() -> Case:
    """A module of `tw.nn`; the lines are those of its ``forward`` that call what the path ends with."""
    import inspect

    from tests.explorer import network

    from tilewright import nn

    nn.seed(0)
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    lines: Lines = set()
    for number, text in enumerate(inspect.getsource(network).split("\n"), 1):
        for name in re.findall(r"self\.(\w+)\(", text):
            at = f"network.py:{number}"
            blocks = [""] if name == "head" else ["blocks.0.", "blocks.1."]
            lines |= {(f"{block}{name}", at) for block in blocks}
            lines |= {(block.rstrip("."), at) for block in blocks}
    return Case(network.Network().eval(), [x], (x,), None, lines)


def _zoo(model: ZooModel, size: str) -> Callable[[], Case]:
    return lambda: _torch(model.torch_model(size), model.inputs(size, batch=1, seq=128))


def _cnn() -> Case:
    import torch

    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 16 * 16, 10),
    ).eval()
    return _torch(network, {"x": torch.randn(4, 3, 32, 32)})


def _bench(name: str, batch: int) -> Callable[[], Case]:
    return lambda: _torch(BENCH_MODELS[name].module(), BENCH_MODELS[name].inputs(batch))


def cases(size: str) -> dict[str, Callable[[], Case]]:
    """The models by name; `size` is that of `tests.zoo`: ``full`` or ``tiny``."""
    return {
        "mlp": _bench("mlp", 1024),
        "cnn": _cnn,
        "resnet50": _zoo(MODELS["resnet50"], size),
        "mobilenet_v2": _zoo(MODELS["mobilenet_v2"], size),
        "bert": _zoo(MODELS["bert"], size),
        "minilm": _zoo(MINILM, size),
        "gpt2": _zoo(MODELS["gpt2"], size),
        "vit": _zoo(MODELS["vit"], size),
        "lstm": _bench("lstm", 1),
        "bert-onnx-dynamic": lambda: _onnx(MODELS["bert"], size),
        "tw.nn": _own,
    }


def wrong_lines(timeline: Timeline, lines: Lines) -> list[str]:
    """The launches none of whose lines is confirmed."""
    files = {at for _, at in lines}
    wrong = []
    for launch in timeline.launches:
        named = {f"{source.rpartition('/')[2]}" for source in launch.sources}
        confirmed = (
            named & files
            if launch.layer not in {path for path, _ in lines}
            else {at for at in named if (launch.layer, at) in lines}
        )
        if not confirmed:
            wrong.append(f"{launch.kernel} ({launch.place}): {', '.join(launch.sources) or 'no line'}")
    return wrong


def trace_problems(events: Mapping[str, Any]) -> list[str]:
    """Faults of a trace by the Trace Event Format: missing fields, negative times, spans of one thread that
    overlap without one being inside of the other.
    """
    problems = []
    spans: dict[tuple[int, int], list[tuple[float, float, str]]] = {}
    for event in events["traceEvents"]:
        needed = {"M": ("name", "pid", "args"), "X": ("name", "cat", "ph", "ts", "dur", "pid", "tid")}
        missing = [key for key in needed.get(event.get("ph"), ("a known ph",)) if key not in event]
        if missing:
            problems.append(f"{event.get('name')}: lacks {', '.join(missing)}")
        elif event["ph"] == "X":
            if event["ts"] < 0 or event["dur"] < 0:
                problems.append(f"{event['name']}: has a negative time")
            thread = (event["pid"], event["tid"])
            spans.setdefault(thread, []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for parts in spans.values():
        open_: list[tuple[float, float, str]] = []
        for begin, end, name in sorted(parts, key=lambda span: (span[0], -span[1])):
            while open_ and open_[-1][1] <= begin:
                open_.pop()
            if open_ and end > open_[-1][1] + 1e-6:
                problems.append(f"{name}: overlaps the end of {open_[-1][2]}")
            open_.append((begin, end, name))
    return problems


def _seconds(library: CompiledModel, arrays: list[np.ndarray]) -> float:
    """The median time of a call that is not profiled, of as many calls as of a timeline."""
    library(*arrays)
    times = []
    for _ in range(11):
        start = time.perf_counter()
        library(*arrays)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def examine(case: Case, threads: int) -> dict[str, Any]:
    """The figures of one model."""
    library: CompiledModel = tw.compile(case.model, case.args, dims=case.dims, threads=threads)
    timelines, plain = [], []
    for _ in range(5):  # in turns, since the machine's speed changes
        timelines.append(library.timeline(*case.arrays, repeat=11))
        plain.append(_seconds(library, case.arrays))
    timeline = timelines[-1]
    outside = [{share.name: share.seconds for share in t.outside()} for t in timelines]
    added = [
        (t.seconds - parts["clock"]) / seconds
        for t, parts, seconds in zip(timelines, outside, plain, strict=True)
    ]
    here = machine(threads)
    dtypes = library.metadata.get("contractions", {})
    shares = {
        row.name: here.floor_seconds(row.flops, row.bytes, row.bytes / row.calls, dtypes) / row.seconds
        for row in library.profile(*case.arrays)
    }
    largest = max(shares, key=lambda name: shares[name])
    wrong = wrong_lines(timeline, case.lines)
    return {
        "ms": round(timeline.seconds * 1e3, 4),
        "launches": len(timeline.launches),
        "launches_with_a_confirmed_line": len(timeline.launches) - len(wrong),
        "wrong_lines": wrong[:5],
        "in_kernels": round(statistics.median(t.in_kernels / t.seconds for t in timelines), 4),
        **{
            name.replace(" ", "_"): round(
                statistics.median(p[name] / t.seconds for p, t in zip(outside, timelines, strict=True)), 4
            )
            for name in outside[0]
        },
        "added_up_over_a_plain_call": round(statistics.median(added), 4),
        "largest_share_of_the_roofline": round(shares[largest], 3),
        "kernel_of_the_largest_share": largest,
        "trace_problems": trace_problems(timeline.trace_events()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", help="only this model; may be repeated")
    parser.add_argument("--size", default="full", choices=["full", "layer", "tiny"])
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--output", type=Path, help=f"the file of the result, e.g. {RESULTS.name}")
    options = parser.parse_args()
    here = machine(options.threads)
    head = {
        "date": datetime.date.today().isoformat(),
        "processor": here.processor,
        "threads": options.threads,
        "size": options.size,
    }
    models: dict[str, Any] = {}
    if options.output is not None and options.output.exists():  # of other models, measured alike
        earlier = json.loads(options.output.read_text())
        models = earlier["models"] if {**earlier, "models": 0} == {**head, "models": 0} else {}
    for name, make in cases(options.size).items():
        if options.model and name not in options.model:
            continue
        models[name] = examine(make(), options.threads)
        print(name, json.dumps(models[name]), flush=True)
        if options.output is not None:
            options.output.write_text(json.dumps({**head, "models": models}, indent=1) + "\n")


if __name__ == "__main__":
    main()
