"""Parts that several commands share: options, reading models and inputs, progress, printing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tilewright.artifact.kinds import SUFFIXES, check_suffix, suffix_of
from tilewright.driver.opt_levels import DEFAULT, LEVELS

if TYPE_CHECKING:
    from tilewright.runtime.model import CompiledModel
    from tilewright.targets.gpu.performance import KernelResources

ARTIFACT_SUFFIXES = tuple(SUFFIXES)

ProgressFunction = Callable[..., None]


def console() -> Console:
    """The console for results: stdout, without wrapping where it is not a terminal."""
    return Console(emoji=False) if sys.stdout.isatty() else Console(width=160, emoji=False)


class Dims(click.ParamType):
    """`NAME:dim,dim,...` with one entry for each dimension of the input; an empty entry leaves the dimension
    as it is.
    """

    name = "INPUT:DIM,DIM,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, dict[int, str]]:
        name, colon, rest = str(value).rpartition(":")
        if not colon or not name:
            self.fail(
                f"'{value}' does not have the form {self.name}: write it as input_ids:batch<=8,seq<=512",
                param,
                ctx,
            )
        entries = {axis: text.strip() for axis, text in enumerate(rest.split(",")) if text.strip()}
        return name.strip(), entries


class Assignment(click.ParamType):
    """`NAME=VALUE`."""

    def __init__(self, what: str, kind: Callable[[str], Any] = str) -> None:
        self.name = f"NAME={what}"
        self.kind = kind

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        name, equals, text = str(value).partition("=")
        try:
            if not equals or not name:
                raise ValueError
            return name.strip(), self.kind(text.strip())
        except ValueError:
            self.fail(f"'{value}' does not have the form {self.name}", param, ctx)


target_option = click.option(
    "--target",
    default="cpu",
    show_default=True,
    help="Target to compile for: cpu, cpu:x86-64-v3, aarch64-android, x86_64-windows, wasm32, webgpu, ...",
)
opt_option = click.option(
    "--opt", type=click.Choice(list(LEVELS)), default=DEFAULT, show_default=True, help="Optimization level."
)
json_option = click.option(
    "--json",
    "json_path",
    metavar="FILE",
    help="Also write the result to this file as JSON ('-': write only the JSON, to stdout).",
)


def _import(context: click.Context, _: click.Parameter, names: tuple[str, ...]) -> None:
    for name in names:
        _python_module(name)
    context.meta[_IMPORTS] = names


import_option = click.option(
    "--import",
    "imports",
    multiple=True,
    expose_value=False,
    is_eager=True,
    callback=_import,
    help="A Python module or file to import first, such as one that defines operators or registers families "
    "of language models. May be repeated.",
)


def compile_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every command that may compile for one target: --target and `model_options`."""
    return target_option(model_options(command))


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every command that may compile: --dims, --threads, --precision, --import,
    --no-cache.
    """
    for decorate in (
        click.option(
            "--no-cache",
            is_flag=True,
            expose_value=False,
            callback=_remember_cache,
            help="Compile without the cache of compiled models: neither read it nor write to it.",
        ),
        import_option,
        click.option(
            "--precision",
            help="Data type of the operands of matrix products and convolutions: bf16 or f16 (default: the "
            "model's own).",
        ),
        click.option("--threads", type=click.IntRange(min=1), help="Number of threads (default: all cores)."),
        click.option(
            "--dims",
            type=Dims(),
            multiple=True,
            help='Dynamic dimensions and their bounds, e.g. "input_ids:batch<=8,seq<=512". May be repeated.',
        ),
    ):
        command = decorate(command)
    return command


def _remember_cache(context: click.Context, _: click.Parameter, unwanted: bool) -> None:
    context.meta[_NO_CACHE] = unwanted


def cache_wanted() -> bool:
    """Whether the running command may use the cache of compiled models."""
    return not click.get_current_context().meta.get(_NO_CACHE, False)


_IMPORTS = f"{__name__}.imports"
_NO_CACHE = f"{__name__}.no_cache"


def _python_module(name: str) -> Any:
    """Import a module by name, or a file of Python.

    Raises:
        CompileError: The import fails; the message says why.
    """
    from tilewright.errors import CompileError
    from tilewright.tools.minimize import import_module

    try:
        return import_module(name)
    except Exception as error:  # the module's code may raise anything
        raise CompileError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def imported() -> tuple[str, ...]:
    """The modules and files that the running command's --import named."""
    names: tuple[str, ...] = click.get_current_context().meta.get(_IMPORTS, ())
    return names


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every command that runs a model: --function, and `random_input_options`."""
    return click.option(
        "--function", default="main", show_default=True, help="Function to run, of a library of several."
    )(random_input_options(command))


def random_input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the inputs of a run: --input, --dim, --seed."""
    for decorate in (
        click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random inputs."),
        click.option(
            "--dim",
            "sizes",
            type=Assignment("SIZE", int),
            multiple=True,
            help="Size of a dynamic dimension in random inputs, e.g. seq=128 (default: its lower bound). "
            "May be repeated.",
        ),
        click.option(
            "--input",
            "files",
            type=Assignment("FILE"),
            multiple=True,
            help="An input from a .npy file (default: random values). May be repeated.",
        ),
    ):
        command = decorate(command)
    return command


def is_artifact(path: str) -> bool:
    """Whether a path has the suffix of an artifact."""
    return suffix_of(path) in ARTIFACT_SUFFIXES


def check_output(path: str, target: str) -> None:
    """Check, before anything is compiled, that the output can be written and has a suffix of the target's
    artifacts.
    """
    from tilewright.errors import ArtifactError
    from tilewright.targets.registry import resolve

    try:
        check_suffix(path, resolve(target).suffixes, f"target {target}")
    except ArtifactError as error:
        raise click.UsageError(f"--output {error}") from None
    if not Path(path).resolve().parent.is_dir():
        raise click.ClickException(f"{path}: its folder does not exist")
    if Path(path).is_dir():
        raise click.ClickException(f"{path}: is a folder, not a file")


def dims_argument(dims: tuple[tuple[str, dict[int, str]], ...]) -> dict[str, dict[int, str]] | None:
    """The `dims` of `tilewright.compile` from the --dims options."""
    result: dict[str, dict[int, str]] = {}
    for name, entries in dims:
        result.setdefault(name, {}).update(entries)
    return result or None


def named_model(text: str) -> tuple[Any, tuple[Any, ...]] | None:
    """The object and example inputs for ``MODULE:NAME`` or ``FILE.py:NAME``; None for any other text.

    NAME is a model, or a function without parameters that returns one, alone or with a tuple of example
    inputs.
    """
    import inspect

    from tilewright.errors import CompileError, TilewrightError

    where, colon, name = text.rpartition(":")
    if (
        not colon
        or Path(text).exists()
        or not (where.endswith(".py") or where.replace(".", "_").isidentifier())
    ):
        return None
    module = _python_module(where)
    if not hasattr(module, name):
        raise CompileError(f"{where} defines no {name!r}")
    model = getattr(module, name)
    if inspect.isfunction(model) and not inspect.signature(model).parameters:
        try:
            model = model()
        except TilewrightError:
            raise
        except Exception as error:  # the user's function may raise anything
            raise CompileError(f"{text}() failed: {type(error).__name__}: {error}") from error
    pair = isinstance(model, tuple) and len(model) == 2 and isinstance(model[1], tuple)
    return model if pair else (model, ())


@dataclass(frozen=True)
class Source:
    """A model as a command names it: a path or a Python object, and its example inputs."""

    text: str
    model: Any
    args: tuple[Any, ...] | None = None
    python: str | None = None
    """The Python module or file that defines it."""


def source_of(text: str) -> Source:
    """The model for ``FILE``, ``FILE.py:NAME`` or ``MODULE:NAME``.

    Raises:
        click.ClickException: There is no such file.
        CompileError: Python cannot import it.
    """
    named = named_model(text)
    if named is not None:
        return Source(text, named[0], named[1] or None, text.rpartition(":")[0])
    require_file(text)
    return Source(text, text)


def compile_arguments(
    target: str, dims: tuple[Any, ...], threads: int | None, precision: str | None
) -> dict[str, Any]:
    """The arguments of `tilewright.compile` from the values of `compile_options`."""
    return {"target": target, "dims": dims_argument(dims), "threads": threads, "precision": precision}


def compile_source(
    source: Source,
    target: str,
    dims: tuple[Any, ...],
    threads: int | None,
    precision: str | None,
    *,
    finish: Callable[[Any, ProgressFunction], None] | None = None,
    **options: Any,
) -> CompiledModel:
    """Compile a model and show the progress.

    `target`, `dims`, `threads` and `precision` are the command's options of these names, `options` other
    options of `tilewright.compile`. `finish` does more work on the library while the progress is shown.
    """
    import tilewright as tw

    options = {"cache": cache_wanted(), **options}
    with progress_display() as progress:
        library = tw.compile(
            source.model,
            source.args,
            progress=progress,
            **compile_arguments(target, dims, threads, precision),
            **options,
        )
        if finish is not None:
            finish(library, progress)
    return library


def obtain(
    model: str | Source,
    target: str,
    dims: tuple[Any, ...],
    threads: int | None,
    precision: str | None = None,
    simulate: str | None = None,
) -> CompiledModel:
    """The compiled model at a path. An artifact is loaded; any other model is compiled, with its progress
    shown. With `simulate`, the CPU simulates the device that it is for: ``on``, or ``checked``.
    """
    import tilewright as tw

    if not isinstance(model, str) or not is_artifact(model):
        source = source_of(model) if isinstance(model, str) else model
        library = compile_source(source, target, dims, threads, precision)
        if simulate is None:
            return library
        if not hasattr(library, "simulated"):
            raise click.UsageError(
                f"--simulate is for devices: give --target cuda, hip or metal, not {target}"
            )
        return library.simulated(checked=simulate == "checked")
    if dims:
        raise click.UsageError(
            f"--dims is for models that are compiled; the dimensions of the artifact {model} are fixed"
        )
    if precision:
        raise click.UsageError(
            f"--precision is for models that are compiled; the precision of the artifact {model} is fixed"
        )
    return tw.load(model, threads=threads, simulate=False if simulate is None else simulate)


def require_file(path: str) -> None:
    """Raises click.ClickException unless `path` is a file."""
    if not Path(path).exists():
        raise click.ClickException(f"{path}: no such file")
    if Path(path).is_dir():
        raise click.ClickException(f"{path}: is a folder, not a file")


def function_of(library: CompiledModel, name: str) -> Any:
    """A function of a library by name. Raises click.UsageError: it has no such function."""
    if name not in library.functions:
        raise click.UsageError(f"no function '{name}': give --function one of {', '.join(library.functions)}")
    return library.functions[name]


def gather_inputs(
    metadata: Mapping[str, Any],
    files: tuple[tuple[str, str], ...],
    sizes: tuple[tuple[str, int], ...],
    seed: int,
) -> dict[str, np.ndarray]:
    """The inputs from --input files. The others are random, with the sizes of --dim or of the files."""
    from tilewright.driver.random_inputs import default_sizes, random_inputs
    from tilewright.errors import ShapeError

    entries = {entry["name"]: entry for entry in metadata["inputs"]}
    given = read_inputs(files, entries)
    known = dict(sizes)
    for name, array in given.items():
        if name not in entries:
            raise ShapeError(f"the model has no input '{name}'; its inputs are {', '.join(entries)}")
        for dim, size in zip(entries[name]["shape"], array.shape, strict=False):
            if isinstance(dim, str) and dim.isidentifier():
                known.setdefault(dim, size)
    missing = set(entries) - set(given)
    if not missing:
        return {name: given[name] for name in entries}
    generated = random_inputs(metadata, default_sizes(metadata, known), seed)
    return {name: given.get(name, generated[name]) for name in entries}


def read_inputs(files: tuple[tuple[str, str], ...], names: Collection[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of --input files by name. `names` are the model's inputs, where they are known: an input's
    name may contain "=".
    """
    return {name: _read_array(path) for name, path in (_with_equals(file, names) for file in files)}


def _with_equals(file: tuple[str, str], names: Collection[str]) -> tuple[str, str]:
    """Split an --input whose name contains "="."""
    parts = "=".join(file).split("=")
    splits = [("=".join(parts[:k]), "=".join(parts[k:])) for k in range(1, len(parts))]
    return next((split for split in splits if split[0] in names), file)


def _read_array(path: str) -> np.ndarray:
    require_file(path)
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise click.ClickException(f"{path}: not a .npy file: {error}") from None
    if not isinstance(array, np.ndarray):
        raise click.ClickException(f"{path}: holds several arrays; give each input a .npy file")
    return array


@contextmanager
def progress_display() -> Iterator[ProgressFunction]:
    """A function `progress(stage, done=0, total=0)` that shows the progress on stderr.

    A terminal shows a bar that is removed at the end; any other output gets one line for each stage of more
    than two seconds.
    """
    if not sys.stderr.isatty():
        begin, current = time.perf_counter(), [""]
        started = [begin]

        def lines(stage: str, done: int = 0, total: int = 0) -> None:
            now = time.perf_counter()
            if stage != current[0]:
                if current[0] and now - started[0] > 2:
                    print(f"{current[0]}: {now - started[0]:.1f} s", file=sys.stderr)
                current[0], started[0] = stage, now

        yield lines
        lines("")
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, count="")

        def show(stage: str, done: int = 0, total: int = 0) -> None:
            count = f"{done}/{total}" if total else ""
            bar.update(task, description=stage, completed=done, total=total or None, count=count)

        yield show


def shape_text(shape: Iterable[object]) -> str:
    """`[batch, seq, 384]`."""
    return f"[{', '.join(map(str, shape))}]"


def kernel_label(kernel: Mapping[str, Any]) -> str:
    """A kernel's name, with the condition of a variant."""
    return f"{kernel['name']} ({kernel['when']})" if kernel.get("when") else str(kernel["name"])


def add_row(table: Table, *cells: str) -> None:
    """Add a row of plain text: brackets in names and shapes are not markup."""
    table.add_row(*(Text(cell) for cell in cells))


def show_device_code(
    metadata: Mapping[str, Any], sizes: Mapping[str, int], library: CompiledModel | None = None
) -> None:
    """Show, for each GPU that the artifact has machine code for, what the code of the kernels says about
    their speed. Nothing is shown for other artifacts. Instructions of NVIDIA's kernels are counted where the
    library is given.
    """
    from tilewright.tools.gpu_report import reports

    out = console()
    for arch, device, rows in reports(metadata, sizes, getattr(library, "images", ())):
        out.print(f"\nkernels for {arch}, on {device.name}", style="bold")
        table = Table("name", box=None)
        for column in (
            *("blocks", "threads", "registers", "spills", "shared", "occupancy", "limited by"),
            *("load/store of 16 B", "matrix", "at least", "bound by"),
        ):
            table.add_column(column, justify="left" if column.endswith("by") else "right", no_wrap=True)
        for row in rows:
            found, entry = row.resources, row.kernel["device"]
            occupied, predicted = row.occupancy, row.prediction
            shared = found.shared_bytes + entry["dynamic_shared_bytes"]
            add_row(
                table,
                kernel_label(row.kernel),
                str(entry["blocks"] if row.blocks is None else row.blocks),
                str(entry["threads"]),
                str(found.registers),
                f"{found.spill_bytes} B" if found.spill_bytes else "",
                number(shared, "B") if shared else "",
                f"{occupied.share:.0%}" if occupied else "",
                occupied.limit if occupied else "",
                _wide(found),
                str(found.count("matrix") or ""),
                f"{predicted.seconds * 1e6:.2f} us" if predicted else "",
                predicted.bound if predicted else "",
            )
        out.print(table)
        if any(row.prediction for row in rows):
            total = sum(
                row.prediction.seconds * row.kernel.get("launches", 1) for row in rows if row.prediction
            )
            each = f"{device.launch * 1e6:.0f} us"
            out.print(f"all launches take at least {total * 1e3:.3f} ms, each {each}", highlight=False)


def _wide(resources: KernelResources) -> str:
    """The loads and stores of 16 bytes, of all from and to global memory."""
    kinds = ("global load", "global store")
    all_, wide = ([resources.count(f"{kind}{size}") for kind in kinds] for size in ("", " 16"))
    return "" if None in all_ else ", ".join(f"{w} of {a}" for w, a in zip(wide, all_, strict=True))


def number(value: float, unit: str) -> str:
    """A number with three digits and a decimal prefix: ``1.25 M``, ``340 k``."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def require_writable(path: str | Path) -> None:
    """Raises click.ClickException if a file that an option names cannot be written: checked before the work
    whose result it takes.
    """
    path = Path(path)
    new = not path.exists()
    try:
        with path.open("a"):
            pass
        if new:
            path.unlink()
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be written: {error.strerror or error}") from error


def write_text(path: str | Path, text: str) -> None:
    """Write a file that an option names. Raises click.ClickException: it cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be written: {error.strerror or error}") from error


def write_json(result: object, path: str | None) -> bool:
    """Write a result to a file, if `path` names one. Returns whether to show it as text as well: not if the
    JSON goes to stdout ('-').
    """
    text = json.dumps(result, indent=2)
    if path == "-":
        click.echo(text)
    elif path:
        Path(path).write_text(text + "\n")
    return path != "-"
