"""A span for each request, with its tokens, its times and its failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.llm.speech.small_whisper import backend, settings, token
from tilewright.llm.server.tracing import Tracing
from tilewright.llm.speech.transcription import Transcriber
from tilewright.llm.tokenizer import Tokenizer

from .conftest import Running
from .test_adapters import Adapted
from .test_api import ask
from .test_audio import Speaker, recording


class Traced:
    """A server, and the spans that it exports."""

    def __init__(self, start: Callable[..., Running], **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.server = start(tracing=Tracing(provider), **options)

    def span(self) -> Any:
        """The only span; the server has ended, so that it is complete."""
        self.server.close()
        (span,) = self.exporter.get_finished_spans()
        return span


@pytest.fixture
def traced() -> Traced:
    return Traced(Running)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat(traced: Traced, stream: bool) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    answer: Any = traced.server.client().chat.completions.create(
        model="echo", messages=ask("abc"), stream=stream, temperature=0.5, n=2,
        extra_headers={"traceparent": f"00-{trace}-{parent}-01"},
    )  # fmt: skip
    if stream:
        list(answer)
    span = traced.span()
    about = span.attributes
    assert (span.name, about["gen_ai.operation.name"]) == ("chat echo", "chat")
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (trace, parent)
    assert (about["gen_ai.request.temperature"], about["gen_ai.request.choice.count"]) == (0.5, 2)
    assert about["gen_ai.response.finish_reasons"] == ("stop", "stop")
    assert about["gen_ai.usage.output_tokens"] == 8 and about["gen_ai.usage.input_tokens"] > 8
    parts = [f"time_in_{part}" for part in ("queue", "model_prefill", "model_decode")]
    queue, prefill, decode = (about[f"gen_ai.latency.{part}"] for part in parts)
    assert min(queue, prefill, decode) >= 0 and prefill > 0
    assert queue + prefill + decode == pytest.approx(about["gen_ai.latency.e2e"], abs=1e-6)
    assert queue + prefill == pytest.approx(about["gen_ai.latency.time_to_first_token"], abs=1e-6)
    assert span.status.status_code is StatusCode.UNSET


def test_embeddings(traced: Traced) -> None:
    traced.server.client().embeddings.create(model="echo", input=["ab", "c"])
    about = traced.span().attributes
    assert (about["gen_ai.operation.name"], about["gen_ai.usage.input_tokens"]) == ("embeddings", 3)


def test_an_adapter_has_its_name() -> None:
    traced = Traced(Running, runner=Adapted())
    traced.server.service.load_adapter("tuned", Path("/adapters/tuned"))
    traced.server.client().completions.create(model="tuned", prompt="x", max_tokens=1)
    span = traced.span()
    assert (span.name, span.attributes["gen_ai.request.model"]) == ("text_completion tuned", "tuned")


@pytest.mark.parametrize(
    ("path", "operation"), [("transcriptions", "transcription"), ("translations", "translation")]
)
def test_a_recording(path: str, operation: str) -> None:
    words = Tokenizer(backend(), eos=[token("endoftext")])
    traced = Traced(Running, runner=Speaker(), words=words, body=200000)
    traced.server.service.transcriber = Transcriber(traced.server.engine, settings())
    answer = traced.server.http.post(f"/v1/audio/{path}", files={"file": ("a.wav", recording())})
    assert answer.status_code == 200
    span = traced.span()
    assert (span.name, span.attributes["gen_ai.operation.name"]) == (f"{operation} echo", operation)


def test_a_failure(traced: Traced) -> None:
    with pytest.raises(BadRequestError):
        traced.server.client().chat.completions.create(model="echo", messages=ask("x" * 4000))
    span = traced.span()
    assert span.attributes["error.type"] == "400"
    assert span.status.status_code is StatusCode.ERROR and "context" in span.status.description


def test_requests_without_a_model_have_no_span(traced: Traced) -> None:
    assert traced.server.http.get("/v1/models").status_code == 200
    traced.server.close()
    assert not traced.exporter.get_finished_spans()
