"""/metrics in Prometheus' text format.

Names and units follow Prometheus' conventions: base units, and names of totals end in _total.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..engine.statistics import SECONDS, Histogram, Statistics

_NOW = {"running", "waiting", "pages", "pages_used", "pages_kept"}
"""The engine's statistics that may fall again."""


class Metrics(Collector):
    """The server's own counters, and values that are read at each request: the engine's statistics and the
    number of answers in progress.
    """

    def __init__(self, statistics: Callable[[], Statistics], inside: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "http_requests",
            "Requests by path and status.",
            ("path", "status"),
            namespace="tilewright",
            registry=self.registry,
        )
        self._statistics = statistics
        self._inside = inside
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; called by the registry."""
        yield GaugeMetricFamily(
            "tilewright_answers_in_progress", "Answers being generated or waiting.", value=self._inside()
        )
        statistics = self._statistics()
        for field in fields(statistics):
            value, name = getattr(statistics, field.name), f"tilewright_engine_{field.name}"
            about = f"The engine's {field.name.replace('_', ' ')}."
            if isinstance(value, Histogram):
                bounds = [*map(str, SECONDS), "+Inf"]
                buckets = list(zip(bounds, map(float, accumulate(value.counts)), strict=True))
                yield HistogramMetricFamily(
                    f"{name.removesuffix('_time')}_seconds", about, buckets=buckets, sum_value=value.sum
                )
            elif isinstance(value, dict):
                family = CounterMetricFamily(name, about, labels=("reason",))
                for reason, count in value.items():
                    family.add_metric((reason,), count)
                yield family
            else:
                yield (GaugeMetricFamily if field.name in _NOW else CounterMetricFamily)(
                    name, about, value=value
                )

    def text(self) -> bytes:
        return generate_latest(self.registry)
