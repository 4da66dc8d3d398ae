"""The server's answers to OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from .conftest import Running

ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": ["x", "y"]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
SAY: Any = {"type": "function", "function": {"name": "say"}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 5, "b": "x"}}\n</tool_call>'


def ask(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["echo"]
    assert client.models.retrieve("echo").owned_by == "tilewright"
    with pytest.raises(openai.NotFoundError, match="model 'other' does not exist"):
        client.models.retrieve("other")


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="echo", messages=ask("Grüße 🌍!"))
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == (
        "assistant",
        "Grüße 🌍!",
        "stop",
    )
    assert (
        answer.usage is not None
        and answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    )
    # The token that ends the answer may be counted.
    assert len("Grüße 🌍!".encode()) <= answer.usage.completion_tokens <= len("Grüße 🌍!".encode()) + 1


def test_beam_search(client: OpenAI) -> None:
    """The most probable answer is first; its log-probabilities say so."""
    extra = {"use_beam_search": True, "length_penalty": 0.0}
    answer = client.chat.completions.create(
        model="echo", messages=ask("abc"), n=3, logprobs=True, extra_body=extra
    )
    assert answer.choices[0].message.content == "abc"
    sums = []
    for choice in answer.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        sums.append(sum(token.logprob for token in choice.logprobs.content))
    assert sums == sorted(sums, reverse=True) and len(sums) == 3
    made = client.completions.create(
        model="echo", prompt="abc", max_tokens=5, n=2, best_of=4, extra_body={"use_beam_search": True}
    )
    assert len(made.choices) == 2
    events = list(
        client.chat.completions.create(model="echo", messages=ask("abc"), stream=True, extra_body=extra)
    )
    assert "".join(e.choices[0].delta.content or "" for e in events if e.choices) == "abc"


def test_messages_reach_the_template(client: OpenAI) -> None:
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "user", "content": "last"},
    ]
    first = client.chat.completions.create(model="echo", messages=messages)
    again = client.chat.completions.create(model="echo", messages=messages)
    assert first.choices[0].message.content == "last"
    assert first.usage and again.usage and again.usage.prompt_tokens_details
    assert 0 < (again.usage.prompt_tokens_details.cached_tokens or 0) < again.usage.prompt_tokens, (
        "the prefix is in the cache, and the rest is not"
    )


def test_stream_equals_the_whole(client: OpenAI) -> None:
    options: Any = {
        "model": "echo",
        "messages": ask("Wörter — mit 🎈"),
        "n": 3,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = client.chat.completions.create(**options)
    chunks = list(
        client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    )
    texts, reasons = ["", "", ""], [""] * 3
    tokens: list[list[str]] = [[], [], []]
    for chunk in chunks[:-1]:
        assert chunk.usage is None and chunk.object == "chat.completion.chunk" and chunk.id == chunks[0].id
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        if choice.logprobs:
            tokens[choice.index] += [entry.token for entry in choice.logprobs.content or ()]
    assert texts == [choice.message.content for choice in whole.choices] == ["Wörter — mit 🎈"] * 3
    assert reasons == [choice.finish_reason for choice in whole.choices] == ["stop"] * 3
    assert chunks[-1].choices == []
    assert (
        chunks[-1].usage
        and whole.usage
        and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    )
    for choice, streamed in zip(whole.choices, tokens, strict=True):
        assert choice.logprobs and choice.logprobs.content
        assert [entry.token for entry in choice.logprobs.content] == streamed
        text = b"".join(bytes(entry.bytes or ()) for entry in choice.logprobs.content)
        assert text.decode().startswith("Wörter — mit 🎈")
        assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in choice.logprobs.content)


@pytest.mark.parametrize(
    ("stop", "text"), [("four", "one two three "), (["x", " thr"], "one two"), (["zz"], "one two three four")]
)
def test_stop(client: OpenAI, stop: Any, text: str) -> None:
    answer = client.chat.completions.create(model="echo", messages=ask("one two three four"), stop=stop)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (text, "stop")


def test_max_tokens_and_logit_bias(client: OpenAI) -> None:
    cut = client.chat.completions.create(model="echo", messages=ask("abcdef"), max_completion_tokens=3)
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("abc", "length")
    biased = client.chat.completions.create(
        model="echo", messages=ask("aaaa"), max_tokens=1, logit_bias={"256": 100}
    )
    assert biased.choices[0].message.content == "", "the bias makes token 256 end the answer"


def test_seed_repeats(client: OpenAI) -> None:
    options: Any = {
        "model": "echo",
        "prompt": "roll",
        "max_tokens": 12,
        "temperature": 2,
        "logit_bias": {str(i): 43 for i in range(20, 60)},
    }
    texts = [client.completions.create(**options, seed=seed).choices[0].text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_json(client: OpenAI) -> None:
    class Point(BaseModel):
        x: int
        label: str

    free = client.chat.completions.create(
        model="echo",
        messages=ask('{"a": [1, true]}'),
        response_format={"type": "json_object"},
        max_tokens=100,
    )
    assert json.loads(free.choices[0].message.content or "") == {"a": [1, True]}
    parsed = client.chat.completions.parse(
        model="echo", messages=ask('{"x": 3, "label": "ab"}'), response_format=Point
    )
    assert parsed.choices[0].message.parsed == Point(x=3, label="ab")


@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: OpenAI, stream: bool) -> None:
    def run(text: str, **options: Any) -> tuple[str, list[tuple[str, Any]], str]:
        options = {"model": "echo", "messages": ask(text), "tools": [ADD, SAY], "max_tokens": 200} | options
        if stream:
            with client.chat.completions.stream(**options) as events:
                choice: Any = events.until_done().get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(**options).choices[0]
        calls = [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls or ()]
        assert all(c.id and c.type == "function" for c in choice.message.tool_calls or ())
        return choice.message.content or "", calls, choice.finish_reason

    assert run("no call") == ("no call", [], "stop")
    one = ("add", {"a": 5, "b": "x"})
    assert run(f"Well: {CALL}{CALL}") == ("Well:", [one, one], "tool_calls")
    assert run(CALL + CALL, parallel_tool_calls=False) == ("", [one], "tool_calls")
    assert run(CALL, tool_choice="none") == (CALL, [], "stop")
    text, [(name, arguments)], reason = run("hello", tool_choice="required")
    assert (
        text == ""
        and reason == "tool_calls"
        and (name, arguments.keys()) in (("add", {"a", "b"}), ("say", set()))
    )
    text, [(name, arguments)], reason = run(
        "hello", tool_choice={"type": "function", "function": {"name": "add"}}
    )
    assert (
        (text, name, reason) == ("", "add", "stop") and arguments["a"] in range(10) and arguments["b"] in "xy"
    )


def test_completions(client: OpenAI) -> None:
    one = client.completions.create(model="echo", prompt="abc", max_tokens=5, logprobs=2)
    again = client.completions.create(model="echo", prompt=[ord(c) - 33 for c in "abc"], max_tokens=5)
    choice = one.choices[0]
    assert len(choice.text) == 5 and choice.finish_reason == "length"
    assert choice.text == again.choices[0].text, "a prompt of tokens gives the answer of its text"
    assert (
        choice.logprobs
        and choice.logprobs.tokens == list(choice.text)
        and choice.logprobs.text_offset == [0, 1, 2, 3, 4]
    )
    many = client.completions.create(model="echo", prompt=["abc", "xyz"], max_tokens=5, n=2, echo=True)
    assert [c.index for c in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == many.choices[1].text == "abc" + choice.text
    assert many.choices[2].text.startswith("xyz") and many.usage and many.usage.completion_tokens == 20
    streamed = ["", ""]
    for chunk in client.completions.create(
        model="echo", prompt=["abc", "xyz"], max_tokens=5, echo=True, stream=True
    ):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [many.choices[0].text, many.choices[2].text]
    assert len(client.completions.create(model="echo", prompt="q").choices[0].text) == 16, (
        "16 tokens, the default of OpenAI"
    )


def test_embeddings(client: OpenAI) -> None:
    # The client receives the vectors in base64.
    found = client.embeddings.create(model="echo", input=["one", "two!"])
    plain = client.embeddings.create(model="echo", input="two!", encoding_format="float")
    assert len(found.data) == 2 and found.data[1].embedding == pytest.approx(plain.data[0].embedding)
    assert found.usage.prompt_tokens == 7
    short = client.embeddings.create(model="echo", input="two!", dimensions=3).data[0].embedding
    assert len(short) == 3 and np.linalg.norm(short) == pytest.approx(1, abs=1e-5)


def test_responses(client: OpenAI) -> None:
    answer = client.responses.create(model="echo", input="Hällo", instructions="Be kind.")
    assert (
        answer.output_text == "Hällo"
        and answer.status == "completed"
        and answer.usage
        and answer.usage.input_tokens > 0
    )
    follow = client.responses.create(model="echo", input="more", previous_response_id=answer.id)
    assert follow.output_text == "more" and follow.usage
    assert follow.usage.input_tokens > answer.usage.input_tokens, "the prompt contains the earlier turns"
    assert client.responses.retrieve(answer.id).output_text == "Hällo"
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    cut = client.responses.create(model="echo", input="abcdef", max_output_tokens=2, store=False)
    assert (cut.output_text, cut.status) == ("ab", "incomplete") and cut.incomplete_details
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(cut.id)


def test_responses_with_tools_and_formats(client: OpenAI) -> None:
    tools: Any = [{"type": "function", "strict": True, **ADD["function"]}]
    first = client.responses.create(model="echo", input=f"Go. {CALL}", tools=tools)
    message, call = first.output
    assert message.type == "message" and first.output_text == "Go."
    assert call.type == "function_call" and (call.name, json.loads(call.arguments)) == (
        "add",
        {"a": 5, "b": "x"},
    )
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "6"}, *ask("thanks")]
    second = client.responses.create(model="echo", input=result, previous_response_id=first.id, tools=tools)
    assert second.output_text == "thanks"
    forced = client.responses.create(
        model="echo", input="x", tools=tools, tool_choice={"type": "function", "name": "add"}
    )
    assert [item.type for item in forced.output] == ["function_call"]
    schema: Any = {
        "type": "json_schema",
        "name": "n",
        "schema": {
            "type": "object",
            "properties": {"k": {"const": 1}},
            "required": ["k"],
            "additionalProperties": False,
        },
    }
    assert json.loads(
        client.responses.create(model="echo", input="x", text={"format": schema}).output_text
    ) == {"k": 1}


@pytest.mark.parametrize(
    ("tokens", "said", "called"), [(20, "Go.", None), (44, "Go.", ""), (51, "Go.", '{"a": ')]
)
def test_a_call_that_is_cut(client: OpenAI, tokens: int, said: str, called: str | None) -> None:
    asked: Any = {"model": "echo", "messages": ask(f"Go. {CALL}"), "tools": [ADD], "max_tokens": tokens}
    (choice,) = client.chat.completions.create(**asked).choices
    assert (choice.finish_reason, choice.message.content) == ("length", said)
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    assert calls == ([] if called is None else [("add", called)])
    tools: Any = [{"type": "function", **ADD["function"]}]
    answer = client.responses.create(model="echo", input=f"Go. {CALL}", tools=tools, max_output_tokens=tokens)
    assert answer.status == "incomplete" and answer.output_text == said
    made = [(item.name, item.arguments) for item in answer.output if item.type == "function_call"]
    assert made == calls


def test_responses_stream(client: OpenAI) -> None:
    tools: Any = [{"type": "function", "strict": True, **ADD["function"]}]
    with client.responses.stream(model="echo", input=f"Go. {CALL}", tools=tools) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Go."
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 2
    assert [item.type for item in final.output] == ["message", "function_call"]


def test_metrics_and_health(server: Running) -> None:
    server.client().chat.completions.create(model="echo", messages=ask("count me"))
    lines = server.http.get("/metrics").text.splitlines()
    values = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")
    }
    assert values['tilewright_http_requests_total{path="/v1/chat/completions",status="200"}'] >= 1
    assert values['tilewright_engine_generated_tokens_total{model="echo"}'] >= len("count me")
    assert values['tilewright_answers_in_progress{model="echo"}'] == 0
    assert values['tilewright_engine_time_to_first_token_seconds_bucket{le="+Inf",model="echo"}'] >= 1
    assert server.http.get("/health").json() == {"status": "ok"}
