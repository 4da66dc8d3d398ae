"""`tilewright doctor [MODEL]`: check this machine, and whether a model's operators are supported."""

from __future__ import annotations

import contextlib
import io
import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright.dialects.func import entries
from tilewright.errors import TilewrightError
from tilewright.ir.symbolic import free_symbols
from tilewright.tools.doctor import check_machine
from tilewright.tools.model_support import Support, examine

from .common import compile_options, console, dims_argument, is_artifact, number, shape_text, source_of

if TYPE_CHECKING:
    from tilewright.frontends.dims import DimsArgument
    from tilewright.ir.symbolic import Expr


@click.command("doctor")
@click.argument("model", required=False)
@compile_options
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print only the findings about MODEL, as JSON with all locations.",
)
def command(
    model: str | None,
    target: str,
    dims: tuple[Any, ...],
    threads: int | None,
    precision: str | None,
    as_json: bool,
) -> int:
    """Check this machine and, with MODEL, list the operators of the model that are not supported: how
    often each occurs, where, and what to do instead.

    MODEL is a file, or MODULE:NAME or FILE.py:NAME: a model in Python, or a function that returns one with a
    tuple of example inputs.
    """
    if as_json:
        if model is None:
            raise click.UsageError("--json needs an argument MODEL")
        with contextlib.redirect_stdout(io.StringIO()):
            support = _check_model(model, target, precision, dims_argument(dims))
        click.echo(json.dumps(_as_data(support), indent=2, ensure_ascii=False))
        return 0 if support.ok else 1
    sound = _check_machine()
    if model is not None:
        sound = _check_model(model, target, precision, dims_argument(dims)).ok and sound
    return 0 if sound else 1


def _say(state: str, what: str) -> None:
    colour = {"ok": "green", "missing": "yellow", "FAILED": "red"}[state]
    console().print(f"[{colour}]{state:>8}[/]  ", end="")
    console().print(what, highlight=False, markup=False, soft_wrap=True)


def _check_machine() -> bool:
    """Show the findings of `check_machine`; return whether Tilewright works here."""
    findings = list(check_machine())
    for finding in findings:
        _say(finding.state, finding.text)
    return all(finding.state != "FAILED" for finding in findings)


def _check_model(model: str, target: str, precision: str | None, dims: DimsArgument | None) -> Support:
    if is_artifact(model):
        raise click.UsageError(f"{model} is an artifact; doctor takes a model: use 'tilewright inspect'")
    source = source_of(model)
    if source.model is model and Path(model).suffix.lower() == ".onnx":
        for state, fact in _onnx_facts(model):
            _say(state, fact)
    support = examine(source.model, source.args, target=target, precision=precision, dims=dims)
    if support.problems:
        uses = sum(p.count for p in support.problems)
        what = f"{len(support.problems)} of its operators are not supported"
        if support.module is not None:
            what = f"target {target} cannot run it"
        _say("FAILED", f"{model}: {what} ({uses} {'use' if uses == 1 else 'uses'})")
        for operator in sorted(support.problems, key=lambda p: -p.count):
            console().print(
                textwrap.indent(str(operator), " " * 10), highlight=False, markup=False, soft_wrap=True
            )
    elif support.error is not None:
        _say("FAILED", f"{model}: {support.error}")
    if not support.ok or support.module is None:
        return support
    functions = entries(support.module)
    operators = support.operators
    for text in support.interpreted:
        _say(
            "missing",
            f"no target compiles {text}: it runs in Python, and the compiled model cannot be saved",
        )
    _say(
        "ok",
        f"{model}: all operators are supported ({_count(operators.total(), 'operation')} of "
        f"{_count(len(operators), 'kind')} after import)",
    )
    _say("ok", f"target {target}: {_count(support.kernels, 'different kernel')}")
    for f in functions:
        for name, value in zip(f.arg_names, f.body.args, strict=True):
            kind = "state" if name in dict(f.states) else "updated input" if name in f.updates else "input"
            where = f"{f.sym_name}: " if len(functions) > 1 else ""
            _say("ok", f"{where}{kind} {name}: {value.type.dtype.label}{shape_text(value.type.shape)}")
    arguments = [v for f in functions for v in f.body.args]
    for symbol in sorted({s for v in arguments for d in v.type.shape for s in free_symbols(d)}, key=str):
        _say("ok", f"dynamic dimension: {_bounds_text(symbol)}")
    return support


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _as_data(support: Support) -> dict[str, Any]:
    return {
        "supported": support.ok,
        "error": None if support.error is None else str(support.error),
        "problems": [asdict(p) for p in support.problems],
        "operators": dict(support.operators),
        "kernels": support.kernels,
    }


def _bounds_text(symbol: Expr) -> str:
    """``1 <= batch <= 8``, with advice for a symbol without an upper bound."""
    from tilewright.ir.symbolic import bounds

    low, high = bounds(symbol)
    return (
        f"{low} <= {symbol} <= {high}"
        if high is not None
        else f"{low} <= {symbol} (no upper bound; --dims can give one)"
    )


def _onnx_facts(model: str) -> Iterator[tuple[str, str]]:
    """Opsets, nodes, functions and external data of an ONNX file, each with its state."""
    from tilewright.frontends.onnx.model import read_model

    file = read_model(model)
    proto = file.model
    opsets = ", ".join(f"{e.domain or 'ai.onnx'} {e.version}" for e in proto.opset_import)
    maker = (
        f", written by {proto.producer_name} {proto.producer_version}".rstrip() if proto.producer_name else ""
    )
    functions = f", {len(proto.functions)} functions" if proto.functions else ""
    yield "ok", f"opset {opsets}; {len(proto.graph.node)} nodes{functions}{maker}"
    files: dict[str, int] = {}
    for tensor in proto.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            location = next((e.value for e in tensor.external_data if e.key == "location"), "")
            try:
                size = file.array(tensor, f"initializer '{tensor.name}'").nbytes
            except TilewrightError as error:
                yield "FAILED", str(error)
                return
            files[location] = files.get(location, 0) + size
    for location, size in files.items():
        yield "ok", f"external data: {number(size, 'B')} in {location}"
