"""`tilewright.compile`: from a model in its framework to a library that runs without it; and `tilewright.load`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .errors import CompileError, InternalError, TilewrightError, UnsupportedOperatorError
from .opt_levels import DEFAULT, OptLevel, opt_level
from .packages import missing

if TYPE_CHECKING:
    from . import artifact_cache
    from .dialects.func import Func
    from .ir.core import Module
    from .ir.passes import Checker
    from .ir.types import DType
    from .lowering.memory_plan import MemoryPlan
    from .lowering.pipeline import Lowered
    from .precision import OutputError
    from .runtime.model import CompiledModel
    from .targets.base import Target
    from .transforms.separate import Part

Dims = Mapping[str, Mapping[int, str]]
"""Names and bounds of dynamic dimensions: ``{"input_ids": {0: "batch<=8", 1: "seq<=512"}}``."""


@dataclass
class Report:
    """What compilation did: seconds, kernels and bytes moved before and after fusion, memory.

    `seconds` are of stages, one after the other, and add up to the time that `compile` took; those of the passes (`pass_seconds`) are parts of "optimize" and "lower". Bytes are at the upper bounds of the symbolic dimensions.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    pass_seconds: dict[str, float] = field(default_factory=dict)
    kernels_before: int = 0
    kernels_after: int = 0
    distinct_kernels: int = 0
    bytes_before: int | str = 0
    bytes_after: int | str = 0
    memory: dict[str, Any] = field(default_factory=dict)
    cached: bool = False
    uncached: str = ""
    """Why the cache of compiled models was not used, where it could not be: code of the user's takes part whose contents cannot be told."""
    opt: str = DEFAULT
    """The level of optimization."""
    passes: list[str] = field(default_factory=list)
    """Names of the passes that ran, in order; one that runs several times stands where it ran first."""
    left_out: list[str] = field(default_factory=list)
    """Those that the level, or the caller, left out."""
    precision: str | None = None
    contractions: dict[str, int] = field(default_factory=dict)
    """How many contractions read their factors in each data type."""
    conversions: int = 0
    """Kernels that only convert to the lower precision; all other conversions are part of kernels that compute."""
    slower: dict[str, str] = field(default_factory=dict)
    """Kernels that the schedule of their kind does not fit, and why: they have a slower form."""
    measure_error: Callable[[], OutputError | None] | None = field(default=None, repr=False, compare=False)

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())

    def finish(self, elapsed: float) -> None:
        """Take note of the whole time: what no stage accounts for is "other"."""
        self.seconds["other"] = max(0.0, elapsed - self.total_seconds)

    @cached_property
    def error(self) -> OutputError | None:
        """How far outputs lie from float32's on sample inputs; computed when asked for, by compiling the model in float32.

        None for the model's own arithmetic, or when the artifact does not run here.
        """
        return None if self.measure_error is None else self.measure_error()

    def __str__(self) -> str:
        lines = [
            f"kernels: {self.kernels_before} before fusion, {self.kernels_after} after, {self.distinct_kernels} distinct",
            f"bytes moved per run: {self.bytes_before} before fusion, {self.bytes_after} after",
            "memory: " + ", ".join(f"{k} {v}" for k, v in self.memory.items()),
            f"seconds: {self.total_seconds:.3f}: " + ", ".join(f"{k} {v:.3f}" for k, v in self.seconds.items()),
        ]
        lines += [f"kernel '{name}' has a slower form: {reason}" for name, reason in self.slower.items()]
        if self.pass_seconds:
            lines.append("seconds of passes: " + ", ".join(f"{k} {v:.3f}" for k, v in self.pass_seconds.items()))
        if self.uncached:
            lines.append(f"not looked for in the cache: {self.uncached}")
        return "\n".join([*lines, *self.opt_lines(), *self.precision_lines()])

    def opt_lines(self) -> list[str]:
        """Which passes the level of optimization ran; nothing for a model of several parts, each of which has a report of its own."""
        if not self.passes:
            return []
        without = f"; without {', '.join(self.left_out)}" if self.left_out else ""
        return [f"optimization {self.opt} (LLVM {opt_level(self.opt).llvm}): {', '.join(self.passes)}{without}"]

    def precision_lines(self) -> list[str]:
        """What the precision asked for has done, the error measured; nothing for the model's own arithmetic."""
        if self.precision is None:
            return []
        factors = ", ".join(f"{n} of {dtype}" for dtype, n in sorted(self.contractions.items())) or "none"
        return [
            f"precision {self.precision}: contractions {factors}; conversion kernels {self.conversions}",
            str(self.error or "output error against float32: not measured"),
        ]


def compile(
    model: Any,
    args: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    target: str = "cpu",
    precision: str | None = None,
    dims: Dims | None = None,
    kwargs: Mapping[str, Any] | None = None,
    threads: int | None = None,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
    opt: str = DEFAULT,
    checks: bool = True,
    disable: Sequence[str] = (),
    check: bool = False,
    dump: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
) -> CompiledModel:
    """Compile a model for a target and load it.

    `model` is a path (``.onnx``, ``.pt2``), a `torch.nn.Module`, a `torch.export.ExportedProgram`, an `onnx.ModelProto`, a
    `tilewright.nn` module, a Python function over `tilewright.Tensor`, or a `tilewright.ir` module; `args` (by position, or a dictionary by name) and `kwargs` (by name) are example inputs where the model does not state its shapes. `dims` names dynamic
    dimensions and their bounds. A dictionary of such models makes one library of several functions (`library.functions`), which share weights and states:
    ``{"prefill": (model, args, dims), "decode": (step, args)}``. `precision` None keeps the model's own arithmetic; "bf16" and "f16" compute contractions, attention
    included, on factors of that type with float32 sums, and everything else in float32. `threads` limits the worker threads at run time
    (default: all cores of the process). `cache` False neither reads nor writes the cache of compiled models. `about` is what the artifact's metadata say beside (JSON's
    types, under names of your own); such artifacts are not kept in the cache. `opt` is the level of optimization: "O0" compiles fastest, "O1" leaves out what rearranges weights and
    tensors, "O2" runs all passes, "O3" has LLVM do its utmost as well; `library.report.passes` tells which passes ran.

    `checks` False leaves out what compares indices with the dimensions they are for, and integer divisors with zero: then an index out of range
    reads the nearest element, or writes nothing, and a division by zero gives any number (`docs/runtime.md`).

    For those who work on the compiler: `disable` names passes to leave out, `check` runs the module before and after each pass
    through the interpreter and compares, `dump` is a folder for the module after each pass.

    Raises:
        UnsupportedOperatorError: lists every operator that has no translation, with its places.
        CompileError: the model or an option is wrong; the message names it.
    """
    start = time.perf_counter()
    from . import artifact_cache
    from .options import check_arguments, dump_folder, pass_names, thread_count
    from .precision import factor_type
    from .targets.base import resolve

    chosen = resolve(target)
    factors = factor_type(precision, chosen)
    level = opt_level(opt)
    threads, disable, dump = thread_count(threads), sorted(pass_names(disable)), dump_folder(dump)
    check_arguments(args, kwargs, dims)
    say = progress or (lambda stage: None)
    keys, uncached = _cache_options(chosen, factors, level, checks, cache and not (disable or check or dump or about))

    file = None
    if (
        keys is not None and args is None and not kwargs
    ):  # values of examples may be compiled in: then what was imported is the key
        file = artifact_cache.key_of_file(model, keys, dims)

    def anew(keys: artifact_cache.Options | None) -> CompiledModel:
        compilation = Compilation(
            chosen,
            say,
            precision=factors,
            opt=level,
            checks=checks,
            disable=frozenset(disable),
            check=check,
            dump=dump,
            cache=keys,
            file=None if file is None or keys is None else (file, Path(model)),
            about=about,
        )
        compilation.report.uncached = uncached
        with _inside_errors():
            return compilation.run(model, args, dict(kwargs or {}), dims, threads)

    found = time.perf_counter()
    library = None if file is None else _from_file(file, Path(model), chosen, threads, lambda: anew(None))
    if library is None:
        library = anew(keys)
    library.report.seconds = {"find": found - start, **library.report.seconds}
    library.report.finish(time.perf_counter() - start)
    return library


def _cache_options(
    target: Target, precision: DType | None, opt: OptLevel, checks: bool, wanted: bool
) -> tuple[artifact_cache.Options | None, str]:
    """What the cache's keys hold beside the model; or None, and why the cache is not used though it is `wanted`."""
    if not wanted or not target.runs_here:
        return None, ""
    from . import artifact_cache, user_code

    try:
        code = user_code.fingerprint(target)
    except user_code.UnknownContents as error:
        return None, str(error)
    return artifact_cache.Options(target, None if precision is None else precision.name, opt.name, checks, code), ""


def _from_file(
    key: str, path: Path, target: Target, threads: int | None, compile_anew: Callable[[], CompiledModel]
) -> CompiledModel | None:
    """The library of a model in a file that has been compiled before; None where it has not."""
    from . import artifact_cache
    from .errors import ArtifactError
    from .kept_weights import unchanged

    noted = artifact_cache.find_file(key, path)
    found = None if noted is None else artifact_cache.find(noted[0])
    if noted is None or found is None:
        return None
    _, source, leaf, files = noted
    seen = [(file, file.stat()) for file in files]

    def checked(number: int) -> Any:
        for file, then in seen:
            if not unchanged(file, then):
                raise ArtifactError(
                    f"{file} has changed since it was compiled, before its weights were needed: compile it again"
                )
        return leaf(number)

    return _from_cache(found, target, threads, checked, source, compile_anew)


def _from_cache(
    found: tuple[Any, bytes],
    target: Target,
    threads: int | None,
    leaf: Callable[[int], Any],
    source: dict[str, str],
    compile_anew: Callable[[], CompiledModel],
) -> CompiledModel:
    """A kept library that behaves like one just compiled."""
    from .kept_weights import load as load_weights

    start = time.perf_counter()
    body, weights = found
    library: CompiledModel = target.restore(body, lambda: load_weights(weights, leaf), threads, source)
    metadata = library.metadata
    fusion = metadata["fusion"]
    library.report = Report(
        cached=True,
        seconds={"load": time.perf_counter() - start},
        kernels_before=fusion["kernels_before"],
        kernels_after=fusion["kernels_after"],
        distinct_kernels=len(metadata["kernels"]),
        bytes_before=fusion["bytes_before"],
        bytes_after=fusion["bytes_after"],
        memory=metadata["memory"],
        opt=metadata["opt"],
        passes=metadata["passes"],
        left_out=sorted(opt_level(metadata["opt"]).without),
        precision=metadata["precision"],
        contractions=metadata["contractions"],
        conversions=metadata["conversions"],
        slower={k["name"]: k["slower"] for k in metadata["kernels"] if "slower" in k},
        measure_error=lambda: compile_anew().report.error,
    )
    library.origin = _Kept(compile_anew)
    return library


class _Kept:
    """Stands for the compilation of a model found in the cache: runs it when someone wants to look inside."""

    def __init__(self, compile_anew: Callable[[], CompiledModel]) -> None:
        self.compile_anew = compile_anew
        self.library: CompiledModel | None = None

    def compiled(self) -> CompiledModel:
        if self.library is None:
            self.library = self.compile_anew()
        return self.library

    def ir(self, level: str, library: CompiledModel) -> str:
        return self.compiled().ir(level)


class Compilation:
    """One run of the compiler; keeps what `lib.ir` shows."""

    def __init__(
        self,
        target: Target,
        progress: Callable[[str], None],
        *,
        precision: DType | None = None,
        opt: OptLevel | None = None,
        checks: bool = True,
        disable: frozenset[str] = frozenset(),
        check: bool = False,
        dump: str | Path | None = None,
        cache: artifact_cache.Options | None = None,
        file: tuple[str, Path] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.about = dict(about or {})
        self.target = target
        self.precision = precision
        self.cache = cache
        self.file = file
        """The model's, and its key in the cache."""
        self.progress = progress
        self.checks = checks and target.has_checks
        self.opt = opt or opt_level(DEFAULT)
        self.disable, self.check, self.dump = disable | self.opt.without, check, dump
        self.report = Report(opt=self.opt.name)
        self.graph: Module | None = None
        self.source: dict[str, str] = {}
        self.checker: Checker | None = None  # of one pass after the other, so that each result is interpreted once

    def run(
        self,
        model: Any,
        args: Sequence[Any] | Mapping[str, Any] | None,
        kwargs: dict[str, Any],
        dims: Dims | None,
        threads: int | None,
    ) -> CompiledModel:
        """Import, optimize, lower, generate code, link, load."""
        module = self._stage("import", lambda: import_model(model, args, kwargs, dims))
        from .transforms.checks import remove_checks
        from .transforms.separate import separate

        if not self.checks:
            remove_checks(module)

        parts = separate(module)
        if parts is not None:
            return self._mixed(model, module, parts, threads)
        self.source = self._stage("hash", lambda: source_of(model, module))
        return self._kept_or_compiled(module, threads)

    def _mixed(self, model: Any, module: Module, parts: Sequence[Part], threads: int | None) -> CompiledModel:
        """A model of which the interpreter runs some parts."""
        from .dialects import func
        from .mixed import MixedModel

        libraries = []
        options: dict[str, Any] = {
            "opt": self.opt, "checks": self.checks, "disable": self.disable, "check": self.check, "dump": self.dump, "cache": self.cache
        }  # fmt: skip
        for part in parts:
            if not part.interpreted:
                compilation = Compilation(self.target, self.progress, precision=self.precision, **options)
                compilation.source = source_of(part.module, part.module)
                libraries.append(compilation._kept_or_compiled(part.module, threads))
        main = module.symbol("main")
        assert isinstance(main, func.Func)
        metadata = {
            "source": source_of(model, module),
            **_interface(main),
            "target": self.target.describe(),
            "precision": None if self.precision is None else self.precision.name,
            "opt": self.opt.name,
            "checks": self.checks,
            "kernels": [kernel for library in libraries for kernel in library.metadata["kernels"]],
        }
        mixed = MixedModel(module, parts, libraries, metadata)
        mixed.report = self.report
        return mixed

    def _kept_or_compiled(self, module: Module, threads: int | None) -> CompiledModel:
        if self.cache is None:
            return self._compile(module, threads)
        from . import artifact_cache

        key, leaves = self.cache.key("module", self.source["xxh3_128"]), artifact_cache.leaves_of(module)
        found = artifact_cache.find(key)
        if found is not None:
            library = _from_cache(
                found, self.target, threads, leaves.__getitem__, self.source, lambda: self._compile(module, threads)
            )
            library.report.seconds = {**self.report.seconds, **library.report.seconds}
        else:
            library = self._compile(module, threads)
        self._stage("keep", lambda: self._keep(key, library, leaves, found is not None))
        library.report.seconds["keep"] = self.report.seconds["keep"]
        return library

    def _keep(self, key: str, library: CompiledModel, leaves: Sequence[Any], is_kept: bool) -> None:
        from . import artifact_cache

        if (is_kept or artifact_cache.store(key, self.target, library, leaves)) and self.file is not None:
            artifact_cache.store_file(*self.file, key, self.source, leaves)

    def _compile(self, module: Module, threads: int | None) -> CompiledModel:
        self._stage("optimize", lambda: self._optimize(module))
        return self._generate(module, threads)

    def _generate(self, module: Module, threads: int | None) -> CompiledModel:
        """The library of an optimized graph."""
        from .ir.symbolic import bounds
        from .lowering.memory_plan import plan_memory

        self.graph = module.clone()
        lowered = self._stage("lower", lambda: self._lower(module))
        plan = self._stage("plan", lambda: plan_memory(lowered.module))
        self.report.kernels_before, before = lowered.unfused
        self.report.kernels_after, after = lowered.fused
        self.report.distinct_kernels = len(lowered.kernels)
        self.report.contractions, self.report.conversions = lowered.contractions, lowered.conversions
        self.report.slower = {k.name: k.slower for k in lowered.kernels.values() if k.slower}
        self.report.bytes_before, self.report.bytes_after = (
            str(b) if (top := bounds(b)[1]) is None else top for b in (before, after)
        )
        self.report.memory = plan.to_metadata()
        metadata = self._metadata(lowered, plan)
        start = time.perf_counter()
        library: CompiledModel = self.target.build(lowered, plan, metadata, self.progress, threads, self.opt.llvm)
        self.report.seconds["build"] = time.perf_counter() - start
        library.report = self.report
        library.origin = self
        if self.precision is not None:
            self.report.precision = self.precision.name
            self.report.measure_error = lambda: self._error(library)
        return library

    def rehearse(self, module: Module) -> Lowered:
        """What precedes machine code: the graph in place optimized, lowered and held against the target.

        Raises:
            UnsupportedOperatorError: lists all that the target cannot express.
        """
        from .transforms.checks import remove_checks

        if not self.checks:
            remove_checks(module)
        self._optimize(module)
        return self._lower(module)

    def _error(self, library: CompiledModel) -> OutputError | None:
        """The outputs' error against the same graph compiled in float32."""
        from .errors import ArtifactError
        from .precision import output_error

        assert self.graph is not None
        if list(library.functions) != ["main"]:
            return None  # what several functions do to the states they share depends on who is called when
        plain = Compilation(self.target, self.progress)
        with _inside_errors(), plain._generate(self.graph.clone(), None) as reference:
            try:
                return output_error(library, reference)
            except ArtifactError:  # for another machine
                return None

    def _stage(self, name: str, work: Callable[[], Any]) -> Any:
        self.progress(name)
        start = time.perf_counter()
        try:
            return work()
        finally:
            self.report.seconds[name] = time.perf_counter() - start

    def _passes(self, passes: Sequence[Callable[[Module], object]], module: Module) -> None:
        from .ir.passes import Checker, CheckOptions, Pipeline, pass_name

        timing: dict[str, float] = {}
        options: dict[str, Any] = {"disabled": self.disable, "timing": timing}
        if self.dump is not None:
            options.update(dump_after="all", dump_to=Path(self.dump))
        if self.check:
            # Rounding to 16 bits is meant to change results a little.
            rough = self.precision is not None and any(pass_name(p) == "lower-precision" for p in passes)
            tolerance = CheckOptions(None, rtol=3e-2, atol=3e-2) if rough else CheckOptions(None)
            if self.checker is None:
                self.checker = Checker(module, tolerance)
            self.checker.options = tolerance
            options["check"] = self.checker
        pipeline = Pipeline(list(passes))
        pipeline.run(module, **options)
        for name, seconds in timing.items():
            self.report.pass_seconds[name] = self.report.pass_seconds.get(name, 0.0) + seconds
        for name in pipeline.names():
            found = self.report.passes if name in timing else self.report.left_out
            if name not in found:
                found.append(name)

    def _optimize(self, module: Module) -> None:
        from .transforms.pipeline import GRAPH_PASSES

        self._passes(GRAPH_PASSES, module)

    def _lower(self, module: Module) -> Lowered:
        from .lowering.pipeline import lower

        lowered = lower(module, self.target.lowering, lambda step, m: self._passes([step], m), self.precision)
        refused = self.target.refusals(lowered)
        if refused:
            raise UnsupportedOperatorError(refused, self.target.name)
        return lowered

    def _metadata(self, lowered: Lowered, plan: MemoryPlan) -> dict[str, Any]:
        from .artifact.sources import ABI_VERSION
        from .dialects.func import entries, shared_states

        assert self.graph is not None
        functions = entries(self.graph)
        described = _described(functions, plan)
        if states := shared_states(functions):
            described["states"] = [
                {"name": n, "dtype": t.dtype.label, "shape": list(t.shape)} for n, (t, _) in states.items()
            ]
        kernels = [
            {
                "name": k.name,
                "kind": k.kind,
                "launches": k.launches,
                "flops": k.flops if isinstance(k.flops, int) else str(k.flops),
                "bytes": k.bytes if isinstance(k.bytes, int) else str(k.bytes),
                "operators": list(k.origins),
                **({"slower": k.slower} if k.slower else {}),
                "locations": [str(p.portable) for p in (k.location, *k.location.fused) if p.name or p.file][:4],
            }
            for k in lowered.kernels.values()
        ]
        return {
            **self.about,
            "format": 1,
            "abi": ABI_VERSION,
            "compiler": f"tilewright {__version__}",
            "source": self.source,
            **described,
            "target": self.target.describe(),
            "precision": None if self.precision is None else self.precision.name,
            "opt": self.opt.name,
            "checks": self.checks,
            "passes": self.report.passes,
            "contractions": lowered.contractions,
            "conversions": lowered.conversions,
            "kernels": kernels,
            "memory": plan.to_metadata(),
            "parameters": plan.parameters(),
            "fusion": {
                "kernels_before": self.report.kernels_before,
                "kernels_after": self.report.kernels_after,
                "bytes_before": self.report.bytes_before,
                "bytes_after": self.report.bytes_after,
            },
        }

    def ir(self, level: str, library: Any) -> str:
        """The text of a level: ``graph``, ``tensor``, ``loop``, ``host``, the target's code, ``asm``.

        Raises:
            CompileError: no such level.
        """
        from .ir.printer import print_op
        from .lowering.pipeline import lower, tensor_passes

        assert self.graph is not None
        if level == "graph":
            return print_op(self.graph)
        if level == "tensor":
            module = self.graph.clone()
            for step in tensor_passes(self.target.lowering, self.precision):
                step(module)
            return print_op(module)
        if level in ("loop", "host"):
            lowered = lower(self.graph.clone(), self.target.lowering, lambda step, m: step(m), self.precision)
            return print_op(lowered.module)
        text: str | None = library.code_text(level)
        if text is None:
            raise CompileError(f"no level {level!r}; known: graph, tensor, loop, {self.target.code_level}, asm")
        return text


def _interface(main: Func) -> dict[str, Any]:
    """What the metadata says of a function's arguments and results."""
    from .lowering.interface import interface

    types = {n: v.type for n, v in zip(main.arg_names, main.body.args, strict=True)}
    states = dict(main.states)
    found = interface(
        [(n, t) for n, t in types.items() if n not in states],
        [(n, v.type) for n, v in zip(main.result_names, main.outputs, strict=True)],
    )
    for entry in found["inputs"]:
        if entry["name"] in main.updates:
            entry["updated"] = True
    if main.nested:
        found["nested"] = dict(zip(("inputs", "outputs"), main.nested, strict=True))
    return found | ({"seed": main.seed} if main.seed else {})


def _described(functions: Sequence[Func], plan: MemoryPlan) -> dict[str, Any]:
    """What the metadata say of a module's functions: of "main" as of the model itself, and where there are others of each by its name."""
    from .transforms.index_limits import index_limits

    found: dict[str, dict[str, Any]] = {}
    for function in functions:
        entry = found[function.sym_name] = _interface(function)
        limits = index_limits(function)
        for tensor in entry["inputs"]:
            if tensor["name"] in limits:
                tensor["limit"] = limits[tensor["name"]]
    main = found.get("main", {"inputs": [], "outputs": [], "symbols": {}, "solver": []})
    if list(found) == ["main"]:
        return main
    memory = {name: {"memory": plan.functions[name].to_metadata()} for name in found}
    return {**main, "functions": {name: {**entry, **memory[name]} for name, entry in found.items()}}


def source_of(model: Any, module: Module) -> dict[str, str]:
    """What the metadata says of the source model: its kind, its name, and a hash of its graph and weights."""
    from . import artifact_cache

    found = {"xxh3_128": artifact_cache.hash_module(module)}
    if isinstance(model, (str, Path)):
        return {"kind": Path(model).suffix.lstrip("."), "name": Path(model).name, **found}
    if isinstance(model, Mapping):
        return {"kind": "functions", "name": ", ".join(model), **found}
    kind = type(model)
    return {"kind": kind.__module__.partition(".")[0], "name": kind.__name__, **found}


def import_model(
    model: Any, args: Sequence[Any] | Mapping[str, Any] | None, kwargs: dict[str, Any], dims: Dims | None
) -> Module:
    """The graph-level module of a model of any kind.

    Raises:
        CompileError: nothing reads this kind of model, or an example is of no input; names what it is and what is read.
    """
    from .ir.core import Module

    if isinstance(args, Mapping):
        if twice := sorted(set(args) & set(kwargs)):
            raise CompileError(f"the example of '{twice[0]}' is given twice, in args and in kwargs")
        kwargs = {**args, **kwargs}
        args = None
    if isinstance(model, Module):
        return _examples_known(model.clone(), kwargs)
    if isinstance(model, Mapping):
        if args is not None or kwargs or dims:
            raise CompileError("of several functions each has arguments of its own: {'name': (model, args, dims), ...}")
        return _import_functions(model)
    if isinstance(model, (str, Path)):
        return _import_path(Path(model), args, kwargs, dims)
    origin = type(model).__module__.partition(".")[0]
    bases = {base.__module__.partition(".")[0] + "." + base.__name__ for base in type(model).__mro__}
    if origin == "onnx" and type(model).__name__ == "ModelProto":
        from .frontends.onnx import import_onnx

        return import_onnx(model, dims, args, kwargs)
    if "torch.Module" in bases or type(model).__name__ == "ExportedProgram":
        from .frontends.torch import import_torch

        module = import_torch(model, args, dims, kwargs)
        return module if "torch.Module" in bases else _examples_known(module, kwargs)
    if origin == "jax" and type(model).__name__ == "Exported":
        from .frontends.stablehlo import import_stablehlo

        return _examples_known(import_stablehlo(model, dims), kwargs)
    if origin in ("jax", "jaxlib") and callable(model):
        return _import_jitted(model, args, kwargs, dims)
    if callable(model):
        from .frontends.trace import import_function
        from .just_in_time import Jitted

        return import_function(model.function if isinstance(model, Jitted) else model, args, dims, kwargs)
    raise CompileError(
        f"cannot compile a {type(model).__name__}: expected a path (.onnx, .pt2, .mlir, .tw), a torch.nn.Module, a torch.export.ExportedProgram, "
        "an onnx.ModelProto, a jax.export.Exported, a tilewright.nn Module, a Python function over tilewright.Tensor or a tilewright.ir Module"
    )


def _import_jitted(model: Any, args: Sequence[Any] | None, kwargs: dict[str, Any], dims: Dims | None) -> Module:
    """What `jax.jit` returns has no shapes: those of the examples are exported."""
    import jax

    from .frontends.stablehlo import import_stablehlo

    if args is None and not kwargs:
        raise CompileError(
            "a function of jax.jit has no shapes: give examples, tw.compile(f, args), "
            "or what jax.export.export(f)(...) makes of shapes, which may be symbolic"
        )
    return import_stablehlo(jax.export.export(model, platforms=["cpu"])(*args or (), **kwargs), dims)


def _import_functions(models: Mapping[str, Any]) -> Module:
    """One module of several models, each of one function, which is renamed."""
    from .dialects.func import entries, shared_states
    from .ir.core import Module

    module = Module()
    for name, given in models.items():
        model, args, dims = (*given, None, None)[:3] if isinstance(given, tuple) else (given, None, None)
        functions = entries(import_model(model, args, {}, dims))
        if len(functions) != 1 or not name.isidentifier():
            what = "a name" if len(functions) == 1 else "a model of one function"
            raise CompileError(f"function {name!r} of the library: give {what} (the model has {len(functions)})")
        (function,) = functions
        function.detach()
        function.sym_name = name
        module.body.append(function)
    if not models:
        raise CompileError("a library needs at least one function")
    shared_states(entries(module))
    return module


def _import_path(path: Path, args: Sequence[Any] | None, kwargs: dict[str, Any], dims: Dims | None) -> Module:
    if not path.exists():
        raise CompileError(f"{path}: no such file")
    if path.is_dir():
        from .frontends.stablehlo.saved_model import import_saved_model, is_saved_model

        if is_saved_model(path):
            if dims:
                raise CompileError(
                    f"{path}: TensorFlow makes StableHLO for fixed shapes only: leave 'dims' out, give example inputs"
                )
            return import_saved_model(path, args, kwargs)
        raise CompileError(f"{path}: is a folder; give the model file in it (.onnx, .pt2, .mlir or .tw)")
    if path.suffix == ".onnx":
        from .frontends.onnx import import_onnx

        return import_onnx(path, dims, args, kwargs)
    if path.suffix == ".pt2":
        from .frontends.torch import import_torch

        return _examples_known(import_torch(path, args, dims, kwargs), kwargs)
    if path.suffix == ".mlir":
        from .frontends.stablehlo import import_stablehlo

        return _examples_known(import_stablehlo(path, dims), kwargs)
    if path.suffix == ".tw":
        return _examples_known(_read_text(path), kwargs)
    raise CompileError(f"{path}: unknown kind of model {path.suffix!r}; known: .onnx, .pt2, .mlir, .tw")


def _examples_known(module: Module, kwargs: Mapping[str, Any]) -> Module:
    """The module of a model that needs no examples. Raises CompileError: there are examples of what is no input."""
    from .dialects.func import entries

    names = {name for function in entries(module) for name in function.arg_names}
    if unknown := sorted(set(kwargs) - names):
        raise CompileError(
            f"the model has no input '{unknown[0]}'; its inputs are {', '.join(sorted(names)) or 'none'}"
        )
    return module


def _read_text(path: Path) -> Module:
    """A module in Tilewright's own text, as `ir.printer` writes it."""
    from .dialects.func import Func
    from .ir.parser import parse
    from .ir.verifier import verify

    try:
        module = parse(path.read_text())
        verify(module)
        if not any(isinstance(op, Func) for op in module.body.ops):
            raise CompileError("it has no function")
    except Exception as error:  # attributes of a wrong kind fail in many ways
        raise CompileError(f"{path}: not a module in Tilewright's text: {error}") from error
    return module


@contextmanager
def _inside_errors() -> Iterator[None]:
    """Turns mistakes of the compiler itself into `InternalError`, which names the operation and its place in the user's model."""
    try:
        yield
    except (TilewrightError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, ImportError) and (absent := missing(error)) is not None:
            raise CompileError(absent) from error
        raise InternalError(f"{type(error).__name__}: {error}") from error


def load(
    path: str | Path,
    *,
    weights: str | Path | None = None,
    threads: int | None = None,
    pin_threads: bool = False,
    check_weights: bool = False,
) -> CompiledModel:
    """Load a compiled artifact (``.so``, ``.dylib``, ``.dll``, ``.wasm``, or a WebGPU ``.tar``).

    `weights`: the file of weights of an artifact that was saved without them, where it is not beside it. Nothing of it is read before it is needed;
    `check_weights` compares its checksum first. `threads` limits the threads that compute (default: all cores of the process); `pin_threads` binds each but the caller's to a core
    (Linux), for a process that has the machine to itself.

    Raises:
        ArtifactError: not there, damaged, of another ABI version, for a processor with other features, or with weights that are not its own.
    """
    from .artifact.kinds import kind_of

    path = Path(path)
    kind = kind_of(path)  # names may have been changed
    if kind.format == "WebAssembly":
        from .runtime.wasm import WasmLibrary

        return WasmLibrary(path, weights=weights)
    if kind.format == "tar":
        from .runtime.webgpu import load_webgpu

        return load_webgpu(path)
    from .options import thread_count
    from .runtime.library import Library

    threads = thread_count(threads)
    return Library(
        path, weights=weights, num_threads=threads or 0, pin_threads=pin_threads, check_weights=check_weights
    )


__all__ = ["Compilation", "Report", "compile", "import_model", "load"]
