"""Documents are ranked by classifiers of pairs, by decoders that judge, and by embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import processors

from tilewright.llm.engine.engine import EngineOptions
from tilewright.llm.library import open_library, save_library
from tilewright.llm.server import service
from tilewright.llm.server.ranking import _AT_ONCE, INSTRUCTION, JUDGE, _each
from tilewright.llm.text_use import TextUse

from .conftest import Running
from .echo import TEMPLATE, EchoRunner, tokenizer

Start = Callable[..., Running]


def pairs(template: str | None = None) -> Any:
    """A tokenizer of bytes that numbers the segments of pairs."""
    words = tokenizer(template)
    words.backend.post_processor = processors.TemplateProcessing(
        single="$A", pair="$A <eos> $B:1", special_tokens=[("<eos>", 258)]
    )
    return words


def post(server: Running, path: str, **body: Any) -> Any:
    return server.http.post(path, json={"model": "echo", **body})


def sigmoid(x: float) -> float:
    return 1 / (1 + float(np.exp(-x)))


DOCUMENTS = ["xyz", "abc", "abx"]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_the_most_relevant_first(start: Start, path: str) -> None:
    server = start(texts=TextUse("score"), words=pairs())
    found = post(server, path, query="abc", documents=DOCUMENTS, return_documents=True).json()
    assert [r["index"] for r in found["results"]] == [1, 2, 0]
    wanted = [sigmoid(1), sigmoid(2 / 3), sigmoid(0)]
    np.testing.assert_allclose([r["relevance_score"] for r in found["results"]], wanted, rtol=1e-6)
    assert found["results"][0]["document"] == {"text": "abc"}
    assert found["usage"] == {"prompt_tokens": 21, "total_tokens": 21}
    top = post(server, path, query="abc", documents=[{"text": d} for d in DOCUMENTS], top_n=1).json()
    assert [(r["index"], r.keys()) for r in top["results"]] == [(1, {"index", "relevance_score"})]


def test_scores_of_a_model_with_no_activation(start: Start) -> None:
    server = start(texts=TextUse("score", plain=True), words=pairs())
    found = post(server, "/score", text_1="abc", text_2=DOCUMENTS).json()
    np.testing.assert_allclose([d["score"] for d in found["data"]], [0, 1, 2 / 3], rtol=1e-6)
    found = post(server, "/v1/score", text_1=["abc", "xyz"], text_2=["abc", "abc"]).json()
    assert [d["score"] for d in found["data"]] == [1, 0]


def test_documents_are_cut(start: Start) -> None:
    server = start(texts=TextUse("score", plain=True), words=pairs(), runner=EchoRunner(context=40))
    long = {"query": "abc", "documents": ["a" * 20 + "x" * 80]}
    refused = post(server, "/rerank", **long).json()["error"]
    assert refused["code"] == "context_length_exceeded" and "104 tokens" in refused["message"]
    (found,) = post(server, "/rerank", **long, truncate_prompt_tokens=-1).json()["results"]
    assert found["relevance_score"] == pytest.approx(20 / 36)
    (found,) = post(server, "/rerank", **long, truncate_prompt_tokens=24).json()["results"]
    assert found["relevance_score"] == 1
    refused = post(server, "/rerank", query="a" * 50, documents=["a"], truncate_prompt_tokens=24).json()
    assert "cannot be cut to 24 tokens" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (None, JUDGE.format(instruction=INSTRUCTION, query="q", document="d")),
        (TEMPLATE + "{# roles 'query' and 'document' #}", None),
    ],
)
def test_a_decoder_judges_a_prompt(start: Start, template: str | None, wanted: str | None) -> None:
    server = start(texts=TextUse("score", plain=True, prompted=True), words=pairs(template))
    found = post(server, "/score", text_1="q", text_2="d").json()["data"][0]["score"]
    roles = (
        f"<|im_start|>system\n{INSTRUCTION}<|im_end|>\n<|im_start|>query\nq<|im_end|>\n<|im_start|>document\n"
    )
    asked = wanted or f"{roles}d<|im_end|>\n<|im_start|>assistant\n"
    assert found == len(tokenizer().encode(asked, special=False))


class Noting(EchoRunner):
    """Keeps the last text that it scored."""

    text: Any = None

    def score(self, tokens: Any, types: Any) -> Any:
        self.text = tokens
        return super().score(tokens, types)


@pytest.mark.parametrize("template", [None, TEMPLATE + "{# roles 'query' and 'document' #}"])
def test_the_document_of_a_prompt_is_cut(start: Start, template: str | None) -> None:
    runner = Noting()
    texts = TextUse("score", plain=True, prompted=True)
    server = start(texts=texts, words=pairs(template), runner=runner)
    asked = {"query": "a query", "documents": ["ab" + "\N{LATIN SMALL LETTER E WITH ACUTE}" * 400]}
    assert post(server, "/rerank", **asked).json()["usage"]["total_tokens"] > 900
    for most in (600, 601):
        used = post(server, "/rerank", **asked, truncate_prompt_tokens=most).json()["usage"]["total_tokens"]
        assert most - 1 <= used <= most  # each letter has two tokens
        prompt = tokenizer().decode(runner.text, special=True)
        before, _, after = prompt.partition("ab\N{LATIN SMALL LETTER E WITH ACUTE}")
        assert "a query" in before and "assistant" in after
    answer = post(server, "/rerank", **asked, truncate_prompt_tokens=20)
    assert answer.status_code == 400 and "more without the document" in answer.text


def test_bounds_of_cutting(start: Start) -> None:
    """A text is cut to no more tokens than fit, and to no fewer than the tokenizer adds."""
    words = pairs()
    words.backend.post_processor = processors.TemplateProcessing(
        single="$A <eos> <eos>", pair="$A <eos> $B:1", special_tokens=[("<eos>", 258)]
    )
    server = start(texts=TextUse("score", plain=True), words=words, runner=EchoRunner(context=40))
    embedded, ranked = {"input": "a" * 80}, {"query": "abc", "documents": ["x" * 80]}
    for path, body, added in (("/v1/embeddings", embedded, 2), ("/rerank", ranked, 1)):
        used = post(server, path, **body, truncate_prompt_tokens=10**20).json()["usage"]
        assert used["total_tokens"] == 40
        answer = post(server, path, **body, truncate_prompt_tokens=added - 1)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "truncate_prompt_tokens")
        assert f"each has {added} besides its own" in error["message"]


def test_long_pairs_are_encoded_one_at_a_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(words=pairs())
    entered = []

    class Noted(asyncio.Semaphore):
        async def acquire(self) -> Any:
            entered.append(True)
            return await super().acquire()

    monkeypatch.setattr(server.service, "_long", Noted())
    monkeypatch.setattr(service, "_LONG", 5)
    asyncio.run(server.service.encode_pair("ab", "cde", "documents"))
    assert not entered
    asyncio.run(server.service.encode_pair("abc", "def", "documents"))
    assert entered


def test_more_documents_than_the_engine_queues(start: Start) -> None:
    server = start(texts=TextUse("score"), words=pairs(), options=EngineOptions(queue=_AT_ONCE))
    answer = post(server, "/rerank", query="a", documents=["b"] * 300)
    assert answer.status_code == 200 and len(answer.json()["results"]) == 300


def test_the_first_error_ends_the_other_work() -> None:
    running, ended = 0, []

    async def work(item: int) -> None:
        nonlocal running
        running += 1
        assert running <= _AT_ONCE
        try:
            if item == 3:
                raise KeyError(item)
            await asyncio.Event().wait()
        finally:
            running -= 1
            ended.append(item)

    async def all() -> None:
        with pytest.raises(KeyError):
            await _each(work, range(3 * _AT_ONCE))
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(all())
    assert {*range(_AT_ONCE)} <= {*ended} and running == 0


def test_embeddings_are_compared(start: Start) -> None:
    texts = TextUse("embed", {"query": "Q: ", "document": "D: "})
    server = start(texts=texts)

    def vector(text: str, prompt: str | None = None) -> Any:
        body = {"input": text, **({"prompt_name": prompt} if prompt else {})}
        return np.array(post(server, "/v1/embeddings", **body).json()["data"][0]["embedding"])

    np.testing.assert_array_equal(vector("x", "query"), vector("Q: x"))
    found = post(server, "/rerank", query="abc", documents=DOCUMENTS).json()["results"]
    query = vector("abc", "query")
    wanted = sorted((float(query @ vector(d, "document")) for d in DOCUMENTS), reverse=True)
    np.testing.assert_allclose([r["relevance_score"] for r in found], wanted, rtol=1e-5)
    refused = post(server, "/v1/embeddings", input="x", prompt_name="passage").json()["error"]
    assert refused["param"] == "prompt_name" and "it has query, document" in refused["message"]


def test_refused(start: Start) -> None:
    server = start(texts=TextUse("score"), words=pairs())
    for body, text in (
        ({"query": "a", "documents": ["b"], "instruction": "x"}, "takes no instruction"),
        ({"query": "a", "documents": []}, "'documents': List should have at least 1 item"),
        ({"query": "a", "documents": ["b"], "top_k": 3}, "unknown parameter: 'top_k'"),
    ):
        answer = post(server, "/rerank", **body)
        assert answer.status_code == 400 and text in answer.json()["error"]["message"]
    answer = post(server, "/score", text_1=["a", "b"], text_2=["c"])
    assert "'text_1' has 2 texts and 'text_2' 1" in answer.json()["error"]["message"]


def test_a_compiled_cross_encoder(start: Start, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    sentences = pytest.importorskip("tests.llm.test_sentences")
    from tilewright.llm.weights import open_checkpoint

    sentences.save_model("BertForSequenceClassification", tmp_path, num_labels=1)
    theirs = sentences.sentences.CrossEncoder(str(tmp_path), device="cpu")
    with sentences.compile_library(tmp_path, sentences.EXACT) as library:
        save_library(library, open_checkpoint(tmp_path), tmp_path / "model.so")
    runner, words, _ = open_library(tmp_path / "model.so")
    server = start(runner=runner, words=words, texts=runner.texts)
    found = post(server, "/rerank", query="a dog", documents=sentences.TEXTS).json()["results"]
    wanted = theirs.rank("a dog", sentences.TEXTS)
    assert [r["index"] for r in found] == [r["corpus_id"] for r in wanted]
    np.testing.assert_allclose(
        [r["relevance_score"] for r in found], [r["score"] for r in wanted], atol=1e-4, rtol=1e-4
    )
    refused = post(server, "/v1/embeddings", input="a dog")
    assert refused.status_code == 400 and "bert scores texts only" in refused.json()["error"]["message"]
