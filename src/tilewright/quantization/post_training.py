"""`tilewright.quantize`: post-training quantization of a model with sample inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..driver.compile import compile
from ..driver.frontend_registry import find_frontend
from ..errors import CompileError, internal_errors
from ..frontends.dims import DimsArgument
from ..ir.core import Module, Value
from .calibrate import Batch, Runner, batches_of, observe
from .equalize import bias_correction, equalize, smooth
from .insert import PRECISIONS, Scheme, Weights, insert
from .model import QuantizedModel
from .observers import Observer, Statistics, observer_of
from .parameters import WEIGHTS, Parameters, activation_parameters
from .plan import Group, Plan, make_plan
from .prepare import main_function, prepared
from .report import LayerReport, QuantizationReport, Ratio
from .sensitivity import Metric, Switched

SAMPLED = 4
"""Batches on which the errors of layers and their sensitivities are measured. More take longer."""
NEEDS_EXAMPLES = ("torch", "jax.jit", "python")
"""Front ends whose models state no shapes: the first batch of calibration data is the example."""


@dataclass(frozen=True)
class Options:
    """The options of `quantize`, checked."""

    observer: Observer
    histograms: bool
    symmetric: bool
    weights: Weights
    equalize: bool
    smooth: float | None
    bias_correction: bool
    skip: tuple[str, ...]
    metric: Metric | None
    max_drop: float | None
    min_sqnr: float | None
    precisions: tuple[str, ...]
    threads: int | None
    progress: Callable[[str], None]

    @property
    def has_budget(self) -> bool:
        return self.max_drop is not None or self.min_sqnr is not None


def quantize(
    model: object,
    calibration: Iterable[Any],
    *,
    args: Sequence[Any] | Mapping[str, Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dims: DimsArgument | None = None,
    observer: str = "minmax",
    percentile: float = 99.99,
    activations: str = "asymmetric",
    weights: str = "per_channel",
    weight_observer: str = "minmax",
    weight_bits: int = 8,
    equalize: bool = False,
    smooth: float | None = None,
    bias_correction: bool = True,
    skip: Sequence[str] = (),
    metric: Metric | None = None,
    max_drop: float | None = None,
    min_sqnr: float | None = None,
    precisions: Sequence[str] = ("int8", "int16", "float"),
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> QuantizedModel:
    """Quantize a model to 8-bit integers, with sample inputs and without training.

    Convolutions and matrix products with constant weights are computed in integers, and the tensors between
    them are stored in 8 bits. Everything else stays in floating point; `QuantizedModel.report` lists the
    products that do.

    Args:
        model: Any model that `tilewright.compile` takes, of one function.
        calibration: Batches of sample inputs: each an array, a tuple of arrays, or a dictionary of arrays by
            the names of the inputs. About 100 samples of the kind that the model will see.
        args: Example inputs, as for `tilewright.compile`. The default, for models without shapes of their
            own, is the first batch.
        kwargs: Example inputs by name.
        dims: Dynamic dimensions, as for `tilewright.compile`.
        observer: How the range of an activation follows from what calibration saw: ``"minmax"``,
            ``"percentile"``, ``"entropy"`` (Kullback-Leibler divergence) or ``"mse"`` (least squared error).
        percentile: The percentage of elements that ``"percentile"`` keeps.
        activations: ``"asymmetric"``, unsigned with a zero point, or ``"symmetric"``, signed around zero, or
            unsigned where no number is negative.
        weights: ``"per_channel"``, one scale for each output channel, or ``"per_tensor"``. Weights are
            symmetric.
        weight_observer: ``"minmax"`` or ``"mse"``.
        weight_bits: 8, or 4 for weights of -7 to 7, which take half a byte in ONNX files. Libraries keep them
            as bytes and multiply them as fast as those of 8 bits.
        equalize: Whether the ranges of weights of successive layers are equalized across layers. It helps
            most with ``weights="per_tensor"``.
        smooth: The strength of SmoothQuant, from 0 to 1, for matrix products whose inputs have channels with
            outliers, as in transformers; 0.5 is common. None: not applied.
        bias_correction: Whether biases make up for the mean error of rounded weights.
        skip: Names of layers that stay in floating point; ``*`` stands for any text.
        metric: A function of a callable model that returns its quality, higher is better:
            ``metric(run)`` calls ``run(x)`` as often as it likes. The report has it before and after.
        max_drop: The most that the metric may fall. The most sensitive layers are raised to more bits until
            it is kept.
        min_sqnr: The least ratio of the outputs' power to that of their error in decibels, on the first
            batches, without a metric. 20 is an error of 10 %, 40 one of 1 %.
        precisions: The precisions that a budget may use, in this order. ``"int16"`` stores inputs of layers
            in 16 bits and weights in 8.
        threads: The most threads that calibration uses.
        progress: Called with the name of each step as it begins.

    Returns:
        The quantized model: `tilewright.compile` takes it, `save` writes it as ONNX, `report` tells about
        each layer.

    Raises:
        CompileError: The calibration data do not fit the model, an option is wrong, a budget cannot be kept,
            or there is nothing to quantize. The message names it.
        UnsupportedOperatorError: Operators of the model without a translation.
    """
    options = checked(
        observer, percentile, activations, weights, weight_observer, weight_bits, equalize, smooth,
        bias_correction, skip, metric, max_drop, min_sqnr, precisions, threads, progress,
    )  # fmt: skip
    batches = batches_of(calibration)
    with internal_errors():
        return _quantize(imported(model, batches, args, kwargs, dims, options), batches, options)


def imported(
    model: object,
    batches: Sequence[Batch],
    args: Sequence[Any] | Mapping[str, Any] | None,
    kwargs: Mapping[str, Any] | None,
    dims: DimsArgument | None,
    options: Options,
) -> Module:
    """A model as a prepared module; the first batch is the example where the model needs one."""
    if args is None and kwargs is None and (frontend := find_frontend(model).name) in NEEDS_EXAMPLES:
        args, kwargs = _examples(batches[0], frontend)
    options.progress("import")
    return prepared(model, args, kwargs, dims)


def _examples(batch: Batch, frontend: str) -> tuple[Sequence[Any] | None, dict[str, Any]]:
    """A batch as example inputs of a front end, by position and by name."""

    def example(x: Any) -> Any:
        if frontend != "torch":
            return x
        import torch

        return torch.as_tensor(x)

    return tuple(map(example, batch.args)) or None, {name: example(x) for name, x in batch.kwargs.items()}


def checked(
    observer: str,
    percentile: float,
    activations: str,
    weights: str,
    weight_observer: str,
    weight_bits: int,
    equalize: bool,
    smooth: float | None,
    bias_correction: bool,
    skip: Sequence[str],
    metric: Metric | None,
    max_drop: float | None,
    min_sqnr: float | None,
    precisions: Sequence[str],
    threads: int | None,
    progress: Callable[[str], None] | None,
) -> Options:
    """The options, checked.

    Raises:
        CompileError: One is wrong; the message names it.
    """
    for name, value, known in (
        ("activations", activations, ("asymmetric", "symmetric")),
        ("weights", weights, ("per_channel", "per_tensor")),
        ("weight_observer", weight_observer, ("minmax", "mse")),
        ("weight_bits", weight_bits, tuple(WEIGHTS)),
    ):
        if value not in known:
            raise CompileError(f"unknown {name}={value!r}; known: {', '.join(map(repr, known))}")
    if smooth is not None and not 0 <= smooth <= 1:
        raise CompileError(f"smooth={smooth} is not between 0 and 1")
    if max_drop is not None and metric is None:
        raise CompileError("max_drop needs metric, a function that returns the quality of a model")
    if max_drop is not None and min_sqnr is not None:
        raise CompileError("give max_drop or min_sqnr, not both")
    chosen = tuple(precisions)
    if (
        not chosen
        or any(p not in PRECISIONS for p in chosen)
        or list(chosen) != sorted(set(chosen), key=PRECISIONS.index)
    ):
        raise CompileError(f"precisions={chosen} is no ascending choice of {', '.join(PRECISIONS)}")
    return Options(
        observer=observer_of(observer, percentile),
        histograms=observer != "minmax",
        symmetric=activations == "symmetric",
        weights=Weights(weights == "per_channel", weight_observer, weight_bits),
        equalize=equalize,
        smooth=smooth,
        bias_correction=bias_correction,
        skip=(skip,) if isinstance(skip, str) else tuple(skip),
        metric=metric,
        max_drop=max_drop,
        min_sqnr=min_sqnr,
        precisions=chosen,
        threads=threads,
        progress=progress or (lambda step: None),
    )


def _quantize(module: Module, batches: Sequence[Batch], options: Options) -> QuantizedModel:
    original = module.clone() if options.metric is not None else module
    plan, scheme = calibrated(module, batches, options)
    sensitivities: dict[Any, float] = {}
    report = QuantizationReport(skipped=plan.skipped)
    if options.metric is not None:
        options.progress("measure")
        with compile(original, threads=options.threads, cache=False) as library:
            report.before = float(options.metric(library))
    if options.has_budget:
        options.progress("choose precisions")
        precision, sensitivities = _chosen(module, plan, scheme, batches[:SAMPLED], options, report.before)
        scheme = Scheme(scheme.weights, scheme.parameters, precision, scheme.corrections)
    options.progress("insert")
    changed, places = insert(module, plan, scheme)
    options.progress("compare")
    compare(module, changed, places, plan, scheme, batches[:SAMPLED], sensitivities, report, options.threads)
    if options.metric is not None:
        with compile(changed, threads=options.threads, cache=False) as library:
            report.after = float(options.metric(library))
    return QuantizedModel(changed, report)


def calibrated(module: Module, batches: Sequence[Batch], options: Options) -> tuple[Plan, Scheme]:
    """Equalize and smooth a module in place where the options say so; its plan and its scheme in the first of
    the precisions.
    """
    plan = make_plan(main_function(module), options.skip)
    if options.equalize:
        options.progress("equalize")
        equalize(plan)
        plan = make_plan(main_function(module), options.skip)
    if options.smooth is not None:
        options.progress("smooth")
        smooth(plan, _observed(module, plan, batches, options, histograms=False), options.smooth)
        plan = make_plan(main_function(module), options.skip)
    options.progress("calibrate")
    seen = _observed(module, plan, batches, options, options.histograms)
    return plan, _scheme(plan, seen, options)


def _observed(
    module: Module, plan: Plan, batches: Sequence[Batch], options: Options, histograms: bool
) -> dict[Value, Statistics]:
    """Statistics of all tensors that are stored as integers, and of the layers' inputs."""
    axes = {layer.x: layer.channel_axis for layer in plan.layers}
    values = [*(root for group in plan.groups for root in group.roots), *axes]
    runner = Runner(module, values, options.threads)
    try:
        return observe(runner, batches, axes, histograms)
    finally:
        runner.close()


def _scheme(plan: Plan, seen: Mapping[Value, Statistics], options: Options) -> Scheme:
    """All layers in the first of the precisions."""
    parameters: dict[tuple[Group, str], Parameters] = {}
    for group in plan.groups:
        ranges = [options.observer(seen[root]) for root in group.roots]
        low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
        for precision in ("int8", "int16"):
            parameters[group, precision] = activation_parameters(low, high, precision, options.symmetric)
    corrections = {}
    if options.bias_correction:
        for layer in plan.layers:
            rounded = options.weights.rounded(layer)
            corrections[layer] = bias_correction(layer, rounded, seen[layer.x].channel_mean)
    first = options.precisions[0]
    return Scheme(options.weights, parameters, dict.fromkeys(plan.layers, first), corrections)


def _chosen(
    module: Module,
    plan: Plan,
    scheme: Scheme,
    batches: Sequence[Batch],
    options: Options,
    before: float | None,
) -> tuple[dict[Any, str], dict[Any, float]]:
    """The precision and the sensitivity of each layer, under the budget."""
    switched = Switched(module, plan, scheme, options.threads)
    try:
        sensitivities = switched.sensitivities(batches)
        expected = switched.outputs([PRECISIONS.index("float")] * len(plan.layers), batches)

        def is_enough(codes: Sequence[int]) -> bool:
            if options.metric is not None and options.max_drop is not None:
                assert before is not None
                return float(options.metric(switched.model(codes))) >= before - options.max_drop
            assert options.min_sqnr is not None
            total = Ratio()
            for e, a in zip(expected, switched.outputs(codes, batches), strict=True):
                total.add(e, a)
            return total.decibels >= options.min_sqnr

        codes = switched.choose(sensitivities, options.precisions, is_enough)
        if options.precisions[-1] != "float" and not is_enough(codes):
            name = "max_drop" if options.min_sqnr is None else "min_sqnr"
            value = options.max_drop if options.min_sqnr is None else options.min_sqnr
            raise CompileError(
                f"{name}={value} is not kept with all layers in {options.precisions[-1]}: allow more, or add "
                "'float' to precisions"
            )
    finally:
        switched.close()
    return {layer: PRECISIONS[c] for layer, c in zip(plan.layers, codes, strict=True)}, sensitivities


def compare(
    module: Module,
    changed: Module,
    places: Mapping[Value, Value],
    plan: Plan,
    scheme: Scheme,
    batches: Sequence[Batch],
    sensitivities: Mapping[Any, float],
    report: QuantizationReport,
    threads: int | None,
) -> None:
    """Fill the report with the errors of layers and outputs on batches."""
    results = [layer.op.result for layer in plan.layers]
    exact = Runner(module, results, threads)
    rounded = Runner(changed, [places[v] for v in results], threads)
    ratios = {v: Ratio() for v in results}
    total = Ratio()
    try:
        for batch in batches:
            (expected, own), (actual, others) = exact.outputs(batch), rounded.outputs(batch)
            for e, a in zip(expected, actual, strict=True):
                total.add(e, a)
            for v in results:
                ratios[v].add(own[v], others[places[v]])
    finally:
        exact.close()
        rounded.close()
    report.output_sqnr = total.decibels
    for layer in plan.layers:
        precision, ratio = scheme.precision[layer], ratios[layer.op.result]
        group = plan.group_of[layer.x]
        low, high = (0.0, 0.0) if precision == "float" else scheme.parameters[group, precision].range
        report.layers.append(
            LayerReport(
                layer.name, layer.kind, precision, low, high, ratio.decibels, ratio.largest,
                sensitivities.get(layer),
            )
        )  # fmt: skip


__all__ = ["SAMPLED", "Options", "calibrated", "checked", "compare", "imported", "quantize"]
