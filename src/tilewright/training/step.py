"""`TrainStep`: a compiled training step, called like a function."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..distributed import broadcast, connect
from ..errors import CompileError, TilewrightError, TrainingError, WeightsError
from ..runtime.model import CompiledModel
from .checkpoint import read_checkpoint, set_states, write_checkpoint
from .data_parallel import DataParallel
from .models import Model
from .program import OPTIMIZER, OWN
from .states import States

Array = np.ndarray[Any, Any]


class TrainStep:
    """A training step in a library that keeps parameters and the optimizer's state.

    ``step(x, y)`` computes the loss of a batch and its gradient, updates the parameters in place, and returns
    the loss before the update, of the kind of `x` (a NumPy scalar array, a torch tensor). If the loss has
    further results, it returns a pair of the loss and a dictionary of them.

    Args:
        library: The library: of `tilewright.train_step`, or ``tilewright.load("train.so")``.
        raises: Whether a loss or a gradient that is not finite is an error. The parameters are unchanged
            then, also without the error, if the step was compiled with ``nonfinite`` of "raise" or "skip".
        model: The model that `sync` writes to, where it is known.
        parallel: How processes train together; None: this one alone.

    Raises:
        CompileError: The library is no training step.
    """

    def __init__(
        self,
        library: CompiledModel,
        raises: bool = True,
        model: Model | None = None,
        parallel: DataParallel | None = None,
    ) -> None:
        if OWN + "step" not in library.state:
            raise CompileError(
                "the library is no training step: it has no state called 'training.step'; make one with "
                "tilewright.train_step"
            )
        self.library = library
        self.states = States(library, parallel)
        self._model, self._parallel = model, parallel
        if parallel is not None:
            connect(library, parallel.group)
        self._raises = raises and OWN + "nonfinite" in library.state
        self._results = [spec.name for spec in library.outputs]

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        """Train on one batch.

        Args:
            *args: The model's inputs, then what the loss takes beside the outputs.
            **kwargs: Some of them by name.

        Raises:
            ShapeError: An argument does not have the shape or the element type of the examples.
            TrainingError: The loss or a gradient is not finite. No parameter was changed.
            GroupError: Another process of the group has ended, or does not answer. Continue from a
                checkpoint.
        """
        try:
            found = self.library(*args, **kwargs)
        except TilewrightError:
            if self._parallel is not None:
                self._parallel.group.check()
            raise
        if self._raises and int(self.library.state[OWN + "nonfinite"]) >= 0:
            self._refuse(found[0] if isinstance(found, tuple) else found)
        if len(self._results) == 1:
            return found
        return found[0], dict(zip(self._results[1:], found[1:], strict=True))

    def _refuse(self, loss: Any) -> None:
        """Raise the error for a gradient that is not finite."""
        state = self.library.state
        name = self.parameter_names[int(state[OWN + "nonfinite"])]
        if OWN + "loss_scale" in state and np.isfinite(float(loss)) and state[OWN + "loss_scale"] >= 1:
            return  # The scaled loss overflows; the next step tries a smaller factor.
        raise TrainingError(
            f"step {self.steps + 1}: the loss is {float(loss):g}, and the gradient of '{name}' is not "
            "finite, first of the parameters; none was changed. Look at the batch, lower the learning rate, "
            "clip gradients, or skip such batches: nonfinite='skip'"
        )

    def begin_together(self) -> None:
        """Take over the parameters and buffers of the group's first process.

        Raises:
            GroupError: A process of the group does not answer.
        """
        assert self._parallel is not None
        for name in self.parameter_names:
            self.library.state[name] = broadcast(self.library.state[name], 0, self._parallel.group).numpy()

    @property
    def parameter_names(self) -> list[str]:
        """The names of the parameters and buffers that training changes."""
        return [n for n in self.states if not n.startswith((OPTIMIZER, OWN))]

    @property
    def rank(self) -> int:
        """The number of this process among those that train together; 0 if it is alone."""
        return 0 if self._parallel is None else self._parallel.group.rank

    @property
    def steps(self) -> int:
        """The updates made so far, those before a checkpoint included."""
        return int(self.library.state[OWN + "step"])

    @property
    def gradient_norm(self) -> float:
        """The Euclidean norm of the last gradient, before clipping.

        Raises:
            CompileError: The step was compiled without it: it neither clips nor looks for numbers that are
                not finite.
        """
        if OWN + "gradient_norm" not in self.library.state:
            raise CompileError(
                "the step computes no norm of the gradient: give it clip=, or nonfinite='skip'"
            )
        return float(self.library.state[OWN + "gradient_norm"])

    def predict(self, /, *inputs: object, **kwargs: object) -> Any:
        """Return the model's outputs in inference mode, with the present parameters, which are not copied.

        Args:
            *inputs: The model's inputs.
            **kwargs: Some of them by name.

        Raises:
            CompileError: The step has no prediction, because its model computes the loss itself.
            ShapeError: An input does not have the shape or the element type of the examples.
        """
        function = self.library.functions.get("predict")
        if function is None:
            raise CompileError("the step has no prediction: its model computes the loss itself (loss=None)")
        return function(*inputs, **kwargs)

    def state_dict(self) -> dict[str, Array]:
        """Return copies of parameters, buffers, the optimizer's state (``optimizer.``) and the step's own
        numbers (``training.``), by name, in their shapes and types.
        """
        return dict(self.states)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Replace all states by those of `state_dict`, or without `strict` those that are in `state`.

        Args:
            state: Arrays or torch tensors by name, of the states' shapes and types.
            strict: Whether every state must be there, and no others.

        Raises:
            WeightsError: Names, shapes or element types do not fit. No state was changed.
        """
        set_states(self.states, state, "the state", strict)

    def save_checkpoint(self, path: str | Path) -> None:
        """Write all states to a safetensors file, from which training continues bit for bit.

        An existing file is replaced when the new one is complete and on disk. Parameters have their names in
        the model.

        Args:
            path: The file.

        Raises:
            WeightsError: The file cannot be written.
        """
        write_checkpoint(self.states, Path(path))

    def load_checkpoint(self, path: str | Path) -> None:
        """Replace all states by those of a file of `save_checkpoint`.

        Args:
            path: The file.

        Raises:
            WeightsError: The file does not exist, is damaged, or belongs to another model or optimizer. No
                state was changed.
        """
        set_states(self.states, read_checkpoint(Path(path)), str(path), strict=True)

    def save(self, path: str | Path, *, weights: str | None = None, prefix: str | None = None) -> Path:
        """Write the library as an artifact. It begins with the parameters of the time when the step was
        compiled; `save_checkpoint` keeps the present ones.

        Args:
            path: The file. Its suffix selects the kind of artifact.
            weights: As for `CompiledModel.save`.
            prefix: As for `CompiledModel.save`.

        Raises:
            ArtifactError: A file cannot be written.
        """
        return self.library.save(path, weights=weights, prefix=prefix)

    def sync(self, path: str | Path | None = None) -> None:
        """Write the present parameters and buffers into the model that the step was made of.

        Args:
            path: The file to write an ONNX model or an exported program of PyTorch to, after that. A model
                that was read from a file needs it.

        Raises:
            CompileError: The step was loaded from a file, its model keeps no parameters, or there is no file
                to write it to.
            WeightsError: The file cannot be written.
        """
        if self._model is None:
            raise CompileError("a step that was loaded from a file has no model; use state_dict()")
        file = self._model.file
        if path is None and file is not None and file.source is not None:
            raise CompileError(
                f"the model is the file '{file.source}', which stays as it is: name a file for the trained "
                f"one, sync('trained{Path(file.source).suffix}')"
            )
        if path is not None and file is None:
            raise CompileError(
                f"sync({str(path)!r}): only ONNX models and exported programs of PyTorch are written to "
                "files; call sync() and save the model, or use save_checkpoint"
            )
        state = self.library.state
        self._model.sync({n: state[n] for n in self.parameter_names})
        if path is not None and file is not None:
            try:
                file.write(Path(path))
            except (OSError, RuntimeError) as error:  # torch's writer raises the second
                raise WeightsError(f"cannot write {path}: {error}") from error

    def __repr__(self) -> str:
        return f"TrainStep({len(self.parameter_names)} parameters, {self.steps} steps made)"


__all__ = ["TrainStep"]
