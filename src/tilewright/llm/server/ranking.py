"""/rerank, in the form of Jina's and Cohere's servers, and /score, in that of vLLM's.

A classifier of pairs scores a query with each document. A decoder judges a prompt that contains both, as
Qwen3-Reranker does (Zhang et al. 2025). A model for embeddings compares its vectors by their cosines.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import Field

from ...errors import RequestError
from .completions import MAX_INPUTS, cut, prompt_of
from .errors import ApiError
from .protocol import Cut, Model, ModelRequest
from .service import Service

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""The condition that documents are to meet, if the request names none."""
JUDGE = """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {instruction}
<Query>: {query}
<Document>: {document}<|im_end|>
<|im_start|>assistant
<think>

</think>

"""
"""The prompt of Qwen3-Reranker, for decoders whose chat template has no part for a document."""
_DOCUMENTS = "document", "passage"
"""Names of the prompts of documents."""
_AT_ONCE = 16
"""Texts of a request that wait in the engine, which refuses all requests beyond its queue. A larger number
lets one request delay others more; a smaller one can leave the engine without work.
"""
S = TypeVar("S")
T = TypeVar("T")


class Document(Model):
    text: str


class RerankRequest(ModelRequest):
    query: str
    documents: list[str | Document] = Field(min_length=1, max_length=MAX_INPUTS)
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = False
    instruction: str | None = None
    truncate_prompt_tokens: Cut | None = None


class ScoreRequest(ModelRequest):
    text_1: str | list[str]
    text_2: str | list[str]
    instruction: str | None = None
    truncate_prompt_tokens: Cut | None = None


@dataclass(frozen=True)
class Scores:
    """The relevance of documents, and the number of tokens that were read."""

    values: list[float]
    tokens: int


async def rerank(service: Service, request: RerankRequest) -> dict[str, Any]:
    """Answer a request to /rerank: the documents' places in the request, the most relevant first."""
    texts = [d if isinstance(d, str) else d.text for d in request.documents]
    most = _cut(service, request.truncate_prompt_tokens)
    scores = await relevance(service, [request.query] * len(texts), texts, request.instruction, most)
    order = sorted(range(len(texts)), key=lambda place: -scores.values[place])
    results: list[dict[str, Any]] = []
    for place in order[: request.top_n]:
        found: dict[str, Any] = {"index": place, "relevance_score": scores.values[place]}
        results.append(found | ({"document": {"text": texts[place]}} if request.return_documents else {}))
    return {
        "id": f"rerank-{secrets.token_hex(12)}",
        "model": service.name,
        "results": results,
        "usage": {"prompt_tokens": scores.tokens, "total_tokens": scores.tokens},
    }


async def score(service: Service, request: ScoreRequest) -> dict[str, Any]:
    """Answer a request to /score: one text with each of several, or pairs of them."""
    first, second = ([t] if isinstance(t, str) else t for t in (request.text_1, request.text_2))
    if not second or len(second) > MAX_INPUTS or len(first) not in (1, len(second)):
        message = f"'text_1' has {len(first)} texts and 'text_2' {len(second)}: send one, or equally many"
        raise ApiError(400, message, param="text_1", code="invalid_value")
    first = first * len(second) if len(first) == 1 else first
    most = _cut(service, request.truncate_prompt_tokens)
    scores = await relevance(service, first, second, request.instruction, most)
    return {
        "id": f"score-{secrets.token_hex(12)}",
        "object": "list",
        "created": int(time.time()),
        "model": service.name,
        "data": [{"object": "score", "index": i, "score": value} for i, value in enumerate(scores.values)],
        "usage": {"prompt_tokens": scores.tokens, "total_tokens": scores.tokens},
    }


def _cut(service: Service, wanted: int | None) -> int | None:
    """Return the number of tokens to which a document is cut with its query, or each alone for embeddings."""
    use = service.texts
    judged = use.task == "score" and use.prompted  # the tokens of its prompt are counted for each query
    return cut(service, wanted, 0 if judged else service.tokenizer.added(pair=use.task == "score"))


async def relevance(
    service: Service,
    queries: Sequence[str],
    documents: Sequence[str],
    instruction: str | None = None,
    most: int | None = None,
) -> Scores:
    """Return the relevance of each document for its query.

    Args:
        service: the model.
        queries: texts, as many as `documents`.
        documents: texts, which are cut to `most` tokens with the query.
        instruction: what documents are to meet, for models that are told so.
        most: as above; None: texts are not cut.

    Raises:
        ApiError: 400: a text is too long, or the model cannot compare texts.
    """
    use = service.texts
    if instruction is not None and not use.prompted:
        message = "the model takes no instruction: it reads pairs of texts"
        raise ApiError(400, message, param="instruction", code="unsupported_parameter")
    if use.task != "score":
        return await _cosines(service, queries, documents, most)

    async def one(pair: tuple[str, str]) -> tuple[float, int]:
        query, document = pair
        if use.prompted:
            tokens = await _judged(service, query, document, instruction or INSTRUCTION, most)
            types = [0] * len(tokens)
        else:
            tokens, types = await service.encode_pair(query, document, "documents", most)
        logits = np.asarray(await service.score(tokens, types), np.float32)
        if logits.shape != (1,):
            message = (
                f"the model has {len(logits)} classes; the relevance of texts is the score of a single one"
            )
            raise ApiError(400, message, param="model", code="unsupported_parameter")
        value = float(logits[0]) if use.plain else float(1 / (1 + np.exp(-logits[0])))
        return value, len(tokens)

    found = await _each(one, list(zip(queries, documents, strict=True)))
    return Scores([value for value, _ in found], sum(count for _, count in found))


async def _each(work: Callable[[S], Coroutine[Any, Any, T]], items: Sequence[S]) -> list[T]:
    """Return the results of `work` for each item, of which `_AT_ONCE` are worked on at a time. The first
    error ends the work on the other items.
    """
    places = asyncio.Semaphore(_AT_ONCE)

    async def placed(item: S) -> T:
        async with places:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(placed(item)) for item in items]
    except ExceptionGroup as errors:
        first = errors.exceptions[0]
        raise first from first.__cause__
    return [task.result() for task in tasks]


async def _cosines(
    service: Service, queries: Sequence[str], documents: Sequence[str], most: int | None
) -> Scores:
    named = service.texts.prompts
    of_documents = next((name for name in _DOCUMENTS if name in named), None)
    before = prompt_of(service, "query" if "query" in named else None), prompt_of(service, of_documents)

    async def vector(text: str) -> tuple[Any, int]:
        tokens = await service.encode(text, special=True, param="documents", most=most)
        found = np.asarray(await service.embed(tokens), np.float32)
        return found / max(float(np.linalg.norm(found)), 1e-12), len(tokens)

    texts = list(dict.fromkeys([*(before[0] + q for q in queries), *(before[1] + d for d in documents)]))
    vectors = dict(zip(texts, await _each(vector, texts), strict=True))
    values = [
        float(vectors[before[0] + query][0] @ vectors[before[1] + document][0])
        for query, document in zip(queries, documents, strict=True)
    ]
    return Scores(values, sum(count for _, count in vectors.values()))


async def _judged(
    service: Service, query: str, document: str, instruction: str, most: int | None
) -> list[int]:
    """Return the tokens of a prompt for a decoder that judges a document, which is cut to `most` tokens with
    the prompt.
    """

    def prompt(document: str) -> list[int]:
        text = _prompt(service, query, document, instruction)
        if most is None:
            service.check_length(text, "documents")
        return service.tokenizer.encode(text, special=False)

    def fitting() -> list[int]:
        tokens = prompt(document)
        if most is None or len(tokens) <= most:
            return tokens
        ends = service.tokenizer.ends(document)
        room = min(most - len(prompt("")), len(ends))
        # Tokens at the ends of the document can join with those of the prompt: their number is not the sum.
        while len(tokens) > most:
            if room < 0:
                message = f"the prompt cannot be cut to {most} tokens: it has more without the document"
                raise ApiError(400, message, param="truncate_prompt_tokens", code="context_length_exceeded")
            tokens = prompt(document[: ends[room - 1]] if room else "")
            room = max(0, room - max(1, len(tokens) - most)) if room else -1
        return tokens

    tokens = await service.encoding(len(query) + len(document), fitting)
    service.check_prompt(tokens, "documents")
    return tokens


def _prompt(service: Service, query: str, document: str, instruction: str) -> str:
    """Return the prompt of a decoder that judges a document."""
    template = service.tokenizer.chat_templates.get("default", "")
    if '"document"' not in template and "'document'" not in template:
        return JUDGE.format(instruction=instruction, query=query, document=document)
    messages = [("system", instruction), ("query", query), ("document", document)]
    try:
        return service.tokenizer.render([{"role": role, "content": text} for role, text in messages])
    except RequestError as error:
        raise ApiError(400, str(error), param="documents") from None
