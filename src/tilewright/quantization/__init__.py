"""Post-training quantization: models with integers, from float models and sample inputs."""

from .model import QuantizedModel
from .post_training import quantize
from .report import LayerReport, QuantizationReport

__all__ = ["LayerReport", "QuantizationReport", "QuantizedModel", "quantize"]
