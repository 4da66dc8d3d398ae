"""Quantization: models with integers, from float models and sample inputs or by training."""

from .aware import QuantizationAwareModel, prepare_qat
from .model import QuantizedModel
from .post_training import quantize
from .report import LayerReport, QuantizationReport

__all__ = [
    "LayerReport",
    "QuantizationAwareModel",
    "QuantizationReport",
    "QuantizedModel",
    "prepare_qat",
    "quantize",
]
