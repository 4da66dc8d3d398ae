"""`tilewright bench MODEL`: a compiled model, other engines and earlier versions on the same inputs, in one
process, in turns.
"""

from __future__ import annotations

import datetime
import logging
import statistics
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.table import Table

from tilewright.tools.kept_runs import keep, plot, read_kept
from tilewright.tools.timings import MARGIN, MARGIN_APART, Change, Turns, change, in_turns, joined, strip

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
    require_writable,
    source_of,
    write_json,
    write_text,
)

if TYPE_CHECKING:
    import torch

    from tilewright.runtime.model import CompiledModel

ENGINES = ("torch", "onnxruntime")


class _Rivals(click.ParamType):
    """Engines, and at most one earlier version: a kept run or an artifact."""

    name = "ENGINE,...|FILE"

    def convert(
        self, value: str | tuple[str, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        names = (
            tuple(name.strip() for name in str(value).split(",") if name.strip())
            if isinstance(value, str)
            else value
        )
        files = [name for name in names if _is_version(name)]
        for name in names:
            if name not in ENGINES and name not in files:
                known = ", ".join(ENGINES)
                self.fail(
                    f"unknown engine '{name}'; known: {known}, a kept run (.json) and an artifact", param, ctx
                )
        if len(files) > 1:
            self.fail(f"one earlier version at a time, not {', '.join(files)}", param, ctx)
        return names


def _is_version(name: str) -> bool:
    return is_artifact(name) or Path(name).suffix == ".json"


@click.command("bench")
@click.argument("model")
@compile_options
@input_options
@click.option(
    "--against",
    type=_Rivals(),
    help="Engines to compare with, or an earlier version: a file of --keep, or an artifact. The default is "
    f"{','.join(ENGINES)} for a model, nothing for an artifact.",
)
@click.option("--pt2", "pt2_path", help="The model as a .pt2 file, for torch where MODEL is an .onnx file.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Duration of the measurement.",
)
@click.option(
    "--keep",
    "kept_path",
    metavar="FILE.json",
    help="Keep the run in this file, with a copy of the artifact beside it, for a later --against.",
)
@click.option(
    "--margin",
    type=click.FloatRange(min=0),
    help=f"The change of an earlier version's time that counts as none (default: {MARGIN}; {MARGIN_APART} if "
    "it cannot run any more).",
)
@click.option("--plot", "plot_path", metavar="FILE.svg", help="Plot all calls to this file.")
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
    against: tuple[str, ...] | None,
    pt2_path: str | None,
    seconds: float,
    kept_path: str | None,
    margin: float | None,
    plot_path: str | None,
    json_path: str | None,
) -> int:
    """Time MODEL: an artifact, or a model that is compiled first (.onnx, .pt2, FILE.py:NAME), with other
    engines or an earlier version on the same inputs.

    All take turns. The first call of each turn is not counted. The result is each engine's median time, and
    its ratio to Tilewright's: above 1 means slower than Tilewright. If the model is slower than an earlier
    version beyond the noise, the exit code is 1.
    """
    if against is None:
        against = () if is_artifact(model) else ENGINES
    engines = [name for name in against if not _is_version(name)]
    version = next((name for name in against if _is_version(name)), None)
    if is_artifact(model) and engines:
        raise click.UsageError(
            f"{model} is an artifact, which {engines[0]} cannot run: give the model (.onnx or .pt2), or "
            "--against a kept run or another artifact"
        )
    if kept_path is not None and Path(kept_path).suffix != ".json":
        raise click.UsageError(f"--keep {kept_path}: give a name that ends with .json, as --against takes it")
    for path in (kept_path, plot_path):
        if path is not None:
            require_writable(path)
    from tilewright.driver.cores import usable_cores

    count = threads or usable_cores()
    source = None if is_artifact(model) else source_of(model)
    library = function_of(obtain(source or model, target, dims, count, precision), function)
    inputs = gather_inputs(library.metadata, files, sizes, seed)
    earlier = None if version is None else _earlier(version, count, function, inputs)
    with progress_display() as progress, tempfile.TemporaryDirectory() as folder:
        calls: dict[str, Callable[[], Any]] = {"tilewright": lambda: library(*inputs.values())}
        if earlier is not None and (former := earlier.library) is not None:
            calls[EARLIER] = lambda: former(*inputs.values())
        for engine in engines:
            assert source is not None
            progress(f"loading {engine}")
            calls[engine] = _engine(engine, source, pt2_path, inputs, count, Path(folder))
        differences = _differences(calls)
        turns = in_turns(calls, seconds, progress)
    result = _result(model, library, inputs, count, turns, differences)
    found = None if earlier is None else _change(earlier, turns, margin)
    if found is not None:
        result["change"] = {**asdict(found), "slower": found.slower, "faster": found.faster}
        result["change"]["against"] = version
    if kept_path is not None:
        keep(kept_path, result, turns, library)
    if plot_path is not None:
        write_text(plot_path, plot(turns, f"{Path(model).name}, {count} threads"))
    if write_json(result, json_path):
        _show(result, turns)
        if found is not None:
            console().print(found.text(), highlight=False, soft_wrap=True)
    return 1 if found is not None and found.slower else 0


EARLIER = "earlier"


@dataclass(frozen=True)
class _Earlier:
    """An earlier version: what can run now, and the times that were kept of it."""

    library: CompiledModel | None
    turns: Turns


def _earlier(version: str, threads: int, function: str, inputs: dict[str, np.ndarray]) -> _Earlier:
    """The earlier version that --against names.

    Raises:
        click.UsageError: It ran with other inputs, or, if it cannot run now, on another machine.
    """
    import tilewright as tw
    from tilewright.tools.roofline import processor_name

    if is_artifact(version):
        return _Earlier(function_of(tw.load(version, threads=threads), function), [])
    kept = read_kept(version)
    result = kept["result"]
    shapes = {name: list(array.shape) for name, array in inputs.items()}
    if result["inputs"] != shapes:
        raise click.UsageError(
            f"{version} was measured with inputs {result['inputs']}, not {shapes}: give the same --dim and "
            "--input"
        )
    if kept["artifact"] is not None:
        return _Earlier(function_of(tw.load(kept["artifact"], threads=threads), function), [])
    now = {"processor": processor_name(), "threads": threads}
    before = {key: result.get(key) for key in now}
    if now != before:
        raise click.UsageError(
            f"{version} is without its artifact, and was measured on {before['processor']} with "
            f"{before['threads']} threads, not on {now['processor']} with {threads}: measure both here"
        )
    return _Earlier(None, kept["turns"]["tilewright"])


def _change(earlier: _Earlier, turns: dict[str, Turns], margin: float | None) -> Change:
    if earlier.library is None:
        return change(turns["tilewright"], earlier.turns, paired=False, margin=margin)
    return change(turns["tilewright"], turns[EARLIER], paired=True, margin=margin)


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


def _result(
    model: str,
    library: CompiledModel,
    inputs: dict[str, np.ndarray],
    threads: int,
    turns: dict[str, Turns],
    differences: dict[str, float],
) -> dict[str, Any]:
    from tilewright.tools.roofline import processor_name

    own = statistics.median(joined(turns["tilewright"]))
    engines = {}
    for name, values in turns.items():
        ordered = sorted(joined(values))
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
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": processor_name(),
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


def _show(result: dict[str, Any], turns: dict[str, Turns]) -> None:
    out = console()
    rows = result["engines"].values()
    low = min(min(joined(part)) for part in turns.values())
    high = max(row["p90_ms"] for row in rows) * 1.1e-3
    table = Table(box=None)
    for column in ("engine", "median ms", "p10", "p90", "runs", "ratio", "max difference"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    table.add_column(f"{low * 1e3:.3g} to {high * 1e3:.3g} ms", no_wrap=True)
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
            strip(joined(turns[name]), low, high),
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
