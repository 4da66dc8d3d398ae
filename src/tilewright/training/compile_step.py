"""`tilewright.train_step`: forward pass, backward pass and update in one library."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import CompileError
from .data_parallel import DataParallel
from .models import Trainable
from .program import Optimizer, Program, with_signature
from .step import TrainStep

if TYPE_CHECKING:
    from ..distributed import Group
    from ..frontends.dims import DimsArgument

_NONFINITE = ("raise", "skip", "ignore")


def train_step(
    model: Any,
    loss: Callable[..., Any] | None,
    optimizer: Optimizer,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    *,
    precision: str | None = None,
    target: str = "cpu",
    dims: DimsArgument | None = None,
    threads: int | None = None,
    trainable: Trainable = None,
    parameters: Any = None,
    clip: float | None = None,
    accumulate: int = 1,
    seed: int = 0,
    nonfinite: str = "raise",
    group: Group | None = None,
    sharded: bool = False,
    memory_budget: int | str | None = None,
    cache: bool = True,
    opt: str | None = None,
) -> TrainStep:
    """Compile a training step: the loss of a batch, its gradient and the update of the parameters.

    Parameters, buffers and the optimizer's state are states of the library, which a step updates in place.
    The library needs no Python: see `TrainStep.save`. Its function ``main`` is the step, ``predict`` the
    model in inference mode with the same parameters.

    Args:
        model: A `tw.nn` module; a `torch.nn.Module`; a `torch.export.ExportedProgram` or the path of a
            ``.pt2`` file; an ONNX model or the path of one; or a function of JAX whose first argument is a
            tree of parameters.
        loss: A function of the model's outputs and of the last example inputs, which returns a floating-point
            scalar, or a pair of it and a dictionary of further results. For a module of PyTorch it is a
            function on PyTorch's tensors, unless it is one of `tilewright`. None: the model returns the loss.
        optimizer: One of `tilewright.optim`, or any object with its two functions, ``init(parameters)`` and
            ``update(parameters, gradients, state)``.
        example_inputs: The model's inputs, then the loss's, as for `tilewright.compile`; in a dictionary, the
            model's are given by name. As many go to the loss as it has arguments without a default beside the
            outputs.
        precision: None computes in the parameters' types. ``"bf16"`` and ``"f16"`` convert the operands of
            products to that type, forward and backward, as `tilewright.compile` does; parameters, gradients,
            sums and the loss stay float32. With ``"f16"`` the loss is scaled by a factor that follows the
            overflows, and steps that overflow change nothing else.
        target: As for `tilewright.compile`.
        dims: Names and bounds of dynamic dimensions by argument: ``{"x": {0: "batch<=64"}}``. The arguments
            are called as in the model's ``forward`` and in the loss.
        threads: As for `tilewright.compile`.
        trainable: Which parameters change: a function of the name, or patterns such as ``"head.*"``. None:
            all. The others are constants of the library.
        parameters: The tree of parameters of a function of JAX.
        clip: The largest Euclidean norm of the gradient; a longer one is scaled down to it.
        accumulate: The parts that a batch is computed in, one after the other along the first axis of each
            argument. The gradient is the mean over the parts. It takes the memory of one part.
        seed: The seed of random numbers such as those of dropout.
        nonfinite: If a gradient is not finite, a step changes no parameter and raises an error (``"raise"``)
            or does not (``"skip"``). ``"ignore"`` saves the comparisons.
        group: The processes that train together, of `tilewright.distributed`; None: this one alone. Each
            process makes the same step and gives it its part of every batch. Losses and gradients are means
            over the processes, and begin with the parameters of the first.
        sharded: Whether each process keeps the optimizer's state of a part of the parameters only. The
            optimizer has to be elementwise.
        memory_budget: The most working memory of a step, as for `tilewright.compile`. Parameters, the
            optimizer's state and the batch are not part of it; gradients are.
        cache: As for `tilewright.compile`.
        opt: As for `tilewright.compile`.

    Raises:
        CompileError: The model, the loss or an option does not fit; the message names it.
        GradientError: Operators have no gradient; the message lists them.
    """
    from ..driver.compile import compile
    from .importing import as_model
    from .request import Request

    if nonfinite not in _NONFINITE:
        raise CompileError(f"nonfinite={nonfinite!r}: known are {', '.join(map(repr, _NONFINITE))}")
    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        kind = type(optimizer)
        raise CompileError(
            f"the optimizer is a {kind.__module__}.{kind.__qualname__}: give one of tilewright.optim, such "
            "as tw.optim.AdamW(lr=1e-3), or an object with the functions init and update"
        )
    if accumulate < 1:
        raise CompileError(f"accumulate={accumulate}: a batch has one part at least")
    if clip is not None and not clip > 0:
        raise CompileError(f"clip={clip}: the largest norm of a gradient is positive")
    by_name = tuple(example_inputs) if isinstance(example_inputs, Mapping) else ()
    examples = tuple(example_inputs.values() if isinstance(example_inputs, Mapping) else example_inputs)
    request = Request(model, loss, examples, dims, trainable, parameters, by_name)
    found = as_model(request)
    dims = request.dims  # those of a model that was exported with dynamic ones, too
    scaled = precision == "f16"
    parallel = None if group is None else DataParallel(group, sharded)
    program = Program(
        found.model,
        found.loss,
        optimizer,
        clip,
        accumulate,
        nonfinite != "ignore" or scaled,
        scaled,
        by_name[len(found.model.names) :],
        parallel,
    )
    program.declare(seed)
    signature = program.signature()
    names = list(signature.parameters)
    if len(names) != len(examples):
        raise CompileError(
            f"{len(examples)} example inputs for the arguments {', '.join(names)} of the model and the loss"
        )
    functions: dict[str, Any] = {"main": (with_signature(program.train, signature), examples, dims)}
    if found.model.predicts is not None:
        count = len(found.model.predicts)
        inputs = signature.replace(parameters=list(signature.parameters.values())[:count])
        own = {n: d for n, d in (dims or {}).items() if n in inputs.parameters}
        functions["predict"] = (with_signature(program.predict, inputs), examples[:count], own or None)
    options: dict[str, Any] = {} if opt is None else {"opt": opt}
    options["memory_budget"] = memory_budget
    library = compile(functions, target=target, precision=precision, threads=threads, cache=cache, **options)
    if program.unused:
        names = [repr(name) for name in program.unused]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        warnings.warn(
            f"the loss does not depend on the parameters {', '.join(names[:8])}{more}: steps leave them as "
            "they are",
            stacklevel=2,
        )
    step = TrainStep(library, nonfinite == "raise", found.model, parallel)
    if group is not None:
        step.begin_together()
    return step


__all__ = ["train_step"]
