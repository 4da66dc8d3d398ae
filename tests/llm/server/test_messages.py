"""The server's answers to Anthropic's own client, and tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from .conftest import Running
from .test_api import ADD as FUNCTION
from .test_api import CALL
from .test_forms import THINKING

anthropic = pytest.importorskip("anthropic", reason="Anthropic's client is not installed")

_FUNCTION = FUNCTION["function"]
ADD: Any = {
    "name": _FUNCTION["name"],
    "description": _FUNCTION["description"],
    "input_schema": _FUNCTION["parameters"],
}


def client_of(server: Running, key: str = "none") -> Any:
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def claude(server: Running) -> Iterator[Any]:
    yield client_of(server)


def ask(client: Any, text: str, **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    return client.messages.create(**{"model": "echo", "messages": messages, "max_tokens": 200, **more})


def test_a_message_is_answered(claude: Any) -> None:
    answer = ask(claude, "Grüße 🌍!", system="Be brief.")
    assert [block.text for block in answer.content] == ["Grüße 🌍!"]
    assert (answer.role, answer.stop_reason, answer.stop_sequence) == ("assistant", "end_turn", None)
    usage = answer.usage
    assert usage.input_tokens > 0 and usage.output_tokens >= len("Grüße 🌍!".encode())
    counted = claude.messages.count_tokens(
        model="echo", messages=[{"role": "user", "content": "Grüße 🌍!"}], system="Be brief."
    )
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_answers_tell_why_they_end(claude: Any) -> None:
    assert ask(claude, "abcdef", max_tokens=3).stop_reason == "max_tokens"
    stopped = ask(claude, "abcdef", stop_sequences=["x", "de"])
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == (
        "abc",
        "stop_sequence",
        "de",
    )


def test_streams_carry_the_same_answer(claude: Any) -> None:
    with claude.messages.stream(
        model="echo", max_tokens=200, messages=[{"role": "user", "content": f"well\n{CALL}"}], tools=[ADD]
    ) as stream:
        kinds = [event.type for event in stream]
        whole = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert [block.type for block in whole.content] == ["text", "tool_use"]
    assert (whole.content[1].name, whole.content[1].input) == ("add", {"a": 5, "b": "x"})
    again = ask(claude, f"well\n{CALL}", tools=[ADD])
    assert again.stop_reason == whole.stop_reason == "tool_use"
    assert again.content[0].text == whole.content[0].text == "well"


def test_tools_are_called_and_answered(claude: Any) -> None:
    named = ask(claude, "5x", tools=[ADD], tool_choice={"type": "tool", "name": "add"})
    (call,) = named.content
    assert call.type == "tool_use" and call.input.keys() == {"a", "b"} and named.stop_reason == "tool_use"
    required = ask(claude, "5x", tools=[ADD], tool_choice={"type": "any"})
    assert required.content[0].type == "tool_use"
    long = {**ADD, "name": "n" * 128}
    chosen = {"type": "tool", "name": long["name"]}
    assert ask(claude, "5x", tools=[long], tool_choice=chosen).content[0].name == long["name"]
    messages: Any = [
        {"role": "user", "content": "What is 5x?"},
        {"role": "assistant", "content": [{"type": "text", "text": "I see."}, call.model_dump()]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "55"}]},
                {"type": "text", "text": "and now?"},
            ],
        },
    ]
    assert ask(claude, "", messages=messages, tools=[ADD]).content[0].text == "and now?"


def test_reasoning_is_a_block(start: Callable[..., Running]) -> None:
    answer = ask(client_of(start(template=THINKING)), "<think>hm</think>Yes.")
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert (answer.content[0].thinking, answer.content[1].text) == ("hm", "Yes.")


def test_the_last_message_of_the_assistant_is_continued(claude: Any) -> None:
    messages: Any = [{"role": "user", "content": "abcdef"}, {"role": "assistant", "content": "abc"}]
    assert ask(claude, "", messages=messages).content[0].text == "def"


def test_errors_have_the_form_of_the_api(claude: Any, start: Callable[..., Running]) -> None:
    with pytest.raises(anthropic.NotFoundError, match="model 'other' does not exist") as found:
        ask(claude, "x", model="other")
    assert found.value.body["type"] == "error" and found.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="unknown parameter: 'mcp_servers'"):
        ask(claude, "x", extra_body={"mcp_servers": []})
    shown = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    with pytest.raises(anthropic.BadRequestError, match="content.0.source.data': the model takes text only"):
        ask(claude, "", messages=[{"role": "user", "content": [shown]}])
    with pytest.raises(anthropic.BadRequestError, match="needs a name"):
        ask(claude, "x", tools=[ADD], tool_choice={"type": "tool"})
    with pytest.raises(anthropic.BadRequestError, match="'tools.0.input_schema': 'properties' should be an"):
        ask(claude, "x", tools=[{"name": "f", "input_schema": {"type": "object", "properties": [1]}}])
    guarded = start(keys=("secret",))
    assert ask(client_of(guarded, "secret"), "hi").content[0].text == "hi"
    with pytest.raises(anthropic.AuthenticationError, match="not valid"):
        ask(client_of(guarded, "wrong"), "hi")


def test_tokens_of_texts_and_chats(server: Running) -> None:
    def post(path: str, **body: Any) -> httpx.Response:
        return server.http.post(path, json=body)

    found = post("/tokenize", model="echo", prompt="héllo", return_token_strs=True).json()
    assert found["count"] == len(found["tokens"]) == 6 and found["max_model_len"] == 2048
    assert len(found["token_strs"]) == 6
    assert post("/tokenize", content="héllo").json()["tokens"] == found["tokens"]
    assert post("/detokenize", tokens=found["tokens"]).json() == {"prompt": "héllo", "content": "héllo"}
    chat = post("/tokenize", messages=[{"role": "user", "content": "hi"}]).json()
    text = post("/detokenize", tokens=chat["tokens"]).json()["prompt"]
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    for path, body, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "model": "other"}, "model"),
        ("/detokenize", {"tokens": [999]}, "tokens"),
    ):
        answer = post(path, **body)
        assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == param
    assert json.loads(post("/detokenize", tokens=[]).content)["prompt"] == ""


def test_a_budget_ends_the_reasoning(start: Callable[..., Running]) -> None:
    """The end of the reasoning takes the place of the model's tokens, of which the echo goes on after it."""
    server = start(template=THINKING)
    text = f"<think>{'hm' * 40}</think>Yes."
    limited = {"type": "enabled", "budget_tokens": 10}
    answer = ask(client_of(server), text, thinking=limited)
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert answer.content[0].thinking == "hm" * 5
    free = ask(client_of(server), text, thinking={"type": "enabled", "budget_tokens": 5000})
    assert free.content[0].thinking == "hm" * 40 and free.content[1].text == "Yes."
    body = {"model": "echo", "messages": [{"role": "user", "content": text}], "max_reasoning_tokens": 4}
    message = server.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "hmhm" and message["content"].endswith("Yes.")
