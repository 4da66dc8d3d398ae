"""The functions of a training library, as traces record them: a training step, and a prediction.

The library keeps these states: the parameters and buffers under their names in the model, the optimizer's
state under ``optimizer.``, and under ``training.``

| name | type | content |
|---|---|---|
| `step` | i64 | the updates made |
| `seed` | i64 | the seed of random numbers, which each step combines with its number |
| `gradient_norm` | f32 | the Euclidean norm of the last gradient, before clipping |
| `nonfinite` | i32 | the number of the first parameter whose last gradient was not finite, or -1 |
| `loss_scale` | f32 | the factor of the loss, with 16-bit floats of a small range |
| `good_steps` | i32 | the steps since that factor was changed |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..dialects import graph as g
from ..errors import CompileError
from ..frontends.trace import State, Tensor, scan, value_and_grad
from ..frontends.trace import numpy as tnp
from ..frontends.trace.operands import apply, as_tensor, value_of
from ..frontends.trace.pointwise import where
from ..frontends.trace.tree import flatten, unflatten
from ..ir.core import Value
from ..ir.symbolic import Expr
from .data_parallel import DataParallel
from .models import Model, Tensors
from .request import targets_of

FIRST_SCALE, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000
"""Loss scaling: the first factor, its change after `INTERVAL` steps without overflow, and after an overflow.
The figures are those of ``torch.amp.GradScaler``. A smaller interval tries larger factors more often.
"""
OWN = "training."
"""The prefix of the states that belong neither to the model nor to the optimizer."""
OPTIMIZER = "optimizer."
"""The prefix of the optimizer's states."""


class Optimizer(Protocol):
    """A rule that changes parameters by their gradients: two functions without side effects."""

    def init(self, parameters: Tensors) -> Any:
        """Return the first state, a tree of tensors, for parameters by name."""

    def update(self, parameters: Tensors, gradients: Tensors, state: Any) -> tuple[Tensors, Any]:
        """Return the new parameters and the new state, which have the shapes and types of the old ones."""


@dataclass
class Program:
    """The content of a training step; see `tilewright.train_step` for the options."""

    model: Model
    loss: Callable[..., Any] | None
    optimizer: Optimizer
    clip: float | None
    accumulate: int
    guarded: bool
    scaled: bool
    targets: Sequence[str] = ()
    """The names of what the loss takes beside the outputs; none: those of its parameters."""
    parallel: DataParallel | None = None
    unused: Sequence[str] = ()
    """The parameters that do not affect the loss, after `train`: a step leaves them as they are."""

    def declare(self, seed: int) -> None:
        """Make the states, with their first values."""
        model = self.model
        self.parameters = {n: _state(n, p) for n, p in model.parameters.items()}
        self.buffers = {n: _state(n, b) for n, b in model.buffers.items()}
        own: Tensors = dict(model.parameters)
        if self.parallel is not None:
            own = self.parallel.divide(own, self.optimizer)
        first = self.optimizer.init(dict(own))
        leaves, names, self.structure = flatten(first, OPTIMIZER[:-1], ".")
        self.optimizer_state = [_state(n, as_tensor(x)) for n, x in zip(names, leaves, strict=True)]
        numbers: dict[str, np.generic[Any]] = {
            "step": np.int64(0),
            "seed": np.int64(seed),
            "gradient_norm": np.float32(0),
            "nonfinite": np.int32(-1),
            "loss_scale": np.float32(FIRST_SCALE),
            "good_steps": np.int32(0),
        }
        self.own = {n: State(OWN + n, (), x.dtype, Tensor(x)) for n, x in numbers.items()}

    def signature(self) -> inspect.Signature:
        """The signature of a step: the inputs of the model, then the loss's arguments after the outputs."""
        names = list(self.model.names)
        if self.loss is not None:
            names += self.targets or targets_of(self.loss)
        unique = [n if names.count(n) == 1 else f"{n}_{names[:k].count(n)}" for k, n in enumerate(names)]
        return _signature(unique)

    def train(self, *args: Tensor) -> dict[str, Tensor]:
        """Record a step: the loss of a batch, its gradient, and the update."""
        parameters: Tensors = {n: s.value for n, s in self.parameters.items()}
        before: Tensors = {n: s.value for n, s in self.buffers.items()}
        scale = self.own["loss_scale"].value if self.scaled else None
        results, buffers, gradients = self._of_batch(parameters, before, args, scale)
        if self.parallel is not None:
            results, buffers, gradients = self.parallel.reduced(results, buffers, gradients)
            parameters = self.parallel.own(parameters)
        ok = None
        if self.guarded or self.clip is not None:
            squares = tnp.stack([(g.astype("float32") ** 2).sum() for g in gradients.values()])
            if self.parallel is not None:
                squares = self.parallel.squares(squares, list(gradients))
            norm = tnp.sqrt(squares.sum())
            self.own["gradient_norm"].value = norm
        if self.guarded:
            finite = tnp.isfinite(squares)
            ok = finite.all()
            self.own["nonfinite"].value = where(ok, -1, tnp.argmin(finite.astype("int32"))).astype("int32")
        if self.clip is not None:
            factor = tnp.minimum(self.clip / (norm + 1e-6), 1.0)  # as torch.nn.utils.clip_grad_norm_
            gradients = {n: g * factor.astype(g.dtype) for n, g in gradients.items()}
        state = unflatten(self.structure, iter([s.value for s in self.optimizer_state]))
        new, state = self.optimizer.update(parameters, gradients, state)
        if self.parallel is not None:
            new = self.parallel.whole(new)
        new = {**new, **{n: self.parameters[n].value for n in self.unused}}  # no decay either, as in PyTorch
        self._replace(new, state, buffers, ok)
        if self.scaled:
            assert ok is not None and scale is not None
            self._rescale(ok, scale)
        return results

    def _of_batch(
        self, parameters: Tensors, buffers: Tensors, args: Sequence[Tensor], scale: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensors, Tensors]:
        """Return loss and further results by name, the new buffers and the gradients. A batch of several
        parts is computed part by part, and gradients and results are the means over the parts.
        """
        seeds = []
        if self.model.draws:  # SplitMix64's increment separates the seeds of consecutive steps.
            seed = self.own["seed"].value + self.own["step"].value * np.int64(-7046029254386353131)
            seeds = [seed if self.parallel is None else self.parallel.seed(seed)]
        k = self.accumulate
        if k == 1:
            return self._of_part(parameters, buffers, args, scale, *seeds)
        parts = [_split(x, k, n) for x, n in zip(args, self.signature().parameters, strict=True)]

        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            sums, buffers, part = carry

            def now(x: Tensor) -> Tensor:
                """`x`, from which no pass computes anything for all parts at once, in front of the loop."""
                return apply(g.After, x, [part])

            own = [s + part * np.int64(1 << 32) for s in seeds]
            weights = {n: now(p) for n, p in parameters.items()}
            results, buffers, gradients = self._of_part(weights, buffers, [now(y) for y in x], scale, *own)
            sums = {n: sums[n] + g for n, g in gradients.items()}
            return (sums, buffers, part + np.int64(1)), results

        # Zeros that only the run knows take no room in the artifact.
        zero = (self.own["step"].value < np.int64(0)).astype("float32")
        zeros = {
            n: apply(g.BroadcastTo, zero.astype(p.dtype), shape=tuple(p.shape)) for n, p in parameters.items()
        }
        (sums, new, _), results = scan(step, (zeros, dict(buffers), as_tensor(np.int64(0))), parts)
        return (
            {n: x.mean(0) if x.type.dtype.is_float else x for n, x in results.items()},
            new,
            {n: s / k for n, s in sums.items()},
        )

    def _of_part(
        self,
        parameters: Tensors,
        buffers: Tensors,
        args: Sequence[Tensor],
        scale: Tensor | None,
        seed: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], Tensors, Tensors]:
        count = len(self.model.names)

        def total(values: Tensors) -> tuple[Tensor, Any]:
            outputs, new = self.model.train(args[:count], values, buffers, seed)
            results = _results(outputs if self.loss is None else self.loss(outputs, *args[count:]))
            loss = results["loss"]
            self.unused = _unaffecting(loss, values)
            return (loss if scale is None else loss * scale), (results, new)

        (_, (results, new)), gradients = value_and_grad(total, has_aux=True)(dict(parameters))
        if scale is not None:
            gradients = {n: g / scale.astype(g.dtype) for n, g in gradients.items()}
        return results, new, gradients

    def _replace(self, new: Tensors, state: Any, buffers: Tensors, ok: Tensor | None) -> None:
        """Assign the new values of all states, or if `ok` is false the old ones."""

        def assign(s: State, value: Any) -> None:
            value = as_tensor(value)
            if value.dtype != s.dtype or tuple(value.shape) != s.shape:
                raise CompileError(
                    f"the step changes state '{s.name}' from {s.dtype}{list(s.shape)} to "
                    f"{value.dtype}{list(value.shape)}: the optimizer's update must keep shapes and types"
                )
            s.value = value if ok is None else where(ok, value, s.value)

        if missing := self.parameters.keys() - new.keys():
            raise CompileError(f"the optimizer's update leaves out parameter '{min(missing)}'")
        leaves, _, structure = flatten(state)
        if structure != self.structure:
            raise CompileError(
                f"the optimizer's update changes its state from {self.structure} to {structure}"
            )
        for n, s in self.parameters.items():
            assign(s, new[n])
        for n, s in self.buffers.items():
            assign(s, buffers[n])
        for s, value in zip(self.optimizer_state, leaves, strict=True):
            assign(s, value)
        step = self.own["step"]
        assign(step, step.value + np.int64(1))

    def _rescale(self, ok: Tensor, scale: Tensor) -> None:
        """Change the factor of the loss (dynamic loss scaling: Micikevicius et al., "Mixed Precision
        Training", 2018).
        """
        good = self.own["good_steps"].value + np.int32(1)
        grow = good >= np.int32(INTERVAL)
        self.own["loss_scale"].value = where(
            ok, where(grow, scale * np.float32(GROWTH), scale), scale * np.float32(BACKOFF)
        )
        self.own["good_steps"].value = where(ok & ~grow, good, np.int32(0))

    def predict(self, *inputs: Tensor) -> Any:
        """Record a prediction with the present parameters."""
        parameters = {n: s.value for n, s in self.parameters.items()}
        return self.model.predict(inputs, parameters, {n: s.value for n, s in self.buffers.items()})


def _state(name: str, first: Tensor) -> State:
    """A state that begins as `first`; one of zeros takes no room in the artifact."""
    zero = not np.ascontiguousarray(first.numpy()).reshape(-1).view(np.uint8).any()
    return State(name, tuple(first.shape), first.dtype, None if zero else first)


def _results(found: Any) -> dict[str, Tensor]:
    """The loss and further results by name.

    Raises:
        CompileError: The loss is no floating-point scalar, or the further results are not by name.
    """
    loss, more = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
    if not isinstance(loss, Tensor) or loss.size != 1 or not loss.type.dtype.is_float:
        raise CompileError(
            f"the loss is {loss!r}: return a floating-point scalar, or a pair of it and a dictionary of "
            "further results"
        )
    if not isinstance(more, dict) or "loss" in more:
        raise CompileError(
            f"beside the loss comes {more!r}: return a dictionary of tensors, none called 'loss'"
        )
    loss = loss.reshape(())
    wide = loss if loss.type.dtype.bits >= 32 else loss.astype("float32")
    return {"loss": wide, **{n: as_tensor(x) for n, x in more.items()}}


def _unaffecting(loss: Tensor, parameters: Tensors) -> list[str]:
    """The names of the parameters on which the loss does not depend, but for values whose gradient is
    stopped.

    Raises:
        CompileError: It depends on none of them.
    """
    wanted = {value_of(p): n for n, p in parameters.items()}
    seen: set[Value] = set()
    waiting = [value_of(loss)]
    while waiting:
        value = waiting.pop()
        op = value.defining_op
        if value in seen or op is None or isinstance(op, g.StopGradient):
            seen.add(value)
            continue
        seen.update(op.results)
        waiting += [v for inner in op.walk() for v in inner.operands]
    unused = [n for value, n in wanted.items() if value not in seen]
    if len(unused) == len(wanted):
        raise CompileError(
            "the loss depends on no parameter that changes: compute it from the model's outputs, without "
            "stop_gradient, or choose other parameters by trainable="
        )
    return unused


def _signature(names: Sequence[str]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(n, kind) for n in names])


def _split(x: Tensor, k: int, name: str) -> Tensor:
    """Return (k, n / k, ...) of (n, ...).

    Raises:
        CompileError: The first size is not a multiple of `k`.
    """
    n = x.shape[0] if x.ndim else 1
    rest = n % k
    if isinstance(rest, Expr) or rest:
        raise CompileError(
            f"accumulate={k}: the first size of '{name}' is {n}, not a multiple of it; for a size that "
            f"changes write dims={{'{name}': {{0: '{k}*part'}}}}"
        )
    return x.reshape(k, n // k, *x.shape[1:])


def with_signature(function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    """Return `function` as one with named arguments, after which a trace names its inputs."""

    def named(*args: Any) -> Any:
        return function(*args)

    named.__signature__ = signature  # type: ignore[attr-defined]
    return named


__all__ = ["OPTIMIZER", "OWN", "Optimizer", "Program", "with_signature"]
