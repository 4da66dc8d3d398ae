"""Bad requests get the right status and message in OpenAI's form, and the server keeps serving."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tilewright.errors import CompileError

from .conftest import Running
from .echo import EchoRunner

CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
)
IMAGE = {"type": "image_url", "image_url": {"url": "data:;base64,AA=="}}
HI = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "f"}}


def tool(properties: Any, required: Any = None) -> dict[str, Any]:
    """A tool whose parameters are not checked."""
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def schema(value: Any) -> dict[str, Any]:
    return HI | {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": value}}}


BAD: list[tuple[str, Any, int, str | None, str]] = [
    # (path, body, status, param, part of the message)
    (CHAT, b"{", 400, None, "not valid JSON"),
    (CHAT, b"", 400, None, "not valid JSON"),
    (CHAT, b'{"model": "\xff\xfe"}', 400, None, "not valid JSON: invalid unicode"),
    (CHAT, b'{"model": "\\ud800"}', 400, None, "not valid JSON"),
    (CHAT, b"[" * 100_000, 400, None, "recursion limit"),
    (CHAT, [HI], 400, None, "should be an object"),
    (CHAT, {"model": "echo"}, 400, "messages", "required"),
    (CHAT, HI | {"messages": []}, 400, "messages", "at least 1"),
    (CHAT, HI | {"messages": [{"role": "king", "content": "x"}]}, 400, "messages.0.role", "'system'"),
    (CHAT, HI | {"messages": [{"role": "user"}]}, 400, "messages.0.content", "required"),
    (CHAT, HI | {"messages": [{"role": "tool", "content": "x"}]}, 400, "messages.0", "tool_call_id"),
    (
        CHAT,
        HI | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        "messages.0.content.0.image_url.url",
        "the server fetches no images",
    ),
    (
        CHAT,
        HI
        | {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "data:;base64,AA=="}}],
                }
            ]
        },
        400,
        "messages.0.content.0.image_url.url",
        "the model takes text only, no images",
    ),
    (CHAT, HI | {"temprature": 1}, 400, "temprature", "unknown parameter"),
    (CHAT, HI | {"temperature": 2.5}, 400, "temperature", "less than or equal to 2"),
    (CHAT, HI | {"temperature": "hot"}, 400, "temperature", "valid number"),
    (CHAT, (json.dumps(HI)[:-1] + ', "top_p": NaN}').encode(), 400, "top_p", "finite"),
    (CHAT, HI | {"top_p": 0}, 400, "top_p", "greater than 0"),
    (CHAT, HI | {"n": 129}, 400, "n", "128"),
    (CHAT, HI | {"length_penalty": 1}, 400, "length_penalty", "needs 'use_beam_search'"),
    (CHAT, HI | {"use_beam_search": True, "stop": "a"}, 400, None, "no stop strings: use stop tokens"),
    (CHAT, HI | {"use_beam_search": True, "n": 17}, 400, None, "the batch allows 1 to 16"),
    (CHAT, HI | {"n": 100}, 400, "n", "limit of 24"),
    (CHAT, HI | {"stop": ["a"] * 17}, 400, "stop", "at most 16"),
    (CHAT, HI | {"logit_bias": {"cat": 1}}, 400, "logit_bias", "'cat' is not a token"),
    (CHAT, HI | {"logit_bias": {"259": 1}}, 400, "logit_bias", "'259' is not a token"),
    (CHAT, HI | {"top_logprobs": 3}, 400, "top_logprobs", "needs logprobs"),
    (CHAT, HI | {"max_tokens": 0}, 400, "max_tokens", "greater than or equal to 1"),
    (CHAT, HI | {"max_tokens": 5000}, 400, "messages", "context is 2048"),
    (
        CHAT,
        HI | {"messages": [{"role": "user", "content": "x" * 3000}]},
        400,
        "messages",
        "context is 2048 tokens",
    ),
    (CHAT, HI | {"model": "gpt"}, 404, "model", "model 'gpt' does not exist"),
    (CHAT, HI | {"response_format": {"type": "xml"}}, 400, "response_format.type", "'json_schema'"),
    (CHAT, schema({"type": "strin"}), 400, "response_format", "JSON schema cannot be used"),
    (CHAT, schema({"$ref": "#/nowhere"}), 400, "response_format", "JSON schema cannot be used"),
    (CHAT, HI | {"tool_choice": "required"}, 400, "tool_choice", "no tools"),
    (
        CHAT,
        HI | {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        400,
        "tool_choice",
        "'g'",
    ),
    (
        CHAT,
        HI | {"tools": [TOOL], "guided_choice": ["a", "b"]},
        400,
        "tools",
        "of a given grammar or choice cannot call tools",
    ),
    (CHAT, HI | {"tools": [{"type": "web_search"}]}, 400, "tools.0.type", "'function'"),
    (
        CHAT,
        HI | {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        400,
        "tools.0.function.name",
        "pattern",
    ),
    (
        CHAT,
        HI | {"chat_template_kwargs": {"template": "{{ 1 }}"}},
        400,
        "chat_template_kwargs",
        "must not set template",
    ),
    (
        CHAT,
        HI | {"tools": [tool([1])]},
        400,
        "tools.0.function.parameters",
        "'properties' should be an object",
    ),
    (
        CHAT,
        HI | {"tools": [tool({}, 5)], "tool_choice": "required"},
        400,
        "tools.0.function.parameters",
        "'required' should be a list of strings",
    ),
    (CHAT, HI | {"tools": [tool({}, [1])]}, 400, "tools.0.function.parameters", "a list of strings"),
    (
        RESPONSES,
        {"model": "echo", "input": "x", "tools": [{"type": "function", **tool("a")["function"]}]},
        400,
        "tools.0.parameters",
        "'properties' should be an object",
    ),
    (
        CHAT,
        HI | {"max_tokens": 3, "max_completion_tokens": 4},
        400,
        "max_tokens",
        "'max_tokens' is 3 and 'max_completion_tokens' is 4",
    ),
    (CHAT, HI | {"max_completion_tokens": 0}, 400, "max_completion_tokens", "greater than or equal to 1"),
    (
        CHAT,
        HI | {"function_call": "auto"},
        400,
        "function_call",
        "unknown parameter: 'function_call'; it is deprecated: send 'tool_choice'",
    ),
    (CHAT, HI | {"functions": []}, 400, "functions", "send 'tools'"),
    (CHAT, HI | {"message": 1}, 400, "message", "unknown parameter: 'message'"),
    (CHAT, HI | {"a b": 1}, 400, "a b", "unknown parameter: 'a b'"),
    (
        CHAT,
        HI | {"messages": [{"role": "user", "content": "x", "str": 1}]},
        400,
        "messages.0.str",
        "unknown parameter",
    ),
    (CHAT, HI | {"repetition_penalty": 1e-300}, 400, "repetition_penalty", "equal to 0.01"),
    (CHAT, HI | {"logit_bias": {"9" * 5000: 1}}, 400, "logit_bias", "is not a token"),
    (CHAT, schema({"$ref": "#"}), 400, "response_format", "no text matches it"),
    (
        CHAT,
        schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        400,
        "response_format",
        "use anyOf instead",
    ),
    (
        CHAT,
        HI | {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        400,
        "messages.0.content.0.type",
        "not 'input_audio': audio is not supported here",
    ),
    (CHAT, HI | {"modalities": ["audio"]}, 400, "modalities.0", "audio is not supported here"),
    (
        RESPONSES,
        {"model": "echo", "input": [{"type": "file_search_call"}]},
        400,
        "input.0.type",
        "'reasoning', not 'file_search_call'",
    ),
    (
        RESPONSES,
        {"model": "echo", "input": "x", "max_tokens": 4},
        400,
        "max_tokens",
        "this endpoint calls it 'max_output_tokens'",
    ),
    (COMPLETIONS, {"model": "echo", "prompt": ""}, 400, "prompt", "empty"),
    (COMPLETIONS, {"model": "echo", "prompt": [1, 999]}, 400, "prompt", "token 999"),
    (COMPLETIONS, {"model": "echo", "prompt": [1, -1]}, 400, "prompt.0", "string"),
    (COMPLETIONS, {"model": "echo", "prompt": "x", "suffix": "y"}, 400, "suffix", "cannot fill in text"),
    (COMPLETIONS, {"model": "echo", "prompt": ["x", "z"], "suffix": "y"}, 400, "suffix", "one text"),
    (COMPLETIONS, {"model": "echo", "prompt": "x", "max_tokens": 0}, 400, "max_tokens", "'echo': true"),
    (COMPLETIONS, {"model": "echo", "prompt": "x", "stop_token_ids": [999]}, 400, "stop_token_ids", "999"),
    (COMPLETIONS, {"model": "echo", "prompt": "x", "min_tokens": 17}, 400, "min_tokens", "may have 16"),
    (CHAT, HI | {"guided_regex": "("}, 400, "response_format", "the regular expression cannot be used"),
    (CHAT, HI | {"guided_grammar": 'root ::= ("a"'}, 400, "response_format", "Expected ')'"),
    (CHAT, HI | {"structured_outputs": {}}, 400, "structured_outputs", "needs one of json, regex"),
    (
        CHAT,
        HI | {"guided_regex": "a", "structured_outputs": {"choice": ["b"]}},
        400,
        "structured_outputs",
        "guided_regex and structured_outputs.choice give different forms",
    ),
    (
        CHAT,
        HI | {"guided_regex": "a", "response_format": {"type": "json_object"}},
        400,
        "response_format",
        "send one of them",
    ),
    (
        CHAT,
        HI | {"continue_final_message": True, "add_generation_prompt": True},
        400,
        "continue_final_message",
        "cannot both",
    ),
    (COMPLETIONS, {"model": "echo", "prompt": "x", "best_of": 3}, 400, "best_of", "width of a beam search"),
    (EMBEDDINGS, {"model": "echo", "input": []}, 400, "input", "1 to 2048"),
    (EMBEDDINGS, {"model": "echo", "input": "x", "dimensions": 9}, 400, "dimensions", "8 dimensions"),
    (
        RESPONSES,
        {"model": "echo", "input": [{"role": "user", "content": [{"type": "input_file"}]}]},
        400,
        "input.0.content.0.type",
        "'input_text'",
    ),
    (
        RESPONSES,
        {"model": "echo", "input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        400,
        "input.0.content.0.image_url",
        "Field required",
    ),
    (
        RESPONSES,
        {"model": "echo", "input": [{"type": "function_call", "call_id": "a", "name": "f"}]},
        400,
        "input.0.arguments",
        "required",
    ),
    (
        RESPONSES,
        {"model": "echo", "input": "x", "previous_response_id": "resp_0"},
        404,
        "previous_response_id",
        "is not stored",
    ),
    (RESPONSES, {"model": "echo", "input": "x", "background": True}, 400, "background", "False"),
]


@pytest.fixture(scope="module")
def small() -> Any:
    running = Running(queue=8, body=100_000)
    yield running
    running.close()


@pytest.mark.parametrize(("path", "body", "status", "param", "message"), BAD)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(
    small: Running, path: str, body: Any, status: int, param: str | None, message: str, stream: bool
) -> None:
    if isinstance(body, dict) and path != EMBEDDINGS:
        body = body | {"stream": stream}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = small.http.post(path, content=content, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert message in error["message"] and error.keys() == {"message", "type", "param", "code"}
    assert small.http.post(CHAT, json=HI).json()["choices"][0]["message"]["content"] == "hi"


def test_clients_see_what_is_wrong(small: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt has") as caught:
        small.client().completions.create(model="echo", prompt="x" * 3000)
    assert caught.value.code == "context_length_exceeded"


def test_old_and_new_names_of_a_limit(small: Running) -> None:
    for limit in (
        {"max_tokens": 1},
        {"max_completion_tokens": 1},
        {"max_tokens": 1, "max_completion_tokens": 1},
    ):
        (choice,) = small.http.post(CHAT, json=HI | limit).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("h", "length")


def test_errors_show_no_inside(small: Running) -> None:
    for value in ({"$ref": "#"}, {"oneOf": [{}, {}]}, {"type": "object", "properties": {"a": {"not": {}}}}):
        message = small.http.post(CHAT, json=schema(value)).json()["error"]["message"]
        assert "option" not in message and "<state>" not in message and len(message) < 200, message


def test_paths_methods_and_media(small: Running) -> None:
    assert small.http.get("/v2").status_code == 404
    assert small.http.get(CHAT).status_code == 405
    for media in ("text/plain", "application/x-www-form-urlencoded"):
        answer = small.http.post(CHAT, content=json.dumps(HI), headers={"Content-Type": media})
        assert answer.status_code == 415 and "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize("size", [100_001, 700_000, 5_000_000])
def test_large_bodies(small: Running, size: int) -> None:
    answer = small.http.post(CHAT, content=b" " * size, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413 and "100000 bytes" in answer.json()["error"]["message"]

    def chunks() -> Any:
        for _ in range(size // 1000 + 1):
            yield b" " * 1000

    answer = small.http.post(CHAT, content=chunks(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


def test_keys(start: Callable[..., Running]) -> None:
    server = start(keys=("one", "two"))
    for key in ("one", "two"):
        assert server.client(key).models.list().data
    for key in ("three", "onee", "on", "One"):
        with pytest.raises(openai.AuthenticationError, match="not valid"):
            server.client(key).models.list()
        with pytest.raises(openai.AuthenticationError):
            server.client(key).chat.completions.create(**HI)  # type: ignore[call-overload]
    assert server.http.get("/v1/models").headers["www-authenticate"] == "Bearer"
    assert server.http.get("/metrics").status_code == 401
    assert server.http.get("/health").status_code == server.http.get("/").status_code == 200
    made = server.client("one").responses.create(model="echo", input="mine")
    with pytest.raises(openai.NotFoundError):
        server.client("two").responses.retrieve(made.id)


def test_limits_of_tokens(start: Callable[..., Running]) -> None:
    client = start(prompt_tokens=50, max_tokens=7).client()
    assert client.completions.create(model="echo", prompt="x").choices[0].text.__len__() == 7
    with pytest.raises(openai.BadRequestError, match="server's limit of 7"):
        client.completions.create(model="echo", prompt="x", max_tokens=8)
    with pytest.raises(openai.BadRequestError, match="server's limit is 50"):
        client.completions.create(model="echo", prompt="x" * 51)


def test_no_template_and_no_tools(start: Callable[..., Running]) -> None:
    bare = start(template=None).client()
    assert bare.completions.create(model="echo", prompt="x").choices[0].text
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        bare.chat.completions.create(**HI)  # type: ignore[call-overload]
    plain = start(template="{% for m in messages %}{{ m.content }}{% endfor %}").client()
    with pytest.raises(openai.BadRequestError, match="does not support tools"):
        plain.chat.completions.create(**HI, tools=[TOOL])  # type: ignore[call-overload]


def test_cors(start: Callable[..., Running]) -> None:
    server = start(origins=["https://a.example"])
    headers = {
        "Origin": "https://a.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    assert (
        server.http.options(CHAT, headers=headers).headers["access-control-allow-origin"]
        == "https://a.example"
    )
    assert server.http.options(CHAT, headers=headers | {"Origin": "https://b.example"}).status_code == 400


def test_a_failing_model(start: Callable[..., Running]) -> None:
    class Failing(EchoRunner):
        def decode(self, tokens: Any, lengths: Any, pages: Any, slots: Any) -> Any:
            if "!" in self._tokenizer.decode(tokens):
                raise OSError("the disk is gone")
            return super().decode(tokens, lengths, pages, slots)

    server = start(runner=Failing())
    client = server.client()
    for path in (client.chat.completions.create,):
        with pytest.raises(openai.InternalServerError, match="the disk is gone"):
            path(model="echo", messages=[{"role": "user", "content": "ab!cd"}])
        with pytest.raises(openai.APIError, match="the disk is gone"):
            list(path(model="echo", messages=[{"role": "user", "content": "ab!cd"}], stream=True))
    with pytest.raises(openai.APIError):
        client.responses.create(model="echo", input="ab!cd")
    *_, last = client.responses.create(model="echo", input="ab!cd", stream=True)
    assert last.type == "response.failed" and last.response.error and "disk" in last.response.error.message
    assert client.chat.completions.create(**HI).choices[0].message.content == "hi"  # type: ignore[call-overload]


def test_a_model_without_embeddings(start: Callable[..., Running]) -> None:
    class Bare(EchoRunner):
        def embed(self, tokens: Any) -> Any:
            raise CompileError("this library has no function for embeddings")

    client = start(runner=Bare()).client()
    with pytest.raises(openai.BadRequestError, match="no function for embeddings"):
        client.embeddings.create(model="echo", input="x")
    assert client.chat.completions.create(**HI).choices[0].message.content == "hi"  # type: ignore[call-overload]
