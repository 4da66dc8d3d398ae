"""Tokens to bytes and text, and chats to text, compared with the libraries that models are trained with."""

from __future__ import annotations

import json
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.small_tokenizer import TEXT, byte_level, tokenizer
from tilewright.errors import ArtifactError, RequestError
from tilewright.llm.tokenizer import Detokenizer, Tokenizer


def sentence_piece() -> Any:
    """Return a `tokenizers.Tokenizer` of Llama 2's kind, with ▁ for spaces, and bytes for characters that are
    not in the vocabulary.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, trainers

    backend = Backend(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend.train_from_iterator(
        [TEXT[2]], trainers.BpeTrainer(vocab_size=320, special_tokens=special[:3], show_progress=False)
    )
    state = json.loads(backend.to_str())
    vocabulary = state["model"]["vocab"]
    for piece in special[3:]:
        vocabulary.setdefault(piece, len(vocabulary))
    return Backend.from_str(json.dumps(state))


@pytest.mark.parametrize("text", TEXT)
def test_texts_come_back(text: str) -> None:
    t = tokenizer()
    tokens = t.encode(text)
    assert t.decode(tokens) == text == t.backend.decode(tokens)
    assert b"".join(map(t.bytes_of, tokens)) == text.encode()
    s = Tokenizer(sentence_piece())
    tokens = s.encode(text)
    assert s.decode(tokens) == " " + text and s.backend.decode(tokens) == text


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, tokenizer().vocabulary - 1), max_size=30))
def test_pieces_add_up_and_no_character_is_cut(tokens: list[int]) -> None:
    t = tokenizer()
    detokenizer, pieces = Detokenizer(t), []
    for token in tokens:
        pieces.append(detokenizer.add([token]))
    pieces.append(detokenizer.finish())
    expected = b"".join(t.bytes_of(token) for token in tokens if token > 1).decode("utf-8", "replace")
    assert "".join(pieces) == expected


def test_a_character_waits_for_its_rest() -> None:
    t = tokenizer()
    first, *rest = t.encode("東")
    detokenizer = Detokenizer(t)
    assert (
        rest
        and detokenizer.add([first]) == ""
        and detokenizer.add(rest) == "東"
        and detokenizer.finish() == ""
    )
    assert detokenizer.add([first]) == "" and detokenizer.finish() == "\ufffd"


def test_special_tokens() -> None:
    t = tokenizer()
    assert t.eos == (1,) and t.special_tokens == {0, 1} and t.vocabulary == t.backend.get_vocab_size()
    assert t.encode("<s>one")[0] == 0
    assert t.decode([0, *t.encode("one"), 1]) == "one" and t.decode([0, 1], special=True) == "<s></s>"
    assert t.bytes_of(10**6) == t.bytes_of(-1) == b""


def _normalized(*, rstrip: bool = False) -> Any:
    """Return a tokenizer like Qwen's; its end-of-text token may include the blanks after it, as Phi's
    does.
    """
    from tokenizers import AddedToken, normalizers

    backend = byte_level()
    backend.normalizer = normalizers.NFC()
    backend.add_special_tokens([AddedToken("<|end|>", rstrip=rstrip)])
    return backend


BOUNDED = {
    "byte level": byte_level,
    "sentence piece": sentence_piece,
    "normalized": _normalized,
    "swallows blanks": lambda: _normalized(rstrip=True),
}


@pytest.mark.parametrize("make", BOUNDED.values(), ids=BOUNDED)
def test_least_tokens(make: Any) -> None:
    """The lower bound is never above the number of tokens, and it is found without tokenizing the text."""
    t = Tokenizer(make())

    @settings(max_examples=60, deadline=None)
    @given(
        st.text(max_size=200),
        st.sampled_from(["", "<|end|>" + " " * 5000, "\u1fbf" * 99, "a\u0345" * 99, "again and " * 50]),
    )
    def check(text: str, more: str) -> None:
        assert t.least_tokens(text + more) <= len(t.encode(text + more))

    check()
    for letters in ("\u1fc1\u0300", "\u03b1\u0313\u0300\u0345", "\u1112\u1161\u11ab", "\u212b\u0301"):
        assert t.least_tokens(letters * 300) <= len(t.encode(letters * 300))
    assert t.least_tokens("x" * 10**6) > 10**4


def test_threads_that_cut_share_one_copy_of_the_tokenizer() -> None:
    words, meeting, copies = Tokenizer(byte_level(400)), threading.Barrier(2), []

    class Counted:
        """The tokenizer, of which two copies would be made at a time."""

        def to_str(self) -> Any:
            copies.append(True)
            with suppress(threading.BrokenBarrierError):
                meeting.wait(0.2)
            return backend.to_str()

        from_str = staticmethod(type(words.backend).from_str)

    backend: Any = words.backend
    words.backend = Counted()
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda text: words.encode(text, most=2), ["a b c", "a b c"]))
    assert len(copies) == 1


def test_no_bound_where_letters_may_vanish() -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, normalizers, pre_tokenizers

    words = Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    stripped = byte_level()
    stripped.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    removed = byte_level()
    removed.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), removed.pre_tokenizer]
    )
    for backend in (words, stripped, removed, Backend(models.BPE({"a": 0}, []))):
        assert Tokenizer(backend).least_tokens("b" * 10**6) == 0


def test_word_pieces() -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    vocabulary = {"[UNK]": 0, "token": 1, "##izer": 2, "s": 3}
    backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    t = Tokenizer(backend)
    assert t.decode([1, 2, 3]) == " tokenizer s"


def test_words_and_decoders_that_are_not_known() -> None:
    from tokenizers import Regex, decoders, models
    from tokenizers import Tokenizer as Backend

    backend = Backend(models.WordLevel({"one": 0, "two": 1}, unk_token="one"))
    assert Tokenizer(backend).decode([0, 1]) == " one two" == " " + backend.decode([0, 1])
    for decoder, name in ((decoders.CTC(), "CTC"), (decoders.Replace(Regex("_+"), " "), "Replace")):
        backend.decoder = decoder
        with pytest.raises(ArtifactError, match=f"has the step {name}"):
            Tokenizer(backend).bytes_of(0)


TEMPLATE = """{%- if messages[0].role == 'system' %}{{ bos_token + messages[0].content }}{% endif %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}{% continue %}{% endif %}
    {%- if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('unknown role ' + m.role) }}{% endif %}
    {%- if m.role == 'assistant' %}{% generation %}[{{ m.content | trim }}]{{ eos_token }}{% endgeneration %}
    {%- elif m.role == 'user' %}({{ m.content }}){% endif %}
{%- endfor %}
{%- if tools %} tools: {{ tools | tojson }}{% endif %}
{%- if documents %} documents: {{ documents | map(attribute='text') | join(', ') }}{% endif %}
{%- if add_generation_prompt %} ->{% endif %}"""  # noqa: E501

MESSAGES = [
    {"role": "system", "content": "be <good>"},
    {"role": "user", "content": "Grüße & \n"},
    {"role": "assistant", "content": " yes "},
    {"role": "tool", "content": "?"},
]


def chatting(template: str = TEMPLATE, **more: str) -> Tokenizer:
    special = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
    return Tokenizer(byte_level(), chat_templates={"default": template, **more}, special=special)


def test_chat_templates_give_what_transformers_gives() -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>")
    tools = [{"type": "function", "function": {"name": "größe", "description": "<a & b>", "parameters": {}}}]
    documents = [{"title": "a", "text": "one"}, {"title": "b", "text": "two"}]
    for more in ({}, {"tools": tools}, {"documents": documents}, {"add_generation_prompt": False}):
        given = {"add_generation_prompt": True, **more}
        expected = theirs.apply_chat_template(MESSAGES, chat_template=TEMPLATE, tokenize=False, **given)
        assert chatting().render(MESSAGES, **more) == expected
    assert "größe" in chatting().render(MESSAGES, tools=tools)


def test_templates_are_chosen_and_take_variables() -> None:
    t = chatting("{{ x }} {{ strftime_now('%Y') | length }}", tool_use="tools", other="other {{ x }}")
    assert t.render([], x=1) == "1 4" and t.render([], tools=[{}]) == "tools" and t.render([]) == " 4"
    assert t.render([], template="other", x=2) == "other 2" and t.render([], template="{{ x }}!", x=3) == "3!"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (TEMPLATE, "rejects the messages: unknown role robot"),
        ("{% if %}", "is not valid Jinja, in line 1"),
        ("{{ messages[0].content.a.b }}", "rejects the messages|fails on the messages"),
        ("{{ messages[0].content + 1 }}", "fails on the messages"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "rejects the messages.*unsafe"),
        ("{{ messages.append(1) }}", "rejects the messages.*unsafe"),
    ],
)
def test_templates_that_fail_say_why(template: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        chatting(template).render([{"role": "robot", "content": "hello"}])


def test_a_model_without_a_template() -> None:
    with pytest.raises(RequestError, match="no chat template"):
        tokenizer().render(MESSAGES)


def test_from_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"has no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    byte_level(300, ("<s>", "</s>", "<|end|>")).save(str(tmp_path / "tokenizer.json"))
    about = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None, "add_bos_token": True}
    about["chat_template"] = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    (tmp_path / "config.json").write_text('{"eos_token_id": 1}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 1]}')
    t = Tokenizer.from_folder(tmp_path)
    assert t.eos == (2, 1) and t.special == {"bos_token": "<s>", "eos_token": "</s>"}
    assert t.render([]) == "a" and t.render([], tools=[{}]) == "b"
    (tmp_path / "chat_template.jinja").write_text("c{{ bos_token }}")
    assert Tokenizer.from_folder(tmp_path).render([]) == "c<s>"
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"config\.json is not JSON"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactError, match="not a readable tokenizer"):
        Tokenizer.from_folder(tmp_path)


HOSTILE = {
    "a range": "{% for i in range(10**9) %}{% endfor %}",
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a macro that calls itself": "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "a macro that calls itself "
    "twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a recursive loop": "{% for i in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "a product": "{{ 'x' * 10**10 }}",
    "a product from the left": "{{ 10**10 * 'x' }}",
    "a list": "{{ ([1] * 10**10) | length }}",
    "a power": "{{ 10 ** (10 ** 10) }}",
    "doubling": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubling by ~": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",  # noqa: E501
    "much text": "{% for i in range(9999) %}{{ 'x' * 99999 }}{% endfor %}",
    "a format": "{{ '%1000000000d' % 1 }}",
    "another format": "{{ '{:1000000000}'.format(1) }}",
    "a filter's format": "{{ '%1000000000d' | format(1) }}",
    "padding": "{{ 'x'.ljust(10**10) }}",
    "centred": "{{ 'x' | center(10**10) }}",
    "indented": "{{ 'x' | indent(10**10, true) }}",
    "replaced": "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    "replaced by a filter": "{{ ('x' * 99999) | replace('x', 'y' * 99999) }}",
    "joined": "{{ range(99999) | join('y' * 99999) }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_a_template_is_bounded(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.llm.chat_template.SECONDS", 0.2)
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RequestError, match="the chat template"):
        tokenizer().render([], template=source)
    assert time.perf_counter() - begin < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 << 10


@pytest.mark.parametrize("name", ["a macro that calls itself", "a recursive loop"])
def test_a_template_never_reaches_the_recursion_limit_of_python(name: str) -> None:
    with pytest.raises(RequestError, match="more than 64 nested calls"):
        tokenizer().render([], template=HOSTILE[name])


def test_what_bounded_templates_may() -> None:
    source = """{% macro m(x) %}<{{ x }}>{% endmacro %}{% set n = namespace(s='') %}{% for i in range(3) if i != 1 %}
{%- set n.s = n.s ~ i ~ ';' + '%03d' % i %}{{ m(loop.index) }}{% else %}none{% endfor %}
{{- n.s }} {{ [1] + [2] }} {{ 'ab' * 2 }} {{ '{:>4}'.format('x') }} {{ 7 % 4 }} {{ 2 ** 3 }} {{ ['a', 'b'] | join(', ') }} {{ 'a.b' | replace('.', ':') }}
{{- 'x' | center(3) }}{{ 'p\nq' | indent(2) }} {{ '%s' | format(5) }} {{ 'a-b'.replace('-', '+') }} {{ messages | tojson }}"""  # noqa: E501
    text = tokenizer().render([{"a": "é"}], template=source)
    assert text == "<1><2>0;0002;002 [1, 2] abab    x 3 8 a, b a:b x p\n  q 5 a+b " + '[{"a": "é"}]'
