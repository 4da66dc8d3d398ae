"""`QuantizedModel`: the result of quantization, a model that `tilewright.compile` takes."""

from __future__ import annotations

from pathlib import Path

from ..errors import CompileError
from ..ir.core import Module
from ..ir.printer import print_op
from .report import QuantizationReport


class QuantizedModel:
    """A quantized model. `tilewright.compile` takes it for any target.

    Attributes:
        module: The model as a `tilewright.ir` module, with integers in it.
        report: The layers that were quantized, and the errors.
    """

    def __init__(self, module: Module, report: QuantizationReport) -> None:
        self.module, self.report = module, report

    def save(self, path: str | Path) -> None:
        """Write the model to a file: ``.onnx`` with operators `QuantizeLinear` and `DequantizeLinear`, or
        ``.tw``, Tilewright's own form.

        Raises:
            CompileError: The path has another suffix, or ONNX lacks an operator; the message names it.
        """
        path = Path(path)
        if path.suffix == ".tw":
            path.write_text(print_op(self.module, resources=True))
        elif path.suffix == ".onnx":
            from ..exporters.onnx import export_onnx

            export_onnx(self.module, path)
        else:
            raise CompileError(f"{path}: a quantized model is saved as .onnx or .tw")

    def __repr__(self) -> str:
        counts = [f"{sum(x.precision == p for x in self.report.layers)} in {p}" for p in ("int8", "int16")]
        return f"QuantizedModel({len(self.report.layers)} layers, {', '.join(counts)})"


__all__ = ["QuantizedModel"]
