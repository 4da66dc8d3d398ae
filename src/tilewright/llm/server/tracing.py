"""OpenTelemetry traces: one span for each request, with the attributes of the conventions for generative AI.

The names of times are those of vLLM's server, for which the conventions have none. Traces are off unless a
`Tracing` is given to the service; `opentelemetry` is imported only then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import TilewrightError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

_REQUESTED = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
    "n": "choice.count",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
}
"""Fields of requests, and their names among the attributes ``gen_ai.request``."""


class Tracing:
    """Makes spans."""

    def __init__(self, provider: TracerProvider) -> None:
        """Make spans by the tracer of `provider`."""
        self._tracer = provider.get_tracer("tilewright")

    @classmethod
    def to(cls, endpoint: str) -> Tracing:
        """Send spans to a collector by OTLP over HTTP, in batches.

        Args:
            endpoint: the URL, such as ``http://127.0.0.1:4318/v1/traces``.

        Raises:
            TilewrightError: the packages of the extra ``otel`` are not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise TilewrightError(
                f"traces need packages that are not installed: pip install 'tilewright[otel]' ({error})"
            ) from error
        provider = TracerProvider(resource=Resource.create({"service.name": "tilewright"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        return cls(provider)

    def begin(self, operation: str, model: str, request: object, headers: Mapping[str, str]) -> RequestSpan:
        """Begin the span of a request, within the client's trace if `headers` name one.

        Args:
            operation: the kind of request, such as ``chat``.
            model: the model's name.
            request: the fields of the request as attributes.
            headers: the request's headers.
        """
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        about: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "tilewright",
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
        }
        for name, attribute in _REQUESTED.items():
            if (value := getattr(request, name, None)) is not None:
                about[f"gen_ai.request.{attribute}"] = value
        context = TraceContextTextMapPropagator().extract(dict(headers))
        span = self._tracer.start_span(f"{operation} {model}", context, SpanKind.SERVER, about)
        return RequestSpan(span)


class RequestSpan:
    """The span of one request."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._begin = time.perf_counter()
        self._first: float | None = None
        self._reasons: dict[int, str] = {}

    def token(self, index: int, reason: str | None) -> None:
        """Note that a part of answer number `index` has arrived, with its finish reason if it is the last."""
        self._first = self._first or time.perf_counter()
        if reason is not None:
            self._reasons[index] = reason

    def generated(self, usage: Mapping[str, Any], admitted: Sequence[float]) -> None:
        """Note the end of a generation.

        Args:
            usage: the numbers of tokens in OpenAI's form.
            admitted: the times of `time.perf_counter` at which prompts left the queue.
        """
        now = time.perf_counter()
        self.used(usage)
        if self._reasons:
            reasons = [self._reasons[index] for index in sorted(self._reasons)]
            self._span.set_attribute("gen_ai.response.finish_reasons", reasons)
        times = {"e2e": now - self._begin}
        if admitted:
            times["time_in_queue"] = min(admitted) - self._begin
        if self._first is not None:
            times["time_to_first_token"] = self._first - self._begin
            times["time_in_model_decode"] = now - self._first
            if admitted:
                times["time_in_model_prefill"] = self._first - min(admitted)
        for name, seconds in times.items():
            self._span.set_attribute(f"gen_ai.latency.{name}", max(0.0, seconds))

    def used(self, usage: Mapping[str, Any]) -> None:
        """Note the numbers of tokens of a usage in OpenAI's form."""
        for name, attribute in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")):
            if name in usage:
                self._span.set_attribute(f"gen_ai.usage.{attribute}", usage[name])
        if (cached := usage.get("prompt_tokens_details", {}).get("cached_tokens")) is not None:
            self._span.set_attribute("gen_ai.usage.cache_read.input_tokens", cached)

    def fail(self, error: Exception) -> None:
        """Note that the request failed."""
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("error.type", str(getattr(error, "status", type(error).__name__)))
        self._span.set_status(StatusCode.ERROR, str(error))

    def end(self) -> None:
        """End the span."""
        self._span.end()


__all__ = ["RequestSpan", "Tracing"]
