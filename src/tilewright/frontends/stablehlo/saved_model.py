"""Import TensorFlow's SavedModel, through the StableHLO that TensorFlow generates from a signature for static
shapes. Variables become constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CompileError
from ...ir.core import Module

SIGNATURE = "serving_default"


def is_saved_model(path: Path) -> bool:
    """Whether a folder holds a SavedModel."""
    return (path / "saved_model.pb").is_file()


def import_saved_model(path: Path, args: Sequence[Any] | None, kwargs: dict[str, Any]) -> Module:
    """Translate a SavedModel's signature ``serving_default``, or its only one, to a module of graph
    operators.

    Inputs and outputs are in the order of their names. TensorFlow generates StableHLO for static shapes only:
    for dimensions that the signature leaves open, `args` (in the order of names) or `kwargs` are arrays whose
    shapes are used.

    Raises:
        CompileError: TensorFlow or jaxlib is not installed, the signature does not exist, or a shape is
            unknown.
    """
    try:
        import tensorflow as tf
    except ImportError:
        raise CompileError(
            "a SavedModel is read with TensorFlow: pip install 'tilewright[tensorflow]'"
        ) from None
    from .importer import Importer
    from .reading import program_of

    model = tf.saved_model.load(str(path))
    signatures = dict(model.signatures)
    if SIGNATURE not in signatures and len(signatures) != 1:
        raise CompileError(f"{path}: has no signature '{SIGNATURE}', but {', '.join(signatures) or 'none'}")
    signature = signatures.get(SIGNATURE) or next(iter(signatures.values()))
    described = signature.structured_input_signature[1]
    names = sorted(described)
    examples = dict(zip(names, args or (), strict=False)) | kwargs
    if unknown := sorted(set(examples) - set(names)):
        raise CompileError(
            f"{path}: '{unknown[0]}' is not an input of the signature; inputs: {', '.join(names)}"
        )
    specs = []
    for name in names:
        shape = described[name].shape
        if not shape.is_fully_defined():
            if name not in examples:
                raise CompileError(
                    f"{path}: TensorFlow generates StableHLO for static shapes only, "
                    f"and input '{name}' is {shape}: "
                    "give example inputs, tw.compile(path, (array, ...))"
                )
            shape = np.shape(examples[name])
        specs.append(tf.TensorSpec(shape, described[name].dtype, name=name))
    results = sorted(signature.structured_outputs)

    def call(*inputs: Any) -> Any:
        outputs = signature(**dict(zip(names, inputs, strict=True)))
        return [outputs[name] for name in results]

    function = tf.function(call, jit_compile=True)
    concrete = function.get_concrete_function(*specs)
    source = function.experimental_get_compiler_ir(*specs)(stage="stablehlo")
    variables = {id(v.handle): v for v in concrete.variables}
    constants = []
    for captured in concrete.captured_inputs:
        value = variables.get(id(captured), None if captured.dtype == tf.resource else captured)
        if value is None:
            raise CompileError(
                f"{path}: the signature uses a resource other than a variable, such as a lookup table, "
                "which is not supported"
            )
        constants.append(np.asarray(value.numpy()))
    text = source if isinstance(source, bytes) else source.encode()
    return Importer(program_of(text, str(path), names, constants, results)).run()


__all__ = ["import_saved_model", "is_saved_model"]
