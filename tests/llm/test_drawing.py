"""Tokens that a library draws beside its logits are those that the engine chooses from the logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.devices import need, running
from tests.llm.devices import without_nvrtc
from tests.llm.small_tokenizer import tokenizer
from tilewright.frontends.trace import numpy as tnp
from tilewright.llm.drawing import LibraryDrawing, drawing_functions
from tilewright.llm.engine.drawing import adjustments_of
from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.grammar import Grammars
from tilewright.llm.engine.sampling import Sampler, SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Request
from tilewright.llm.runner import Draws
from tilewright.llm.token_sampling import adjusted

VOCABULARY, CONTEXT, ROWS = tokenizer().vocabulary, 256, 4
WEIGHTS = (np.random.default_rng(0).standard_normal((101, VOCABULARY)) * 3).astype(np.float32)


def place(token: Any, length: Any) -> Any:
    """The row of `WEIGHTS` with the logits after a token that follows `length` tokens."""
    return (token * 7 + length) % len(WEIGHTS)


class Runner:
    """A model whose logits depend on the last token and its position only."""

    vocabulary, pages, chunk, max_batch, rows, context = VOCABULARY, 16, 64, ROWS, 2 * ROWS, CONTEXT
    has_state, uniform, adapters, sight, window, page_access = False, True, None, None, None, None
    source_kind, source, start, guessing = None, 0, [], None

    def __init__(self, drawing: Any) -> None:
        self.drawing = drawing

    def prefill(self, tokens: Any, start: int, pages: Any, slot: int, given: Any = None) -> Any:
        return WEIGHTS[place(tokens[-1], start + len(tokens) - 1)]

    def decode(self, tokens: Any, lengths: Any, pages: Any, slots: Any) -> Any:
        return WEIGHTS[place(tokens, lengths)]

    def copy_page(self, source: int, target: int) -> None:
        pass

    def reset(self, slot: int) -> None:
        pass

    def embed(self, tokens: Any) -> Any:
        raise NotImplementedError


class Counting(LibraryDrawing):
    """Counts rows that are decoded, drawn, drawn from adjusted logits, and read."""

    def __init__(self, library: Any) -> None:
        call = lambda name, *a: library.functions[name](*a)  # noqa: E731
        super().__init__(
            call, VOCABULARY, ROWS, CONTEXT,
            lambda tokens, start, pages, slot, given: (tokens, np.asarray(start, np.int32), pages),
            lambda tokens, lengths, pages, slots: (tokens, lengths, pages),
        )  # fmt: skip
        self.counts = dict.fromkeys(("decode", "draw", "adjusted", "logits"), 0)

    def decode(self, tokens: Any, *rest: Any) -> Any:
        self.counts["decode"] += len(tokens)
        return super().decode(tokens, *rest)

    def draw(self, rows: Any, draws: Any, adjustments: Any = None) -> Any:
        self.counts["draw" if adjustments is None else "adjusted"] += len(rows)
        return super().draw(rows, draws, adjustments)

    def logits(self, rows: Any) -> Any:
        self.counts["logits"] += len(rows)
        return super().logits(rows)


SLOW = [pytest.param(target, marks=pytest.mark.slow) for target in ("cuda", "vulkan")]


@pytest.fixture(scope="module", params=["cpu", "opencl", "metal", "webgpu", *SLOW])
def library(request: pytest.FixtureRequest) -> Iterator[Any]:
    weights = tw.Tensor(WEIGHTS)

    def prefill(tokens: Any, start: Any, table: Any) -> Any:
        logits = weights[place(tokens[-1], start + tokens.shape[0] - 1)]
        return logits + tnp.where(table[:1] < -1, 1.0, 0.0)

    def decode(tokens: Any, lengths: Any, table: Any) -> Any:
        return weights[place(tokens, lengths)] + tnp.where(table[:, :1] < -1, 1.0, 0.0)

    i32, rows = np.int32, {0: f"rows<={2 * ROWS}"}
    model = {
        "prefill": (
            prefill,
            (np.zeros(2, i32), np.zeros((), i32), np.zeros(2, i32)),
            {"tokens": {0: "tokens<=64"}, "table": {0: "pages<=4"}},
        ),
        "decode": (
            decode,
            (np.zeros(2, i32), np.zeros(2, i32), np.zeros((2, 2), i32)),
            {"tokens": rows, "lengths": rows, "table": {**rows, 1: "pages<=4"}},
        ),
    }
    functions = drawing_functions(model, VOCABULARY, 2 * ROWS, ROWS, CONTEXT)
    with without_nvrtc():
        need(request.param)
        made = tw.compile(functions, target=request.param, checks=False, cache=False)
    with running(made) as found:
        yield found


def requests() -> list[tuple[Request, str]]:
    """Requests, each with the function of a library that chooses its tokens; "logits" for the engine."""
    grammar = Grammars(tokenizer()).json_schema({"type": "object", "properties": {"a": {"type": "integer"}}})
    penalties = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.1}
    listed: list[tuple[dict[str, Any], str]] = [
        ({"temperature": 0}, "decode"),
        ({"seed": 1}, "draw"),
        ({"seed": 2, "temperature": 0.7, "top_k": 20}, "draw"),
        ({"seed": 3, "top_p": 0.6}, "draw"),
        ({"seed": 4, "min_p": 0.1, "temperature": 1.4}, "draw"),
        ({"seed": 5, "top_k": 30, "top_p": 0.9, "min_p": 0.02}, "draw"),
        ({"temperature": 0, **penalties}, "adjusted"),
        ({"seed": 6, "top_k": 40, **penalties}, "adjusted"),
        ({"seed": 7, "temperature": 0.9, "logit_bias": {9: 6.0, 3: -float("inf"), 40: -2.0}}, "adjusted"),
        ({"seed": 8, "logit_bias": {300: 9.0}, "presence_penalty": 1.5}, "adjusted"),
        ({"seed": 9, "logprobs": 3}, "logits"),
        ({"seed": 10, "top_k": 200}, "logits"),
    ]
    found = [
        (Request([5 + i, 9, 12 + i], SamplingParameters(**p), max_tokens=12, ignore_eos=True), how)
        for i, (p, how) in enumerate(listed)
    ]
    constrained = Request([20, 21], SamplingParameters(seed=11), grammar=grammar, max_tokens=12)
    return [*found, (constrained, "adjusted")]


def outputs(drawing: Any, asked: list[Request], options: EngineOptions | None = None) -> list[Any]:
    engine = Engine(Runner(drawing), tokenizer(), options or EngineOptions())
    streams = [engine.submit(r) for r in asked]
    return [[(c.tokens, c.logprobs, c.finish_reason) for c in stream.collect()] for stream in streams]


def test_requests_get_the_tokens_that_the_engine_chooses(library: Any) -> None:
    """So does each request alone, with a library that draws its tokens where they can be drawn."""
    asked = requests()
    wanted = outputs(None, [r for r, _ in asked])
    assert outputs(Counting(library), [r for r, _ in asked]) == wanted
    for (request, how), alone in zip(asked, wanted, strict=True):
        drawing = Counting(library)
        assert outputs(drawing, [request]) == [alone]
        count = len(alone[0][0])
        assert drawing.counts["decode"] == count - 1  # The first token follows the prompt.
        assert drawing.counts["adjusted"] == (count if how == "adjusted" else 0), request
        assert (drawing.counts["logits"] > 0) == (how == "logits"), request
        if how != "logits":
            assert drawing.counts["draw"] == (count if how == "draw" else 0), request


def test_choices_of_a_request_and_guesses(library: Any) -> None:
    """A request's choices begin with tokens from the same logits. Guesses, also those of a draft model, are
    checked by tokens that the library draws; rejection sampling takes logits.
    """
    choices = [Request([5, 6, 7] * 4, SamplingParameters(seed=s), max_tokens=9, n=3) for s in range(2)]
    assert outputs(Counting(library), choices) == outputs(None, choices)
    ways = (
        {"temperature": 0},
        {"seed": 1},
        {"seed": 2, "top_p": 0.6},
        {"temperature": 0, "logit_bias": {9: 1.0}},
    )
    asked = [Request([5, 6, 7] * 4, SamplingParameters(**way), max_tokens=12) for way in ways]
    unseeded = Request([5, 6, 7], SamplingParameters(temperature=0.7), max_tokens=12)
    for draft in (False, True):
        found = []
        for drawing in (Counting(library), None):
            speculation = Speculation(Runner(drawing) if draft else None, adaptive=False)
            options = EngineOptions(speculation=speculation, seed=1)
            found.append([outputs(drawing, [r], options) for r in (*asked, *choices, unseeded)])
            if drawing is not None and draft:
                assert drawing.counts["decode"] > drawing.counts["logits"] > 0
        assert found[0] == found[1]
    drawing = Counting(library)
    outputs(drawing, asked[:3], EngineOptions(speculation=Speculation(Runner(drawing), adaptive=False)))
    assert drawing.counts["logits"] == 0 and drawing.counts["draw"] > 0


def test_adjusted_logits_are_the_engines() -> None:
    """Penalties, biases and masks of a library give the engine's logits but for the last bit."""
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal((6, VOCABULARY)) * 4).astype(np.float32)
    samplers = []
    for i in range(6):
        bias = {int(t): float(rng.normal()) for t in rng.integers(0, VOCABULARY, i)}
        drawn = rng.choice([1.0, 1.3, 0.8]), *rng.choice([0.0, 0.7, -0.3], 2)
        parameters = SamplingParameters(
            repetition_penalty=drawn[0],
            frequency_penalty=drawn[1],
            presence_penalty=drawn[2],
            logit_bias=bias,
        )
        sampler = Sampler(parameters, rng.integers(0, VOCABULARY, 5 * i).tolist(), 0, None)
        for token in rng.integers(0, VOCABULARY, 7 * (i % 3)).tolist():
            sampler.accept(token)
        samplers.append(sampler)
    masks = [rng.bytes(-(-VOCABULARY // 8)) if i % 2 else None for i in range(6)]
    more = adjustments_of(list(zip(samplers, masks, strict=True)), VOCABULARY)
    dims = {
        name: {0: "rows<=8"} if array.ndim == 1 else {0: "rows<=8", 1: f"n{array.shape[1]}<=60"}
        for name, array in more._asdict().items()
        if name != "allowed"
    }
    dims |= {"logits": {0: "rows<=8"}, "allowed": {0: "masks<=8"}}
    with tw.compile(adjusted, (logits, *more), dims=dims, cache=False) as compiled:
        found = compiled(logits, *more)
    for row, sampler, mask in zip(logits, samplers, masks, strict=True):
        sampler.adjust(row)
        if mask is not None:
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[:VOCABULARY]
            row[bits == 0] = -np.inf
    np.testing.assert_allclose(found, logits, rtol=1e-6, atol=1e-6)


def test_logits_that_are_no_numbers(library: Any) -> None:
    """A row whose logits are NaN has no token, and the others have theirs."""
    logits = np.resize(WEIGHTS, (2 * ROWS, VOCABULARY))
    logits[1] = np.nan
    library.state["logits"] = logits
    drawing, rows = Counting(library), np.arange(3, dtype=np.int32)
    zeros = np.zeros(3, np.float32)
    draws = Draws(zeros, np.zeros(3, np.int32), zeros + 1, zeros, np.zeros(3))
    sampler = Sampler(SamplingParameters(), [], 0, None)
    for adjustments in (None, adjustments_of([(sampler, None)] * 3, VOCABULARY)):
        found = drawing.draw(rows, draws, adjustments)
        assert found.tolist() == [WEIGHTS[0].argmax(), -1, WEIGHTS[2].argmax()]
