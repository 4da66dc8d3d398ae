"""Answers of a given form, reasoning, continued messages, texts that are filled in, and scored prompts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from openai import OpenAI
from tokenizers import AddedToken

from tilewright.llm.server.errors import ApiError
from tilewright.llm.server.infill import infill
from tilewright.llm.server.reasoning import ReasoningParser, Thought, opened, tag_of

from .conftest import Running
from .echo import TEMPLATE, tokenizer
from .test_api import ADD, CALL, ask

THINKING = TEMPLATE.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% endif %}{# reasons within <think> and </think> #}",
)
OPENED = TEMPLATE.replace(
    "{% if add_generation_prompt %}", "{# </think> #}{% if add_generation_prompt %}"
).replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")


def said(client: OpenAI, text: str, **fields: Any) -> Any:
    return client.chat.completions.create(model="echo", messages=ask(text), extra_body=fields).choices[0]


@pytest.mark.parametrize(
    ("fields", "fits", "other"),
    [
        ({"structured_outputs": {"regex": r"\d+-[a-c]"}}, "12-b", "12-x"),
        ({"structured_outputs": {"choice": ["yes", 'no "at" all', "ja\n"]}}, 'no "at" all', "perhaps"),
        ({"structured_outputs": {"grammar": 'start: "<" /[a-z]+/ ">"'}}, "<abc>", "abc"),
        ({"guided_grammar": 'root ::= "<" [a-z]+ ">"'}, "<abc>", "abc"),
        ({"guided_json": '{"type": "integer"}'}, "17", '"x"'),
        ({"guided_choice": ["yes", "no"]}, "no", "perhaps"),
    ],
)
def test_answers_have_the_form_that_is_asked_for(client: OpenAI, fields: Any, fits: str, other: str) -> None:
    assert said(client, fits, **fields).message.content == fits
    assert said(client, other, max_tokens=20, **fields).message.content != other
    answer = client.completions.create(model="echo", prompt="x", max_tokens=40, extra_body=fields)
    assert answer.choices[0].text != ""


def test_a_model_with_tools_answers_in_its_form_or_calls(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    schema["additionalProperties"] = False
    form: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}

    def answer(text: str) -> Any:
        return client.chat.completions.create(
            model="echo", messages=ask(text), tools=[ADD], response_format=form, max_tokens=200
        ).choices[0]

    assert answer('{"x": 3}').message.content == '{"x": 3}'
    call = answer(CALL)
    assert call.finish_reason == "tool_calls"
    assert json.loads(call.message.tool_calls[0].function.arguments) == {"a": 5, "b": "x"}
    twice = answer(f"{CALL}\n{CALL}")
    assert len(twice.message.tool_calls) == 2
    other = answer("something else").message
    assert other.tool_calls or json.loads(other.content).keys() == {"x"}


def test_outputs_end_at_tokens_and_not_before_their_least_length(client: OpenAI) -> None:
    stop = tokenizer().encode("c", special=False)
    assert said(client, "abcde", stop_token_ids=stop).message.content == "ab"
    longer = client.chat.completions.create(model="echo", messages=ask("ab"), extra_body={"min_tokens": 9})
    assert longer.usage is not None and longer.usage.completion_tokens >= 9


# Reasoning.


def read(parts: list[str], begun: bool) -> tuple[str, str]:
    parser = ReasoningParser("<think>", begun)
    events = [event for part in parts for event in parser.feed(part)] + parser.finish()
    thought = "".join(event.text for event in events if isinstance(event, Thought))
    return thought, "".join(event for event in events if isinstance(event, str))


@pytest.mark.parametrize(
    ("text", "begun", "thought", "answer"),
    [
        ("<think>\nso, so\n</think>\n\nYes.", False, "so, so", "Yes."),
        ("so </ b\n</think>Yes </think>", True, "so </ b", "Yes </think>"),
        ("  <think></think>Yes", False, "", "Yes"),
        (" plain <think>", False, "", " plain <think>"),
        ("<thin", False, "", "<thin"),
        ("cut off", True, "cut off", ""),
        ("", True, "", ""),
    ],
)
def test_reasoning_is_parted_from_the_answer_however_the_text_arrives(
    text: str, begun: bool, thought: str, answer: str
) -> None:
    for size in (1, 2, 3, 5, 100):
        parts = [text[i : i + size] for i in range(0, len(text), size)]
        assert read(parts, begun) == (thought, answer), size


def test_templates_tell_whether_there_is_reasoning() -> None:
    assert tag_of(TEMPLATE) is None
    assert tag_of(THINKING) == "<think>"
    assert tag_of(THINKING, {"<think>"}) is None
    assert tag_of("... content.split('</think>')[-1] ...") == "<think>"
    assert opened("<think>", "<think>a</think>b<think>\n") and not opened("<think>", "<think>a</think>b")


def test_reasoning_arrives_apart(start: Callable[..., Running]) -> None:
    server = start(template=THINKING)
    client, text = server.client(), "<think>\nhm, ja\n</think>\n\nYes."
    message = said(client, text).message
    assert (message.reasoning_content, message.content) == ("hm, ja", "Yes.")
    assert said(client, text, reasoning_format="none").message.content == text
    assert "reasoning_content" not in said(client, "Yes.").message.model_dump(exclude_unset=True)
    deltas = [
        chunk.choices[0].delta
        for chunk in client.chat.completions.create(model="echo", messages=ask(text), stream=True)
    ]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "hm, ja"
    assert "".join(delta.content or "" for delta in deltas) == "Yes."
    call = client.chat.completions.create(
        model="echo", messages=ask(f"<think>hm</think>{CALL}"), tools=[ADD]
    ).choices[0]
    assert call.finish_reason == "tool_calls" and call.message.content is None
    response: Any = client.responses.create(model="echo", input=text)
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text == "hm, ja" and response.output_text == "Yes."
    turns: Any = [{"role": "user", "content": "x"}, *response.output, {"role": "user", "content": "y"}]
    again = client.responses.create(model="echo", input=turns)
    assert again.output_text == "y"
    with client.responses.stream(model="echo", input=text) as stream:
        events = [event.type for event in stream]
    assert events.count("response.reasoning_text.delta") and events.count("response.reasoning_text.done") == 1


def test_a_prompt_that_opens_the_reasoning(start: Callable[..., Running]) -> None:
    client = start(template=OPENED).client()
    # the echo model takes the words after its own name for said already
    message = said(client, "...........so</think>Yes").message
    assert message.reasoning_content.endswith("so") and message.content == "Yes"
    forced = said(client, '............{"a": 1}', guided_json={"type": "object"}, max_tokens=40)
    assert forced.message.content.startswith("{"), "an answer of a given form has no reasoning"


# Continued messages.


def test_the_last_message_is_continued(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "abcdef"}, {"role": "assistant", "content": "abc"}]
    fields = {"continue_final_message": True}
    answer = client.chat.completions.create(model="echo", messages=messages, extra_body=fields)
    assert answer.choices[0].message.content == "def"


# Filling in.


def test_texts_are_filled_in_between_prefix_and_suffix() -> None:
    plain = tokenizer()
    with pytest.raises(ApiError, match="has no tokens that mark"):
        infill(plain, "a", "b")
    text = plain.encode("ab", special=False)
    for names, order in (
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "PaSbM"),
        (("[PREFIX]", "[SUFFIX]"), "SbPa"),
    ):
        marked = tokenizer()
        marked.backend.add_special_tokens([AddedToken(name) for name in names])
        place: dict[str, Any] = dict(zip("PSM", map(marked.backend.token_to_id, names), strict=False))
        place |= {"a": text[0], "b": text[1]}
        prompt, ends = infill(marked, "a", "b")
        assert prompt == [place[letter] for letter in order]
        assert set(ends) == {place[letter] for letter in order if letter in "PSM"}


# Scored prompts.


def test_a_prompt_comes_with_the_log_probabilities_of_its_tokens(client: OpenAI) -> None:
    prompts = ["hello", "abc"]
    asked: Any = {"model": "echo", "prompt": prompts, "max_tokens": 2, "logprobs": 3, "echo": True}
    whole = client.completions.create(**asked)
    for choice, prompt in zip(whole.choices, prompts, strict=True):
        found = choice.logprobs
        assert found and found.tokens and found.token_logprobs and found.top_logprobs and found.text_offset
        assert len(found.tokens) == len(prompt) + 2
        assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
        assert "".join(found.tokens) == choice.text
        assert found.text_offset == [len("".join(found.tokens[:i])) for i in range(len(found.tokens))]
        for end in range(1, len(prompt)):
            one = client.completions.create(model="echo", prompt=prompt[:end], max_tokens=1, logprobs=20)
            best = one.choices[0].logprobs
            assert best and best.top_logprobs and found.token_logprobs[end] is not None
            top = best.top_logprobs[0]
            assert top.items() >= found.top_logprobs[end].items(), "as those of a prompt that ends here"
            if (known := top.get(found.tokens[end])) is not None:
                assert math.isclose(found.token_logprobs[end], known, abs_tol=1e-4)
    chunks = list(client.completions.create(stream=True, **asked))
    for choice in whole.choices:
        parts = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert choice.logprobs
        logprobs = [v for part in parts if part.logprobs for v in part.logprobs.token_logprobs or ()]
        assert logprobs == choice.logprobs.token_logprobs


def test_a_prompt_is_scored_without_an_answer(client: OpenAI) -> None:
    for stream in (False, True):
        asked: Any = {"model": "echo", "prompt": "hello", "max_tokens": 0, "logprobs": 1, "echo": True}
        found = client.completions.create(stream=stream, **asked)
        choice = (list(found) if stream else [found])[0].choices[0]
        assert (choice.text, choice.finish_reason) == ("hello", "length")
        assert len(choice.logprobs.token_logprobs) == 5
        if not stream:
            assert found.usage.completion_tokens == 0
