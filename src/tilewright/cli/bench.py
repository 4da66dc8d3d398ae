"""`tilewright bench MODEL`: a compiled model and other engines on the same inputs, in one process, in
turns.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.table import Table

from .common import (
    Source,
    add_row,
    compile_options,
    console,
    function_of,
    gather_inputs,
    input_options,
    is_artifact,
    json_option,
    obtain,
    progress_display,
    source_of,
    write_json,
)

if TYPE_CHECKING:
    import torch

    from tilewright.runtime.model import CompiledModel

ENGINES = ("torch", "onnxruntime")
_PAUSE = 0.05  # seconds between two engines' turns, in which thread pools that spin after a run go to sleep


class _Engines(click.ParamType):
    name = "ENGINE,..."

    def convert(
        self, value: str | tuple[str, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        names = (
            tuple(name.strip() for name in str(value).split(",") if name.strip())
            if isinstance(value, str)
            else value
        )
        for name in names:
            if name not in ENGINES:
                self.fail(f"unknown engine '{name}'; known: {', '.join(ENGINES)}", param, ctx)
        return names


@click.command("bench")
@click.argument("model")
@compile_options
@input_options
@click.option(
    "--against",
    type=_Engines(),
    default=",".join(ENGINES),
    show_default=True,
    help="Engines to compare with.",
)
@click.option("--pt2", "pt2_path", help="The model as a .pt2 file, for torch where MODEL is an .onnx file.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Duration of the measurement.",
)
@json_option
def command(
    model: str,
    target: str,
    dims: tuple[Any, ...],
    threads: int | None,
    precision: str | None,
    files: tuple[tuple[str, str], ...],
    sizes: tuple[tuple[str, int], ...],
    seed: int,
    function: str,
    against: tuple[str, ...],
    pt2_path: str | None,
    seconds: float,
    json_path: str | None,
) -> None:
    """Time MODEL (.onnx, .pt2, or FILE.py:NAME), compiled, and other engines on the same inputs.

    The engines take turns. The first call of each turn is not counted. The result is each engine's median
    time, and its ratio to Tilewright's: above 1 means slower than Tilewright.
    """
    if is_artifact(model):
        raise click.UsageError(
            f"{model} is an artifact; bench takes a model (.onnx or .pt2), which the other engines can run"
        )
    from tilewright.driver.cores import usable_cores

    count = threads or usable_cores()
    source = source_of(model)
    library = function_of(obtain(source, target, dims, count, precision), function)
    inputs = gather_inputs(library.metadata, files, sizes, seed)
    with progress_display() as progress, tempfile.TemporaryDirectory() as folder:
        calls: dict[str, Callable[[], Any]] = {"tilewright": lambda: library(*inputs.values())}
        for engine in against:
            progress(f"loading {engine}")
            calls[engine] = _engine(engine, source, pt2_path, inputs, count, Path(folder))
        differences = _differences(calls)
        times = interleaved(calls, seconds, progress)
    result = _result(model, library, inputs, count, times, differences)
    if write_json(result, json_path):
        _show(result)


def _engine(
    engine: str, source: Source, pt2: str | None, inputs: dict[str, np.ndarray], threads: int, folder: Path
) -> Callable[[], Any]:
    from tilewright.tools.verify import onnx_runner, torch_runner

    if engine == "torch":
        model = _for_torch(source, pt2)
        if model is None:
            raise click.UsageError(
                f"torch cannot run {source.text}: give the same model with --pt2, or leave torch out of "
                "--against"
            )
        import torch

        torch.set_num_threads(threads)
        _, run = torch_runner(model, source.args, None)
        return lambda: run(inputs)
    onnx = _for_onnx(source)
    if onnx is not None:
        _, run = onnx_runner(onnx, threads)
        return lambda: run(inputs)
    model = _for_torch(source, None)
    if model is None:
        raise click.UsageError(f"onnxruntime cannot run {source.text}: leave it out of --against")
    path = _export_onnx(source, model, folder)
    _, run = onnx_runner(path, threads)
    renamed = dict(zip(_onnx_inputs(path), inputs.values(), strict=True))
    return lambda: run(renamed)


def _for_torch(source: Source, pt2: str | None) -> Any:
    """The model for torch, a module or an exported program; None for a model that torch does not run."""
    model = source.model
    path = model if isinstance(model, str) and Path(model).suffix.lower() == ".pt2" else pt2
    if path is not None:
        from tilewright.frontends.torch.archive import load_program

        return load_program(Path(path))
    bases = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(model).__mro__}
    return model if bases & {"torch.Module", "torch.ExportedProgram"} else None


def _for_onnx(source: Source) -> str | bytes | None:
    """The model for ONNX Runtime; None for a model of another kind."""
    if isinstance(source.model, str):
        return source.model if Path(source.model).suffix.lower() == ".onnx" else None
    is_onnx = type(source.model).__module__.partition(".")[0] == "onnx"
    return source.model.SerializeToString() if is_onnx else None


def _export_onnx(source: Source, model: torch.nn.Module, folder: Path) -> str:
    import torch

    path = folder / "model.onnx"
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model, source.args or (), dynamo=True, verbose=False)
    if program is None:
        raise click.ClickException(
            f"{source.text}: torch.onnx.export returned no model; leave onnxruntime out of --against"
        )
    program.save(str(path))
    return str(path)


def _onnx_inputs(path: str) -> list[str]:
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    return [value.name for value in graph.input if value.name not in weights]


def _differences(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The largest absolute difference of any output from Tilewright's, by engine. It also warms each engine
    up.
    """
    results = {}
    for name, call in calls.items():
        outputs = call()
        results[name] = [
            np.asarray(o) for o in (outputs if isinstance(outputs, tuple | list) else (outputs,))
        ]
    own = results.pop("tilewright")
    return {
        name: max(
            float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0))
            for a, b in zip(own, other, strict=True)
        )
        for name, other in results.items()
    }


def interleaved(
    calls: dict[str, Callable[[], Any]], seconds: float, progress: Callable[..., None] = lambda *_: None
) -> dict[str, list[float]]:
    """Seconds of single calls. The engines take turns of several calls until `seconds` have passed, at least
    3 turns each.

    The first call of a turn is not counted: it wakes the engine's threads and refills the caches.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    slowest = 0.0
    for call in calls.values():
        begin = time.perf_counter()
        call()
        slowest = max(slowest, time.perf_counter() - begin)
    per_turn = max(1, min(20, int(seconds / (10 * len(calls) * slowest)))) if slowest > 0 else 20
    begin = time.perf_counter()
    turns = 0
    while turns < 3 or time.perf_counter() - begin < seconds:
        progress(
            "measuring", min(int((time.perf_counter() - begin) * 10), int(seconds * 10)), int(seconds * 10)
        )
        for name, call in calls.items():
            time.sleep(_PAUSE)
            call()
            for _ in range(per_turn):
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
        turns += 1
    return times


def _result(
    model: str,
    library: CompiledModel,
    inputs: dict[str, np.ndarray],
    threads: int,
    times: dict[str, list[float]],
    differences: dict[str, float],
) -> dict[str, Any]:
    own = statistics.median(times["tilewright"])
    engines = {}
    for name, values in times.items():
        ordered = sorted(values)
        median = statistics.median(ordered)
        engines[name] = {
            "median_ms": median * 1e3,
            "p10_ms": ordered[len(ordered) // 10] * 1e3,
            "p90_ms": ordered[len(ordered) * 9 // 10] * 1e3,
            "runs": len(ordered),
            "ratio": median / own,
            **({"max_difference": differences[name]} if name in differences else {}),
        }
    return {
        "model": str(model),
        "threads": threads,
        "inputs": {name: list(array.shape) for name, array in inputs.items()},
        "engines": engines,
        "roofline": _roofline(library, inputs, threads, own),
    }


def _roofline(
    library: CompiledModel, inputs: dict[str, np.ndarray], threads: int, seconds: float
) -> dict[str, float]:
    """The roofline's time of all kernels together, and its share of the measured time."""
    from tilewright.tools.roofline import machine

    rows = library.profile(*inputs.values())
    here = machine(threads)
    dtypes = library.metadata.get("contractions", {})
    floor = sum(here.floor_seconds(row.flops, row.bytes, row.bytes / row.calls, dtypes) for row in rows)
    return {
        "peak_gflops": here.peak_of(dtypes) / 1e9,
        "bandwidth_gbs": here.bandwidth / 1e9,
        "gflop": sum(row.flops for row in rows) / 1e9,
        "floor_ms": floor * 1e3,
        "share": floor / seconds,
    }


def _show(result: dict[str, Any]) -> None:
    out = console()
    table = Table(box=None)
    for column in ("engine", "median ms", "p10", "p90", "runs", "ratio", "max difference"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    for name, row in result["engines"].items():
        difference = row.get("max_difference")
        add_row(
            table,
            name,
            f"{row['median_ms']:.3f}",
            f"{row['p10_ms']:.3f}",
            f"{row['p90_ms']:.3f}",
            str(row["runs"]),
            f"{row['ratio']:.2f}",
            "" if difference is None else f"{difference:.1e}",
        )
    out.print(table)
    roof = result["roofline"]
    out.print(
        f"{result['threads']} threads; floor {roof['floor_ms']:.3f} ms "
        f"({roof['gflop']:.2f} GFLOP at {roof['peak_gflops']:.0f} GFLOP/s, {roof['bandwidth_gbs']:.0f} "
        "GB/s), "
        f"reached {roof['share']:.0%} of the roofline",
        highlight=False,
    )
