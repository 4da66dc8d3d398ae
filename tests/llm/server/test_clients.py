"""Packages that people point at OpenAI's and Anthropic's servers work without changes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Running
from .test_api import CALL

pytestmark = pytest.mark.slow  # the packages are large, and import for seconds


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the packages from reporting to their makers."""
    for name in ("OPENAI_AGENTS_DISABLE_TRACING", "DO_NOT_TRACK", "LITELLM_LOCAL_MODEL_COST_MAP"):
        monkeypatch.setenv(name, "True")
    monkeypatch.setenv("OPENAI_API_KEY", "none")


def test_langchain(server: Running) -> None:
    module = pytest.importorskip("langchain_openai")
    tools = pytest.importorskip("langchain_core.tools")
    model = module.ChatOpenAI(base_url=f"{server.url}/v1", api_key="none", model="echo")
    assert model.invoke("Grüße").content == "Grüße"
    assert "".join(chunk.content for chunk in model.stream("in parts")) == "in parts"

    @tools.tool
    def add(a: int, b: str) -> str:
        """Add."""
        return b * a

    (call,) = model.bind_tools([add]).invoke(CALL).tool_calls
    assert (call["name"], call["args"]) == ("add", {"a": 5, "b": "x"})
    schema = {"title": "point", "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    assert model.with_structured_output(schema, method="json_schema").invoke('{"x": 3}') == {"x": 3}
    # without counting tokens, for which the package would load OpenAI's vocabulary from the network
    vectors = module.OpenAIEmbeddings(
        base_url=f"{server.url}/v1", api_key="none", model="echo", check_embedding_ctx_length=False
    )
    assert len(vectors.embed_query("text")) == 8


@pytest.mark.parametrize("form", ["openai/echo", "text-completion-openai/echo"])
def test_litellm(server: Running, form: str) -> None:
    litellm = pytest.importorskip("litellm")
    there: Any = {"api_base": f"{server.url}/v1", "api_key": "none", "model": form, "max_tokens": 40}
    asked: Any = [{"role": "user", "content": "Grüße"}]
    answer = litellm.completion(messages=asked, **there)
    chunks = list(litellm.completion(messages=asked, stream=True, **there))
    text = answer.choices[0].message.content
    assert text and "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    if form.startswith("openai"):
        assert text == "Grüße"


def test_litellm_by_anthropics_api(server: Running) -> None:
    litellm = pytest.importorskip("litellm")
    answer = litellm.completion(
        model="anthropic/echo",
        api_base=server.url,
        api_key="none",
        messages=[{"role": "user", "content": "Grüße"}],
        max_tokens=40,
    )
    assert answer.choices[0].message.content == "Grüße"


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_openai_agents(server: Running, api: str) -> None:
    agents = pytest.importorskip("agents")
    openai = pytest.importorskip("openai")
    agents.set_tracing_disabled(True)
    called = []

    @agents.function_tool
    def add(a: int, b: str) -> str:
        """Add."""
        called.append((a, b))
        return "the sum"

    async def run(text: str) -> Any:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
        kind = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel
        agent = agents.Agent(
            name="echo",
            instructions="Answer.",
            tools=[add],
            model=kind(model="echo", openai_client=client),
            # the echo model repeats the user's call for ever
            tool_use_behavior="stop_on_first_tool",
        )
        return (await agents.Runner.run(agent, text)).final_output

    assert asyncio.run(run("Grüße")) == "Grüße"
    assert asyncio.run(run(CALL)) == "the sum"
    assert called == [(5, "x")]


@pytest.fixture
def task() -> Iterator[Any]:
    instance = pytest.importorskip("lm_eval.api.instance")

    def make(kind: str, *pairs: Any) -> list[Any]:
        return [instance.Instance(kind, {}, pair, index) for index, pair in enumerate(pairs)]

    yield make


def test_lm_evaluation_harness(server: Running, task: Any, tmp_path: Any) -> None:
    """Likelihoods of texts, which need the log-probabilities of prompts, and generated texts."""
    registry = pytest.importorskip("lm_eval.models.openai_completions")
    from .echo import tokenizer

    tokenizer().backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "pad_token": "<eos>"})
    )
    model = registry.LocalCompletionsAPI(
        model="echo",
        base_url=f"{server.url}/v1/completions",
        tokenizer=str(tmp_path),
        tokenizer_backend="huggingface",
        max_length=512,
    )
    reply = (
        server.client().completions.create(model="echo", prompt="The sky is", max_tokens=3).choices[0].text
    )
    found = model.loglikelihood(task("loglikelihood", ("The sky is", reply), ("The sky is", "~~~")))
    (likely, greedy), (unlikely, other) = found
    assert greedy and not other and likely > -0.1 and unlikely < -100
    (text,) = model.generate_until(
        task("generate_until", ("The sky is", {"until": ["~"], "max_gen_toks": 3}))
    )
    assert text == reply


MCP_SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("sums")

@server.tool()
def add(a: int, b: str) -> str:
    "Add."
    return b * a

server.run("stdio")
"""


def test_mcp(server: Running, tmp_path: Any) -> None:
    """A client offers the tools of an MCP server to the model, and runs the one that the model calls."""
    mcp = pytest.importorskip("mcp")
    (tmp_path / "sums.py").write_text(MCP_SERVER)

    async def run() -> str:
        parameters = mcp.StdioServerParameters(command=sys.executable, args=[str(tmp_path / "sums.py")])
        parameters.env = {"PYTHONPATH": os.pathsep.join(sys.path)}
        async with mcp.stdio_client(parameters) as streams, mcp.ClientSession(*streams) as session:
            await session.initialize()
            listed = (await session.list_tools()).tools
            tools: Any = [
                {
                    "type": "function",
                    "function": {"name": t.name, "description": t.description, "parameters": t.input_schema},
                }
                for t in listed
            ]
            asked: Any = [{"role": "user", "content": CALL}]
            client = server.client()
            answer = client.chat.completions.create(model="echo", messages=asked, tools=tools).choices[0]
            (call,) = answer.message.tool_calls or ()
            assert answer.finish_reason == "tool_calls" and call.type == "function"
            done = await session.call_tool(call.function.name, json.loads(call.function.arguments))
            text = str(done.content[0].text)
            asked += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": text}]
            asked += [{"role": "user", "content": "the sum"}]
            said = (
                client.chat.completions.create(model="echo", messages=asked, tools=tools).choices[0].message
            )
            assert said.content == "the sum"
            return text

    assert asyncio.run(run()) == "xxxxx"
