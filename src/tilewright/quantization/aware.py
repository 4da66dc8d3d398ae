"""Quantization-aware training: `tilewright.prepare_qat` makes a model that computes with rounded numbers and
has gradients, `tilewright.train_step` trains it, and its `convert` gives the model of integers.

The derivative of rounding is taken as 1 (straight-through estimator: Bengio et al., "Estimating or
Propagating Gradients Through Stochastic Neurons", 2013). Scales are parameters with the gradient of LSQ
(Esser et al., "Learned Step Size Quantization", 2020), as logarithms, so that a step of an optimizer changes
large and small ones by the same factor (Jain et al., "Trained Quantization Thresholds", 2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dialects import graph
from ..driver.compile import compile
from ..errors import internal_errors
from ..frontends.dims import DimsArgument
from ..frontends.trace import Tensor, custom_gradient
from ..frontends.trace import numpy as tnp
from ..frontends.trace.operands import value_of
from ..frontends.trace.tensor import traced
from ..frontends.trace.tracing import current
from ..ir.builder import Builder
from ..ir.core import Module, Operation, Value
from ..passes.graph.match import array_of, new_constant
from .calibrate import Batch, batches_of
from .insert import Scheme, Weights, insert, readers
from .model import QuantizedModel
from .observers import Array
from .parameters import WEIGHTS, Parameters, rounded_weight
from .plan import Group, Layer, Plan
from .post_training import SAMPLED, calibrated, checked, compare, imported
from .prepare import main_function
from .report import QuantizationReport
from .sensitivity import Metric

if TYPE_CHECKING:
    from ..training.models import Model, ModelFile
    from ..training.request import Request

SCALE = ".log2_scale"
"""The end of the names of scales, which are base-2 logarithms."""


def prepare_qat(
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
    skip: Sequence[str] = (),
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> QuantizationAwareModel:
    """Prepare a model for training with the errors of 8-bit integers.

    Batch normalization is folded into the weights first, and dropout is off: train the float model before.

    Args:
        model: Any model that `tilewright.compile` takes, of one function.
        calibration: Batches of sample inputs, as for `tilewright.quantize`; they give the first scales.
        args: As for `tilewright.quantize`.
        kwargs: As for `tilewright.quantize`.
        dims: As for `tilewright.quantize`; give `tilewright.train_step` the same. Without it, training takes
            batches of the first one's size.
        observer: As for `tilewright.quantize`, for the first scales.
        percentile: As for `tilewright.quantize`.
        activations: As for `tilewright.quantize`.
        weights: As for `tilewright.quantize`.
        weight_observer: As for `tilewright.quantize`, for the first scales.
        weight_bits: As for `tilewright.quantize`.
        equalize: As for `tilewright.quantize`.
        smooth: As for `tilewright.quantize`.
        skip: Names of layers that stay in floating point; ``*`` stands for any text.
        threads: The most threads that calibration uses.
        progress: Called with the name of each step as it begins.

    Returns:
        The model to give to `tilewright.train_step`, with a loss on `tilewright.Tensor`.

    Raises:
        CompileError: As for `tilewright.quantize`.
    """
    options = checked(
        observer, percentile, activations, weights, weight_observer, weight_bits, equalize, smooth, False,
        skip, None, None, None, ("int8",), threads, progress,
    )  # fmt: skip
    batches = batches_of(calibration)
    with internal_errors():
        module = imported(model, batches, args, kwargs, dims, options)
        original = module.clone()
        plan, scheme = calibrated(module, batches, options)
        return QuantizationAwareModel(original, module, plan, scheme, batches[:SAMPLED])


@dataclass(frozen=True)
class TrainedWeights(Weights):
    """Weights whose scales were trained; they broadcast to the weights."""

    scales: Mapping[Layer, Array] = field(default_factory=dict)

    def of(self, layer: Layer) -> tuple[Array, Array]:
        w = array_of(layer.w)
        assert w is not None
        scale = self.scales[layer]
        return rounded_weight(w, scale, self.bits), scale


class QuantizationAwareModel:
    """A model that `tilewright.train_step` trains with the errors of integers.

    Parameters are the weights and biases of the layers, ``NAME.weight`` and ``NAME.bias``, and the base-2
    logarithms of scales: ``NAME.weight.log2_scale`` and, for stored tensors, ``NAME.input.log2_scale``.

    Args:
        original: The float model as it was imported.
        module: The float model, equalized and smoothed, whose constants `convert` replaces.
        plan: Which of its tensors are stored as integers.
        scheme: The first scales.
        batches: The batches on which the report compares.
    """

    def __init__(
        self, original: Module, module: Module, plan: Plan, scheme: Scheme, batches: Sequence[Batch]
    ) -> None:
        self.original, self.module, self.plan = original, module, plan
        self._scheme, self._batches = scheme, batches
        self._places: dict[str, tuple[Operation, int]] = {}
        self._values: dict[str, Array] = {}
        for layer in plan.layers:
            self._add(f"{layer.name}.weight", layer.op, 1)
            _, scale = scheme.weights.of(layer)
            self._values[f"{layer.name}.weight{SCALE}"] = np.asarray(np.log2(scale))
            if (place := _bias(layer)) is not None:
                self._add(f"{layer.name}.bias", *place)
        self._group_names: dict[Group, str] = {}
        for number, group in enumerate(plan.groups):
            readers_of = plan.layers_of(group)
            name = f"{readers_of[0].name}.input{SCALE}" if readers_of else f"stored.{number}{SCALE}"
            self._group_names[group] = name
            self._values[name] = np.asarray(np.log2(scheme.parameters[group, "int8"].scale))

    def _add(self, name: str, op: Operation, k: int) -> None:
        array = array_of(op.operands[k])
        assert array is not None
        self._places[name] = op, k
        self._values[name] = np.array(array)

    def training_model(self, request: Request) -> Model:
        """The model as `tilewright.train_step` sees it.

        Args:
            request: The arguments of `tilewright.train_step`.
        """
        from ..training.models import chosen

        names = chosen(list(self._values), request.trainable)
        return _Trained(self, names)

    def convert(self, metric: Metric | None = None) -> QuantizedModel:
        """The model of integers, with the parameters that ``step.sync()`` has written.

        Args:
            metric: As for `tilewright.quantize`; ``before`` in the report is that of the model before
                training.
        """
        with internal_errors():
            for name, (op, k) in self._places.items():
                op.set_operand(k, new_constant(Builder.before(op), self._values[name], name))
            scales = {
                layer: np.exp2(self._values[f"{layer.name}.weight{SCALE}"]).astype(np.float32)
                for layer in self.plan.layers
            }
            parameters = {
                (group, "int8"): replace(self._scheme.parameters[group, "int8"], scale=self._scale(group))
                for group in self.plan.groups
            }
            own = self._scheme.weights
            weights = TrainedWeights(own.per_channel, own.observer, own.bits, scales)
            scheme = Scheme(weights, parameters, self._scheme.precision, {})
            changed, places = insert(self.module, self.plan, scheme)
            report = QuantizationReport(skipped=self.plan.skipped)
            compare(self.module, changed, places, self.plan, scheme, self._batches, {}, report, None)
        if metric is not None:
            for module, name in ((self.original, "before"), (changed, "after")):
                with compile(module, cache=False) as library:
                    setattr(report, name, float(metric(library)))
        return QuantizedModel(changed, report)

    def _scale(self, group: Group) -> np.float32:
        return np.float32(np.exp2(self._values[self._group_names[group]]))


def _bias(layer: Layer) -> tuple[Operation, int] | None:
    """The operator that adds the constant bias of a layer, and the number of its operand."""
    op = layer.op
    if isinstance(op, graph.Conv):
        return (op, 2) if op.bias is not None and array_of(op.bias) is not None else None
    if not op.result.has_one_use:
        return None
    (user,) = op.result.users
    if isinstance(user, graph.Add):
        for k, v in enumerate(user.operands):
            if (array := array_of(v)) is not None and array.ndim == 1 and array.dtype == np.float32:
                return user, k
    return None


class _Trained:
    """A quantization-aware model; see `training.models.Model`."""

    def __init__(self, aware: QuantizationAwareModel, trained: Sequence[str]) -> None:
        self.file: ModelFile | None = None
        self.draws = False
        self.aware = aware
        self.parameters = {n: Tensor(aware._values[n]) for n in trained}
        self.buffers: dict[str, Tensor] = {}
        self.names = list(main_function(aware.module).arg_names)
        self.predicts: list[str] | None = self.names

    def train(
        self,
        inputs: Sequence[Tensor],
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        seed: Tensor | None,
    ) -> tuple[Any, dict[str, Tensor]]:
        """See `Model.train`."""
        return self.predict(inputs, parameters, buffers), {}

    def predict(
        self, inputs: Sequence[Tensor], parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> Any:
        """See `Model.predict`."""
        from ..training.graph_model import Graph, outputs_of

        recording = _Recording(self.aware, {**self._constants(), **parameters})
        outputs, _ = Graph(self.aware.module, {}).record(inputs, {}, None, recording.insert)
        return outputs_of(outputs)

    def _constants(self) -> dict[str, Tensor]:
        return {n: Tensor(x) for n, x in self.aware._values.items() if n not in self.parameters}

    def sync(self, values: Mapping[str, Array]) -> None:
        """See `Model.sync`."""
        self.aware._values.update({n: np.array(x) for n, x in values.items()})


class _Recording:
    """Copies operators into the current trace, with rounded operands where the plan stores integers."""

    def __init__(self, aware: QuantizationAwareModel, values: Mapping[str, Tensor]) -> None:
        self.values = values
        self.bits = aware._scheme.weights.bits
        self.parameters = {(op, k): n for n, (op, k) in aware._places.items()}
        self.layers = {layer.op: layer for layer in aware.plan.layers}
        self.rounded: dict[tuple[Operation, int], tuple[Parameters, str]] = {}
        for group in aware.plan.groups:
            p, name = aware._scheme.parameters[group, "int8"], aware._group_names[group]
            layers = {layer.op: layer for layer in aware.plan.layers_of(group)}
            for value in group.members:
                self.rounded.update(dict.fromkeys(readers(value, group, layers), (p, name)))
        self.made: dict[tuple[Value, str], Value] = {}

    def insert(self, op: Operation, mapping: dict[Value, Value]) -> None:
        """Copy an operator, whose operands have copies in `mapping`, and add its results to it."""
        trace = current()
        assert trace is not None
        changed: dict[int, Value] = {}
        for k, operand in enumerate(op.operands):
            new: Value | None = None
            if (name := self.parameters.get((op, k))) is not None:
                new = value_of(self.values[name])
                if op in self.layers and k == 1:
                    high = WEIGHTS[self.bits].limits[1]
                    scale = self.values[name + SCALE]
                    new = value_of(fake_quantize(self.values[name], scale, -high, high))
            elif (op, k) in self.rounded:
                p, name = self.rounded[op, k]
                if (operand, name) not in self.made:
                    low, high = (n - p.zero for n in p.dtype.limits)
                    x = traced(mapping[operand])
                    self.made[operand, name] = value_of(fake_quantize(x, self.values[name], low, high))
                new = self.made[operand, name]
            if new is not None:
                changed[k] = new
        copy = trace.builder.insert(op.clone(mapping))
        for k, new in changed.items():
            copy.set_operand(k, new)


def fake_quantize(x: Tensor, log2_scale: Tensor, low: int, high: int) -> Tensor:
    """`x` rounded to multiples of a scale between `low` and `high` times it.

    Args:
        x: f32.
        log2_scale: The base-2 logarithm of the scale, f32, which broadcasts to `x`.
        low: The least multiple, at most 0.
        high: The greatest multiple.
    """
    count = math.prod(int(d) for d in x.shape if isinstance(d, int)) // max(math.prod(log2_scale.shape), 1)
    factor = np.float32(math.log(2) / math.sqrt(max(count, 1) * high))  # LSQ, section 2.2
    axes = [d for d in range(x.ndim) if log2_scale.ndim == 0 or log2_scale.shape[d] == 1]

    @custom_gradient
    def rounded(x: Tensor, log2_scale: Tensor) -> Any:
        scale = tnp.exp2(log2_scale)
        q = x / scale
        nearest = tnp.rint(q)
        kept = tnp.clip(nearest, low, high)

        def rule(dy: Tensor) -> tuple[Tensor, Tensor]:
            inside = (nearest >= low) & (nearest <= high)
            slope = dy * tnp.where(inside, nearest - q, kept)
            per_scale = slope.sum(tuple(axes), keepdims=log2_scale.ndim > 0) * scale * factor
            return tnp.where(inside, dy, np.float32(0)), per_scale.reshape(log2_scale.shape)

        return kept * scale, rule

    result: Tensor = rounded(x, log2_scale)
    return result


__all__ = ["QuantizationAwareModel", "fake_quantize", "prepare_qat"]
