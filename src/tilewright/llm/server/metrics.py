"""/metrics in Prometheus' text format.

Names and units follow Prometheus' conventions: base units, and names of totals end in _total. The figures of
models have the label `model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..engine.statistics import SECONDS, Histogram, Statistics

_NOW = {"running", "waiting", "pages", "pages_used", "pages_kept"}
"""The engine's statistics that may fall again."""
_LABELS = ("model",)


@dataclass
class ModelFigures:
    """The figures of a model."""

    name: str
    bytes: int
    """Memory that it needs while it is loaded; 0: unknown."""
    loads: int
    evictions: int
    statistics: Statistics | None
    """The engine's; None: the model is not loaded."""
    inside: int
    """Answers in progress."""


class Metrics(Collector):
    """The server's own counters, and values that are read at each request: the figures of its models."""

    def __init__(self, models: Callable[[], Sequence[ModelFigures]]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "http_requests",
            "Requests by path and status.",
            ("path", "status"),
            namespace="tilewright",
            registry=self.registry,
        )
        self._models = models
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; called by the registry."""
        models = self._models()
        for name, about, kind, value in (
            ("answers_in_progress", "Answers being generated or waiting.", GaugeMetricFamily, "inside"),
            ("model_bytes", "Memory of the model's library.", GaugeMetricFamily, "bytes"),
            ("model_loads", "Loads of the model.", CounterMetricFamily, "loads"),
            ("model_evictions", "Unloads for another model.", CounterMetricFamily, "evictions"),
        ):
            family = kind(f"tilewright_{name}", about, labels=_LABELS)
            for model in models:
                family.add_metric((model.name,), getattr(model, value))
            yield family
        loaded = GaugeMetricFamily("tilewright_model_loaded", "Whether the model is loaded.", labels=_LABELS)
        for model in models:
            loaded.add_metric((model.name,), model.statistics is not None)
        yield loaded
        running = {model.name: model.statistics for model in models if model.statistics is not None}
        for field in fields(Statistics):
            yield _family(field.name, {name: getattr(s, field.name) for name, s in running.items()})

    def text(self) -> bytes:
        return generate_latest(self.registry)


def _family(field: str, values: dict[str, object]) -> Metric:
    """One of the engine's statistics, of all models."""
    name, about = f"tilewright_engine_{field}", f"The engine's {field.replace('_', ' ')}."
    example = getattr(Statistics(), field)
    if isinstance(example, Histogram):
        histogram = HistogramMetricFamily(f"{name.removesuffix('_time')}_seconds", about, labels=_LABELS)
        for model, value in values.items():
            assert isinstance(value, Histogram)
            bounds = [*map(str, SECONDS), "+Inf"]
            buckets = list(zip(bounds, map(float, accumulate(value.counts)), strict=True))
            histogram.add_metric((model,), buckets, value.sum)
        return histogram
    if isinstance(example, dict):
        reasons = CounterMetricFamily(name, about, labels=(*_LABELS, "reason"))
        for model, value in values.items():
            assert isinstance(value, dict)
            for reason, count in value.items():
                reasons.add_metric((model, reason), count)
        return reasons
    family = (GaugeMetricFamily if field in _NOW else CounterMetricFamily)(name, about, labels=_LABELS)
    for model, value in values.items():
        assert isinstance(value, int)
        family.add_metric((model,), value)
    return family


__all__ = ["Metrics", "ModelFigures"]
