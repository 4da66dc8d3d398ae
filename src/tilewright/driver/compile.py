"""`tilewright.compile`: from a model in its framework to a library that runs without it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import (
    ArtifactError,
    CompileError,
    ReplaceWarning,
    TunedWarning,
    UnsupportedOperatorError,
    internal_errors,
)
from .frontend_registry import Frontend, find_frontend, import_model
from .memory_budget import fit_memory, memory_size
from .metadata import artifact_metadata, describe_source, mixed_metadata
from .opt_levels import DEFAULT, opt_level
from .options import (
    CompileOptions,
    check_arguments,
    dump_folder,
    kernel_schedules,
    kernels_to_place,
    pass_names,
    thread_count,
)
from .report import Report
from .structure import number_operators

if TYPE_CHECKING:
    from ..dialects.kernels import KernelDefinition
    from ..dialects.tensor import Group
    from ..frontends.dims import DimsArgument
    from ..ir.core import Module
    from ..ir.passes import Checker, Pass, Watcher
    from ..lowering.memory_plan import MemoryPlan
    from ..lowering.pipeline import Lowered
    from ..passes.graph.split_interpreted import Part
    from ..runtime.inspection import Inspection
    from ..runtime.model import CompiledModel
    from ..schedule.kernel_schedule import KernelSchedule
    from ..targets.base import Target
    from . import cache as artifact_cache
    from .precision import OutputError
    from .tuned import Tuned
    from .tuning_database import Database

Result = TypeVar("Result")


def compile(
    model: object,
    args: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    target: str = "cpu",
    precision: str | None = None,
    dims: DimsArgument | None = None,
    kwargs: Mapping[str, Any] | None = None,
    threads: int | None = None,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
    opt: str = DEFAULT,
    checks: bool = True,
    disable: Sequence[str] = (),
    check: bool = False,
    dump: str | Path | Watcher | None = None,
    replace: Sequence[KernelDefinition] = (),
    libraries: str | Sequence[str] = (),
    schedules: Iterable[KernelSchedule] = (),
    tuned: Database | str | Path | None = None,
    memory_budget: int | str | None = None,
    extra_metadata: Mapping[str, Any] | None = None,
) -> CompiledModel:
    """Compile a model for a target and load it.

    Args:
        model: A path (``.onnx``, ``.pt2``, ``.mlir``, ``.tw``, or a SavedModel's folder), a
            `torch.nn.Module`, a `torch.export.ExportedProgram`, an `onnx.ModelProto`, a
            `jax.export.Exported`, a function of `jax.jit`, a `tilewright.nn` module, a Python function over
            `tilewright.Tensor`, a `tilewright.ir` module, or a model of a registered front end. A dictionary
            of such models makes one library of several functions (`library.functions`) that share weights and
            states: ``{"prefill": (model, args, dims), "decode": (step, args)}``.
        args: Example inputs by position, or all by name in a dictionary: arrays, torch tensors, numbers.
            Their shapes and data types are the model's, where it does not state them itself.
        target: ``"cpu"`` (this machine), ``"cpu:x86-64-v3"`` and similar, ``"aarch64-linux"``,
            ``"x86_64-windows"``, ``"aarch64-android"`` and other systems, ``"wasm32"``,
            ``"wasm32:relaxed+threads"``, ``"c"``, ``"webgpu"``, or a registered target.
            ``"cpu:x86-64-v4+cores=64+l2=2M"`` states facts of the machine that schedules are made for.
        precision: None keeps the model's own data types. ``"bf16"`` and ``"f16"`` convert the operands of
            contractions, attention included, to that type; sums and everything else stay float32. ``"tf32"``
            (`cuda`) lets instructions round factors of float32 products as they multiply them.
        dims: Names and bounds of dynamic dimensions by input and axis: ``{"input_ids": {0: "batch<=8", 1:
            "16<=seq<=512"}}``. Without an entry a dimension has the example's size.
        kwargs: Example inputs by name.
        threads: The most threads that a run uses. The default is all cores of the process.
        cache: Whether the cache of compiled models is read and written.
        progress: Called with the name of each stage as it begins.
        opt: The optimization level. ``"O0"`` compiles fastest, ``"O1"`` leaves out the passes that rearrange
            weights and tensors, ``"O2"`` runs all passes, ``"O3"`` also has LLVM optimize most.
            `library.report.passes` lists the passes that ran.
        checks: Whether runs compare indices with their dimensions and integer divisors with zero. Without
            checks an index out of range reads the nearest element or writes nothing, and a division by zero
            gives any number.
        disable: For work on the compiler: names of passes to leave out.
        check: For work on the compiler: interpret the module before and after each pass and compare the
            results.
        dump: For work on the compiler: a folder for the text of the module after each pass, or a function of
            the module, the pass's name, and "before" or "after", which is called around each pass.
        replace: Kernels of your own (`tilewright.c_kernel`) that take the place of the subgraphs equal to
            their patterns. `library.report.replaced` has the number of each; none is a warning.
        libraries: Libraries of vendors that compute products of matrices, ``"mkl"`` and ``"onednn"`` on
            ``cpu`` and ``"cublas"`` on ``cuda``, or convolutions, ``"cudnn"`` on ``cuda``. If several take
            an operator, the first computes it. The artifact opens them when it is loaded.
            `library.report.libraries` has the number of operators by form. Where `tuned` has timings of
            `tilewright.measure_libraries`, the faster code is taken.
        schedules: Schedules for some of the kernels, in place of the target's rules: see `tilewright.pin`,
            `tilewright.schedule_kernel` and `tilewright.load_schedules`. The first that fits a kernel
            counts. `library.kernels` lists the kernels.
        tuned: A database of `tilewright.tune`, or its path. Kernels that it has measured choices for, on this
            target and with this number of threads, are compiled with them. `library.report.tuned` tells what
            became of each.
        memory_budget: The most working memory of a run, beside weights, states, inputs and outputs, in bytes
            or as text (``"2GB"``, ``"512MiB"``). Where a backward pass would keep more, it computes values of
            the forward pass again, no more than it must by estimate. Dynamic dimensions count with their
            upper bounds.
        extra_metadata: Entries to add to the artifact's metadata: JSON types, under names of your own. The
            model is then not kept in the cache.

    Returns:
        The compiled model, which is called like a function: see `tilewright.runtime.model.CompiledModel`.

    Raises:
        UnsupportedOperatorError: Operators without a translation, all of them, with their places in the
            model.
        CompileError: The model or an option is wrong; the message names it.
        InternalError: A bug of the compiler; the message names the operation and its place in the model.
    """
    start = time.perf_counter()
    from ..ir.debug import debug_settings
    from ..ir.passes import passes_observed
    from ..targets.registry import resolve
    from .precision import operand_type, rounding_target

    debug = debug_settings()
    resolved_target = resolve(target)
    resolved_target = rounding_target(precision, resolved_target)
    options = CompileOptions(
        target=resolved_target,
        precision=operand_type(precision, resolved_target),
        opt=opt_level(opt),
        checks=checks,
        threads=thread_count(threads),
        use_cache=cache,
        disable=pass_names(disable),
        check=check or debug.check,
        dump=dump_folder(dump or passes_observed.get() or debug.dump),
        replace=kernels_to_place(replace),
        libraries=_libraries(libraries, resolved_target),
        schedules=kernel_schedules(schedules),
        tuned=None if tuned is None else _tuned(tuned, resolved_target, thread_count(threads)),
        memory_budget=None if memory_budget is None else memory_size(memory_budget),
        extra_metadata=dict(extra_metadata or {}),
        **({} if progress is None else {"progress": progress}),
    )
    check_arguments(args, kwargs, dims)
    with internal_errors():
        library = _find_or_compile(model, args, dict(kwargs or {}), dims, options, start)
    library.report.finish(time.perf_counter() - start)
    if missed := [name for name, count in library.report.replaced.items() if not count]:
        warnings.warn(
            f"replace: the model has no subgraph equal to the pattern of {', '.join(missed)}; "
            "library.ir('graph') shows its operators",
            ReplaceWarning,
            stacklevel=2,
        )
    if unused := library.report.tuned_unused:
        warnings.warn("tuned: " + "; ".join(unused), TunedWarning, stacklevel=2)
    return library


def _libraries(libraries: str | Sequence[str], target: Target) -> tuple[str, ...]:
    if not libraries:
        return ()
    from ..targets.vendor.choice import checked_names

    return checked_names(libraries, target.name)


def _tuned(tuned: object, target: Target, threads: int | None) -> Tuned | None:
    from .tuned import tuned_option

    return tuned_option(tuned, target, threads)


def _find_or_compile(
    model: object,
    args: Sequence[Any] | Mapping[str, Any] | None,
    kwargs: dict[str, Any],
    dims: DimsArgument | None,
    options: CompileOptions,
    start: float,
) -> CompiledModel:
    """The library of a model, from the cache if it is there. `start`: when `compile` was called."""
    from . import cache as artifact_cache

    frontend = None if isinstance(model, Mapping) else find_frontend(model)
    key_parts, uncached = _key_parts(options, frontend)
    path = Path(model) if isinstance(model, (str, Path)) else None
    file_key = None
    # The values of examples may become constants: then only the imported module identifies the model.
    if key_parts is not None and path is not None and frontend is not None and args is None and not kwargs:
        file_key = artifact_cache.key_of_file(path, frontend.other_files, key_parts, dims)

    def compile_anew(key_parts: artifact_cache.KeyParts | None) -> CompiledModel:
        file = None if file_key is None or path is None or key_parts is None else (file_key, path)
        compilation = Compilation(options, key_parts, file)
        compilation.report.uncached = uncached
        with internal_errors():
            return compilation.run(model, args, kwargs, dims, frontend)

    before_search = time.perf_counter()
    library = None
    if file_key is not None and path is not None:
        from .cached_library import library_of_file

        library = library_of_file(file_key, path, options, lambda: compile_anew(None))
    if library is None:
        library = compile_anew(key_parts)
    library.report.seconds = {"find": before_search - start, **library.report.seconds}
    return library


def _key_parts(
    options: CompileOptions, frontend: Frontend | None
) -> tuple[artifact_cache.KeyParts | None, str]:
    """The parts of the cache's keys beside the model; or None, and why the cache cannot be used though it may
    be."""
    if not options.may_use_cache:
        return None, ""
    from ..dialects.kernels import KERNELS
    from . import cache as artifact_cache
    from . import user_code

    try:
        code = user_code.fingerprint(options.target)
        importer = "" if frontend is None else user_code.fingerprint_of(frontend.import_model)
        # A file may name any kernel that this process has defined.
        importer += artifact_cache.key_of_kernels(options.target, (*KERNELS.values(), *options.replace))
        code += repr(options.libraries) if options.libraries else ""
        code += "" if options.memory_budget is None else f"memory {options.memory_budget}"
        for own in options.schedules:
            code += own.key() + ("" if own.function is None else user_code.fingerprint_of(own.function))
        if options.tuned is not None:
            code += options.tuned.key()
    except user_code.UnknownContents as error:
        return None, str(error)
    precision = None if options.precision is None else options.precision.name
    return artifact_cache.KeyParts(
        options.target, precision, options.opt.name, options.checks, code, importer
    ), ""


class Compilation:
    """One run of the compiler, stage by stage. As the `origin` of its library it prints the library's IR."""

    def __init__(
        self,
        options: CompileOptions,
        key_parts: artifact_cache.KeyParts | None = None,
        file: tuple[str, Path] | None = None,
        is_part: bool = False,
    ) -> None:
        """Set up a compilation.

        Args:
            options: How to compile.
            key_parts: The cache's keys beside the model; None: the cache is not used.
            file: The model's key in the cache as a file, and its path.
            is_part: Whether this is a part of a model, whose other parts may have the kernels that the user's
                schedules are for.
        """
        self.options = options
        self.target = options.target
        self.precision = options.precision
        self.key_parts = key_parts
        self.file = file
        self.is_part = is_part
        self.report = Report(opt=options.opt.name)
        self.graph: Module | None = None
        """The optimized graph-level module."""
        self.source: dict[str, str] = {}
        self.checker: Checker | None = None
        """Compares results in check mode. One for all pipelines, so that each result is interpreted once."""

    def run(
        self,
        model: object,
        args: Sequence[Any] | Mapping[str, Any] | None,
        kwargs: dict[str, Any],
        dims: DimsArgument | None,
        frontend: Frontend | None = None,
    ) -> CompiledModel:
        """Import, optimize, lower, generate code, link and load."""
        module = self._stage("import", lambda: import_model(model, args, kwargs, dims, frontend))
        from ..passes.graph.remove_checks import remove_checks
        from ..passes.graph.split_interpreted import separate

        if not self.options.keeps_checks:
            remove_checks(module)
        parts = separate(module)
        if parts is not None:
            return self._mixed(model, module, parts)
        self.source = self._stage("hash", lambda: describe_source(model, module))
        return self._find_or_compile(module)

    def _mixed(self, model: object, module: Module, parts: Sequence[Part]) -> CompiledModel:
        """A model of which the interpreter runs some parts."""
        from .mixed import MixedModel

        libraries = []
        for part in parts:
            if not part.interpreted:
                compilation = Compilation(self.options, self.key_parts, is_part=True)
                compilation.source = describe_source(part.module, part.module)
                libraries.append(compilation._find_or_compile(part.module))
        kernels = [kernel for library in libraries for kernel in library.metadata["kernels"]]
        self._refuse_unfit(libraries)
        metadata = mixed_metadata(module, describe_source(model, module), self.options, kernels)
        mixed = MixedModel(module, parts, libraries, metadata)
        mixed.report = self.report
        return mixed

    def _refuse_unfit(self, libraries: Sequence[CompiledModel]) -> None:
        """Refuse the user's schedules that no kernel of any of the libraries has."""
        unfit = [dict(library.metadata.get("unfit_schedules", ())) for library in libraries]
        if not any(unfit):
            return
        from ..schedule.kernel_schedule import refuse_unfit

        everywhere = set.intersection(*map(set, unfit))
        # A kernel of the right name tells more than that others have none.
        reasons = {n: max((part[n] for part in unfit), key=len) for n in everywhere}
        kernels = [name for library in libraries for name in library.kernels]
        refuse_unfit(self.options.schedules, reasons, kernels)

    def _find_or_compile(self, module: Module) -> CompiledModel:
        """The library of an imported module, from the cache if it is there."""
        if self.key_parts is None:
            return self._compile(module)
        from ..dialects.kernels import kernels_in
        from . import cache as artifact_cache
        from .cached_library import restore_library

        used = (*kernels_in(module).values(), *self.options.replace)
        kernels = artifact_cache.key_of_kernels(self.target, used)
        key = self.key_parts.key("module", self.source["xxh3_128"], *([kernels] if kernels else []))
        leaves = artifact_cache.leaves_of(module)
        artifact = artifact_cache.find(key)
        if artifact is not None:
            library = restore_library(
                artifact, self.options, leaves.__getitem__, self.source, lambda: self._compile(module)
            )
            library.report.seconds = {**self.report.seconds, **library.report.seconds}
            if not self.is_part:
                self._refuse_unfit([library])
        else:
            library = self._compile(module)
        self._stage("keep", lambda: self._store(key, library, leaves, artifact is not None))
        library.report.seconds["keep"] = self.report.seconds["keep"]
        return library

    def _store(self, key: str, library: CompiledModel, leaves: Sequence[Any], is_stored: bool) -> None:
        from . import cache as artifact_cache

        is_stored = is_stored or artifact_cache.store(key, self.target, library, leaves)
        if is_stored and self.file is not None:
            artifact_cache.store_file(*self.file, key, self.source, leaves)

    def _compile(self, module: Module) -> CompiledModel:
        budget, given = self.options.memory_budget, module
        if budget is not None:
            module = self._stage("fit memory", lambda: fit_memory(given, budget, self._planned_bytes))
        self._stage("optimize", lambda: self._optimize(module))
        return self._generate(module)

    def _generate(self, module: Module) -> CompiledModel:
        """The library of an optimized graph."""
        from ..lowering.memory_plan import plan_memory
        from ..schedule.kernel_schedule import refuse_unfit

        number_operators(module)
        self.graph = module.clone()
        lowered = self._stage("lower", lambda: self._lower(module))
        if not self.is_part:
            refuse_unfit(self.options.schedules, lowered.unfit, lowered.kernels)
        plan = self._stage("plan", lambda: plan_memory(lowered.module, self.target.info.alignment))
        self._record(lowered, plan)
        metadata = artifact_metadata(self.graph, lowered, plan, self.source, self.options, self.report)
        start = time.perf_counter()
        library: CompiledModel = self.target.build(
            lowered, plan, metadata, self.options.progress, self.options.threads, self.options.opt.llvm
        )
        self.report.seconds["build"] = time.perf_counter() - start
        library.report = self.report
        library.origin = self
        if self.precision is not None:
            self.report.precision = self.precision.name
            self.report.measure_error = lambda: self._error(library)
        return library

    def _record(self, lowered: Lowered, plan: MemoryPlan) -> None:
        """Put the effect of fusion and the memory plan into the report."""
        from ..ir.symbolic import bounds

        report = self.report
        report.kernels_before, before = lowered.unfused
        report.kernels_after, after = lowered.fused
        report.distinct_kernels = len(lowered.kernels)
        report.contractions, report.conversions = lowered.contractions, lowered.conversions
        report.slower = {k.name: k.slower for k in lowered.kernels.values() if k.slower}
        report.tuned = {k.name: k.tuned for k in lowered.kernels.values() if k.tuned}
        report.bytes_before, report.bytes_after = (
            str(b) if (top := bounds(b)[1]) is None else top for b in (before, after)
        )
        report.memory = plan.to_metadata()

    def grouped(self) -> Module:
        """The optimized graph, lowered to groups of tensor computations, each of which becomes a kernel."""
        from ..lowering.pipeline import tensor_passes

        assert self.graph is not None
        module = self.graph.clone()
        for step in tensor_passes(self.target.lowering, self.precision):
            self._run_enabled(step, module)
        return module

    def with_choices(self, tuned: Tuned) -> CompiledModel:
        """The library of the same optimized graph with measured choices."""
        assert self.graph is not None
        other = Compilation(changed(self.options, tuned=tuned))
        other.source = self.source
        with internal_errors():
            return other._generate(self.graph.clone())

    def kernel_texts(self) -> dict[str, dict[str, str]]:
        """The texts of each kernel at the levels ``tensor`` and ``loop``, by the kernel's name."""
        from ..ir.printer import print_op

        assert self.graph is not None
        texts: dict[str, dict[str, str]] = {}

        def note(names: Mapping[Group, str]) -> None:
            for group, name in names.items():
                if name not in texts:
                    texts[name] = {"tensor": print_op(group)}

        lowered = self._lower_with(self._run_enabled, self.graph.clone(), note)
        for name, levels in texts.items():
            levels["loop"] = print_op(lowered.module.symbol(name))
        return texts

    def _run_enabled(self, step: Callable[[Module], object], module: Module) -> None:
        from ..ir.passes import Pipeline

        Pipeline([step]).run(module, disabled=self.options.disabled)

    def lower_only(self, module: Module) -> Lowered:
        """Optimize and lower a graph-level module in place, and compare the result with what the target can
        run.

        Raises:
            UnsupportedOperatorError: Lists everything that the target cannot run.
        """
        from ..passes.graph.remove_checks import remove_checks

        if not self.options.keeps_checks:
            remove_checks(module)
        self._optimize(module)
        return self._lower(module)

    def _planned_bytes(self, module: Module) -> int:
        """The bytes of the largest arena of a graph-level module, which is used up."""
        from ..lowering.memory_plan import plan_memory

        options = changed(self.options, progress=CompileOptions.progress, dump=None, check=False)
        lowered = Compilation(options, is_part=True).lower_only(module)
        return plan_memory(lowered.module, self.target.info.alignment).largest.arena_bytes

    def _error(self, library: CompiledModel) -> OutputError | None:
        """The outputs' error against the same graph compiled in float32."""
        from .precision import output_error

        assert self.graph is not None
        if list(library.functions) != ["main"]:
            return None  # the states that several functions share depend on the order of calls
        plain = Compilation(CompileOptions(target=self.target, progress=self.options.progress))
        with internal_errors(), plain._generate(self.graph.clone()) as reference:
            try:
                return output_error(library, reference)
            except ArtifactError:  # compiled for another machine
                return None

    def _stage(self, name: str, work: Callable[[], Result]) -> Result:
        self.options.progress(name)
        start = time.perf_counter()
        try:
            return work()
        finally:
            self.report.seconds[name] = time.perf_counter() - start

    def _passes(self, passes: Sequence[Callable[[Module], object]], module: Module) -> None:
        """Run passes, and add their names and times to the report."""
        from ..ir.passes import Checker, CheckOptions, Pipeline, pass_name

        timing: dict[str, float] = {}
        run_options: dict[str, Any] = {"disabled": self.options.disabled, "timing": timing}
        if self.options.dump is not None:
            run_options.update(dump_after="all", dump_to=self.options.dump)
            if callable(self.options.dump):
                run_options["dump_before"] = "all"
        if self.options.check:
            # Rounding to 16 bits is meant to change results a little.
            rounds = self.precision is not None and any(pass_name(p) == "lower-precision" for p in passes)
            tolerance = CheckOptions(None, rtol=3e-2, atol=3e-2) if rounds else CheckOptions(None)
            if self.checker is None:
                self.checker = Checker(module, tolerance)
            self.checker.options = tolerance
            run_options["check"] = self.checker
        pipeline = Pipeline(list(passes))
        pipeline.run(module, **run_options)
        for name, seconds in timing.items():
            self.report.pass_seconds[name] = self.report.pass_seconds.get(name, 0.0) + seconds
        for name in pipeline.names():
            names = self.report.passes if name in timing else self.report.left_out
            if name not in names:
                names.append(name)

    def _optimize(self, module: Module) -> None:
        from ..dialects.kernels import kernels_in
        from ..ir.passes import pass_name
        from ..passes.registry import bound_passes

        passes = bound_passes("graph", self.target.lowering.context(self.precision))
        if self.options.replace:
            # Patterns are looked for in the model as it is, simplified, and with its operators recognized.
            at = next((k for k, step in enumerate(passes) if pass_name(step) == "recognize"), len(passes))
            place = self._replace_subgraphs
            passes = [place, *passes[:at], place, *passes[at : at + 1], place, *passes[at + 1 :]]
        if kernels_in(module):
            passes = [self._inline_kernels, *passes]
        if self.options.libraries and self.precision is None:
            passes = [*passes, self._use_libraries]
        self._passes(passes, module)

    def _replace_subgraphs(self, module: Module) -> None:
        from ..passes.graph.replace_subgraphs import replace_subgraphs

        for name, count in replace_subgraphs(module, self.options.replace).items():
            self.report.replaced[name] = self.report.replaced.get(name, 0) + count

    def _use_libraries(self, module: Module) -> None:
        from ..passes.graph.use_libraries import use_libraries
        from ..targets.vendor.choice import chooser

        tuned = self.options.tuned

        def recorded(structure: str) -> Mapping[str, Any] | None:
            found = None if tuned is None else tuned.find(structure)
            return None if found is None else found.choices

        choose = chooser(self.options.libraries, recorded, self.report.offered)
        self.report.libraries = use_libraries(module, choose)

    def _inline_kernels(self, module: Module) -> None:
        from ..passes.graph.replace_subgraphs import inline_kernels

        inline_kernels(module, self.target.info)

    def _lower(self, module: Module) -> Lowered:
        lowered = self._lower_with(lambda step, m: self._passes([step], m), module)
        refused = self.target.refusals(lowered)
        if refused:
            raise UnsupportedOperatorError(refused, self.target.name)
        return lowered

    def _lower_with(
        self,
        run_pass: Callable[[Pass, Module], object],
        module: Module,
        on_named: Callable[[Mapping[Group, str]], None] | None = None,
    ) -> Lowered:
        from ..lowering.pipeline import lower

        options = self.options
        own, tuned = options.schedules, options.tuned
        return lower(module, self.target.lowering, run_pass, self.precision, own, tuned, on_named)

    def inspect(
        self, library: CompiledModel, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Inspection:
        """Values inside of a run; see `CompiledModel.inspect`."""
        from .inspection import inspect_library

        def generate(module: Module) -> CompiledModel:
            other = Compilation(self.options, is_part=True)
            other.source = self.source
            return other._generate(module)

        assert self.graph is not None
        return inspect_library(self.graph, generate, library, names, args, kwargs)

    def ir(self, level: str, library: CompiledModel) -> str:
        """The text of a level: ``graph``, ``tensor``, ``loop``, ``host``, the target's code, ``asm``.

        Raises:
            CompileError: No such level; the message lists them.
        """
        from ..ir.printer import print_op
        from ..lowering.pipeline import tensor_passes

        assert self.graph is not None
        if level == "graph":
            return print_op(self.graph)
        if level == "tensor":
            module = self.graph.clone()
            # The choice of results written in place belongs to the host program.
            options = changed(self.target.lowering, in_place=False)
            for step in tensor_passes(options, self.precision):
                self._run_enabled(step, module)
            return print_op(module)
        if level in ("loop", "host"):
            lowered = self._lower_with(self._run_enabled, self.graph.clone())
            return print_op(lowered.module)
        text = library.code_text(level)
        if text is None:
            known = ("graph", "tensor", "loop", "host", *self.target.code_levels)
            raise CompileError(f"no level {level!r}; known: {', '.join(k for k in known if k != level)}")
        return text


__all__ = ["Compilation", "compile"]
