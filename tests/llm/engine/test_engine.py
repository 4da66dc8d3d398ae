"""The result of a request does not depend on the other requests being served or on the amount of memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.llm.fake_runner import FakeRunner
from tests.llm.small_tokenizer import tokenizer

from tilewright.errors import EngineError, OverloadedError, RequestError
from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Completion, Request, Stream
from tilewright.llm.runner import PAGE

GREEDY = SamplingParameters(temperature=0)


def watched(options: EngineOptions | None = None, **runner: Any) -> tuple[Engine, FakeRunner]:
    """Return an engine, and its runner, which records every access to a free page and every write to a shared
    one.
    """
    fake = FakeRunner(**{"vocabulary": tokenizer().vocabulary, **runner})
    engine = Engine(fake, tokenizer(), options)
    scheduler = engine._scheduler
    give_back = scheduler.pool.give_back

    def forget(page: int) -> None:
        fake.forget(page)
        give_back(page)

    scheduler.pool.give_back = forget  # type: ignore[method-assign]
    fake.may_write = lambda page: (
        page not in {node.page for s in scheduler.running for node in s.nodes}
        and not any(node.page == page for node in scheduler.cache)
    )
    return engine, fake


def leaks(engine: Engine) -> bool:
    """Return whether an idle engine still holds anything, apart from the pages of the prefix cache."""
    scheduler = engine._scheduler
    scheduler.cache.clear()
    rest = [scheduler.running, scheduler._queues, scheduler._served, scheduler._sequences, scheduler.waiting]
    rest += [scheduler.pool.size - scheduler.pool.free, (scheduler.tables != -1).any(), scheduler.cache.idle]
    return any(rest)


def alone(request: Request, **runner: Any) -> list[Completion]:
    """Return the result of the request when it is the only one."""
    found = watched(**{"pages": 64, **runner})[0].submit(request).collect()
    for choice in found:
        if request.sampling == GREEDY:
            fake = FakeRunner(**{"vocabulary": tokenizer().vocabulary, **runner})
            assert choice.tokens == fake.greedy(request.prompt, len(choice.tokens))
    return found


def requests(count: int, seed: int, longest: int = 200) -> list[Request]:
    """Return requests of mixed lengths. Many share a prefix, and some diverge within a page. They are greedy
    or sampled, and some have penalties, stop strings or several choices.
    """
    random_ = random.Random(seed)
    top = tokenizer().vocabulary
    systems = [[random_.randrange(2, top) for _ in range(n)] for n in (40, 130, longest)]
    found = []
    for i in range(count):
        system = random_.choice(systems)
        prompt = system[: random_.choice([len(system), random_.randrange(1, len(system))])]
        prompt = prompt + [random_.randrange(2, top) for _ in range(random_.choice([0, 1, 5, 70]))]
        sampling = random_.choice(
            [
                GREEDY,
                SamplingParameters(0.8, seed=i),
                SamplingParameters(1.2, top_p=0.9, top_k=20, seed=i, logprobs=2),
                SamplingParameters(0, repetition_penalty=1.3, frequency_penalty=0.4),
                SamplingParameters(1.0, min_p=0.1, presence_penalty=0.5, seed=i),
            ]
        )
        found.append(
            Request(
                prompt,
                sampling,
                stop=random_.choice([[], [], ["e"], ["one", "the "]]),
                max_tokens=random_.choice([1, 3, 20, 40]),
                ignore_eos=random_.random() < 0.5,
                n=random_.choice([1, 1, 1, 2, 3]),
                priority=random_.choice([0, 0, 1]),
                user=random_.choice(["", "a", "b"]),
            )
        )
    return found


def test_a_request_gets_what_the_model_says() -> None:
    engine, fake = watched()
    prompt = list(range(2, 202))
    found = engine.submit(Request(prompt, GREEDY, max_tokens=30, ignore_eos=True)).collect()[0]
    assert found.tokens == fake.greedy(prompt, 30) and found.finish_reason == "length"
    assert found.text == tokenizer().decode(found.tokens)
    assert fake.calls["prefill"] == 2 and fake.calls["decode"] == 29 and not leaks(engine)


@pytest.mark.parametrize(("pages", "uniform"), [(64, True), (9, True), (9, False)])
@pytest.mark.parametrize(
    "speculation",
    [None, Speculation(tokens=3, max_batch=99, adaptive=False), "draft"],
    ids=["plain", "lookup", "draft"],
)
def test_64_requests_at_once_get_what_each_gets_alone(pages: int, uniform: bool, speculation: Any) -> None:
    """Each of 64 concurrent requests gets the result that it gets alone. 9 pages hold hardly two sequences,
    so that sequences preempt each other all the time.
    """
    runner = {"local": 0.85, "pages": pages, "uniform": uniform}
    draft = None
    if speculation == "draft":
        draft = FakeRunner(**{"vocabulary": tokenizer().vocabulary, **runner}, draft=True)
        speculation = Speculation(draft, tokens=3, max_batch=99, adaptive=False)
    engine, fake = watched(EngineOptions(speculation=speculation), **runner)
    random_ = random.Random(pages)
    todo = [(request, random_.randrange(200), random_.random() < 0.2) for request in requests(64, pages)]
    streams: list[Stream] = []
    cancelled: dict[int, int] = {}
    step = 0
    while engine.step() or todo:
        for one in [one for one in todo if one[1] <= step]:
            todo.remove(one)
            if one[2]:
                cancelled[len(streams)] = step + random_.randrange(30)
            streams.append(engine.submit(one[0]))
        for i, when in cancelled.items():
            if when == step:
                streams[i].cancel()
        step += 1
    assert len(streams) == 64 and not fake.misuses and (draft is None or not draft.misuses)
    ended = 0
    for i, stream in enumerate(streams):
        expected = alone(stream.request, local=0.85, uniform=uniform)
        for got, want in zip(stream.collect(), expected, strict=True):
            if got.finish_reason == "cancelled":
                assert i in cancelled and want.tokens[: len(got.tokens)] == got.tokens
                ended += 1
            else:
                assert got == want
    statistics = engine.stats()
    assert statistics.cached_tokens > 0 and ended > 0
    assert (statistics.preemptions > 10) == (pages == 9)
    assert (statistics.accepted_tokens > 0) == (speculation is not None)
    assert not leaks(engine)


@pytest.mark.parametrize("uniform", [True, False])
def test_sequences_with_state_share_nothing_and_are_computed_again(uniform: bool) -> None:
    engine, fake = watched(pages=6, has_state=True, max_batch=4, uniform=uniform)
    grown = [Request([5 + i] * 50, GREEDY, max_tokens=100, ignore_eos=True) for i in range(4)]
    streams = [engine.submit(request) for request in [*grown, *requests(12, 1)]]
    found = [stream.collect() for stream in streams]
    for stream, got in zip(streams, found, strict=True):
        assert got == alone(stream.request, has_state=True, uniform=uniform)
    assert (
        not fake.misuses
        and fake.calls["copy_page"] == 0
        and engine.stats().preemptions > 0
        and not leaks(engine)
    )
    with pytest.raises(RequestError, match="cannot be used with speculation"):
        Engine(fake, tokenizer(), EngineOptions(speculation=Speculation(adaptive=False)))


@pytest.mark.parametrize(("keep", "count"), [(True, 1500), (False, 500)])
def test_nothing_leaks_over_thousands_of_requests(keep: bool, count: int) -> None:
    engine, fake = watched(EngineOptions(prefix_cache=keep), pages=24, max_batch=16, vocabulary=300)
    fake.may_write = lambda page: True  # Checking it searches the whole tree for every write.
    random_ = random.Random(0)
    streams = []
    for i in range(count):
        prompt = [random_.randrange(2, 6) for _ in range(random_.choice([3, 30, 100]))]
        streams.append(
            engine.submit(
                Request(
                    prompt, SamplingParameters(seed=i), max_tokens=random_.randrange(1, 6), ignore_eos=True
                )
            )
        )
        if random_.random() < 0.1:
            random_.choice(streams[-20:]).cancel()
        while engine.stats().waiting > 20:
            engine.step()
    while engine.step():
        pass
    assert all(stream.done for stream in streams) and not fake.misuses
    assert sum(engine.stats().finished.values()) == count
    assert (engine.stats().pages_kept > 0) == keep and engine.stats().pages_used == 0 and not leaks(engine)


def test_a_prompt_that_comes_again_is_not_computed_again() -> None:
    engine, fake = watched()
    prompt = list(range(2, 232))
    first = engine.submit(Request(prompt, GREEDY, max_tokens=5, ignore_eos=True)).collect()[0]
    before = fake.calls["tokens"]
    stream = engine.submit(Request(prompt, GREEDY, max_tokens=5, ignore_eos=True))
    assert stream.collect()[0] == first and stream.cached_tokens == 229
    assert fake.calls["tokens"] - before == 5, "only the prompt's last token and four more are computed"
    chat = [*prompt, *first.tokens, 7, 8, 9]
    stream = engine.submit(Request(chat, GREEDY, max_tokens=1))
    stream.collect()
    assert stream.cached_tokens == 234, "all but the last token of the answer, which was never computed"
    assert engine.stats().cached_tokens == 229 + 234


def test_where_decoding_is_another_arithmetic_prompts_alone_are_shared() -> None:
    engine, fake = watched(uniform=False)
    prompt = list(range(2, 148))
    first = engine.submit(Request(prompt, GREEDY, max_tokens=80, ignore_eos=True)).collect()[0]
    assert first.tokens == fake.greedy(prompt, 80)
    for more, cached in (([], 145), (first.tokens, 146), ([7], 146)):
        stream = engine.submit(Request([*prompt, *more], GREEDY, max_tokens=5, ignore_eos=True))
        assert (
            stream.collect()[0].tokens == fake.greedy([*prompt, *more], 5) and stream.cached_tokens == cached
        )


def test_what_was_decoded_is_decoded_again_many_tokens_at_a_time() -> None:
    """After a preemption, the tokens decoded so far are computed again in few calls. The request of low
    priority is preempted after 40 tokens, and a call takes 16.
    """
    engine, fake = watched(max_batch=1, speculated=16, uniform=False)
    low = engine.submit(Request([5] * 100, GREEDY, max_tokens=50, ignore_eos=True, priority=1))
    for _ in range(40):
        engine.step()
    high = engine.submit(Request([9], GREEDY, max_tokens=1, ignore_eos=True))
    engine.step()
    assert high.done and engine.stats().preemptions == 1
    before = dict(fake.calls)
    assert low.collect()[0].tokens == fake.greedy([5] * 100, 50)
    assert fake.calls["prefill"] == before["prefill"], "the prompt is in the prefix cache"
    assert fake.calls["decode"] - before["decode"] == 3 + 9, (
        "three calls for the 39 tokens known and the 40th, and nine for new tokens"
    )


def test_prompts_that_come_together_are_computed_once() -> None:
    engine, fake = watched(chunk=64, max_batch=8)
    prompt = list(range(2, 258))
    streams = [engine.submit(Request([*prompt, i], GREEDY, max_tokens=2, ignore_eos=True)) for i in range(8)]
    for i, stream in enumerate(streams):
        assert stream.collect()[0].tokens == fake.greedy([*prompt, i], 2)
    assert fake.calls["tokens"] < len(prompt) + 8 * 3


def test_prompts_computed_side_by_side_end_up_in_the_same_pages() -> None:
    """Sequences that compute the same prompt at the same time share its pages afterwards. Their chunks are
    shorter than a page, so both compute a page until it is full, and one of the two is then freed.
    """
    engine, fake = watched(EngineOptions(chunk=32))
    prompt = list(range(2, 142))
    streams = [engine.submit(Request([*prompt, i], GREEDY, max_tokens=70, ignore_eos=True)) for i in range(2)]
    for _ in range(14):
        engine.step()
    assert engine.stats().running == 2 and engine.stats().pages_used == 2 + 2
    for i, stream in enumerate(streams):
        assert stream.collect()[0].tokens == fake.greedy([*prompt, i], 70)
    assert not fake.misuses and not leaks(engine)


def test_choices_are_forked_behind_the_prompt() -> None:
    engine, fake = watched(max_batch=3)
    request = Request(list(range(2, 102)), SamplingParameters(seed=3), max_tokens=20, ignore_eos=True, n=5)
    found = engine.submit(request).collect()
    assert len({tuple(choice.tokens) for choice in found}) == 5
    assert found[:2] == watched()[0].submit(Request(**{**request.__dict__, "n": 2})).collect()
    assert fake.calls["prefill"] == 1, (
        "the last two choices wait, and then find the prompt's pages in the cache"
    )


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    engine, _ = watched(chunk=64, context=2000, pages=64)
    long = engine.submit(Request([2] * 1500, GREEDY, max_tokens=1))
    engine.step()
    short = engine.submit(Request([3] * 60, GREEDY, max_tokens=1))
    for _ in range(3):
        engine.step()
    assert short.done and not long.done
    for _ in range(30):
        engine.step()
    assert long.done


def test_priorities_go_first_and_make_room() -> None:
    engine, fake = watched(max_batch=2)
    low = [
        engine.submit(Request([5 + i], GREEDY, max_tokens=50, ignore_eos=True, priority=1)) for i in range(3)
    ]
    for _ in range(5):
        engine.step()
    high = engine.submit(Request([9], GREEDY, max_tokens=5, ignore_eos=True))
    for _ in range(6):
        engine.step()
    assert high.done and not low[0].done and engine.stats().preemptions == 1
    for i, stream in enumerate(low):
        assert stream.collect()[0].tokens == fake.greedy([5 + i], 50)


def test_users_take_turns_however_many_requests_each_has() -> None:
    engine, _ = watched(max_batch=1)
    many = [
        engine.submit(Request([5], GREEDY, max_tokens=4, ignore_eos=True, user="many")) for _ in range(10)
    ]
    engine.step()
    few = [engine.submit(Request([6], GREEDY, max_tokens=4, ignore_eos=True, user="few")) for _ in range(2)]
    while not all(stream.done for stream in few):
        engine.step()
    assert sum(stream.done for stream in many) <= 3


def test_stop_tokens_and_the_end_of_the_text() -> None:
    engine, fake = watched()
    said = fake.greedy([5, 6], 30)
    at = next(i for i in range(3, 30) if said[i] not in said[:i])
    found = engine.submit(Request([5, 6], GREEDY, stop_tokens=[said[at]], ignore_eos=True)).collect()[0]
    assert found.tokens == said[: at + 1] and found.finish_reason == "stop"
    assert found.text == tokenizer().decode(said[:at])
    fake.bias[1] = 100
    found = engine.submit(Request([5, 6], GREEDY)).collect()[0]
    assert (found.text, found.tokens, found.finish_reason) == ("", [1], "stop")
    found = engine.submit(Request([5, 6], GREEDY, ignore_eos=True, max_tokens=3)).collect()[0]
    assert (found.text, found.tokens, found.finish_reason) == ("", [1, 1, 1], "length")


def test_stop_strings_end_the_text_and_are_no_part_of_it() -> None:
    engine, fake = watched()
    text = tokenizer().decode(fake.greedy([5, 6], 40))
    stop = text[10:14]
    pieces = list(engine.submit(Request([5, 6], GREEDY, stop=[stop], ignore_eos=True)))
    assert "".join(p.text for p in pieces) == text[: text.index(stop)] and pieces[-1].finish_reason == "stop"


def test_log_probabilities_come_with_each_token() -> None:
    engine, _ = watched()
    request = Request(
        [5, 6], SamplingParameters(0, logprobs=3, logit_bias={7: 50.0}), max_tokens=4, ignore_eos=True
    )
    found = engine.submit(request).collect()[0]
    assert found.tokens == [7] * 4 and [p.token for p in found.logprobs] == [7] * 4
    for p in found.logprobs:
        assert len(p.top) == 3 and p.logprob < p.top[2][1] < p.top[0][1] < 0, (
            "log probabilities are the model's, without the bias"
        )


def test_outputs_end_where_the_context_does() -> None:
    for runner in ({"context": 100}, {"pages": 2, "max_batch": 3}):
        engine, fake = watched(**runner)
        streams = [engine.submit(Request([5 + i], GREEDY, ignore_eos=True)) for i in range(3)]
        for i, stream in enumerate(streams):
            found = stream.collect()[0]
            assert len(found.tokens) == engine.limit - 1 and found.finish_reason == "length"
            assert found.tokens == fake.greedy([5 + i], engine.limit - 1)
        with pytest.raises(
            RequestError, match=f"has {engine.limit} tokens; prompt and output may have {engine.limit}"
        ):
            engine.submit(Request([5] * engine.limit))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([]), "the prompt has no tokens"),
        (Request([5, 100_000]), "prompt has a token outside the model's"),
        (Request([5], stop_tokens=[-1]), "stop_tokens"),
        (Request([5], max_tokens=0), "max_tokens is 0"),
        (Request([5], n=0), "n is 0"),
        (Request([5], stop=["a", ""]), "empty string"),
        (Request([5], SamplingParameters(top_p=2)), "top_p is 2"),
    ],
)
def test_requests_that_cannot_be_are_refused(request_: Request, message: str) -> None:
    engine, _ = watched()
    with pytest.raises(RequestError, match=message):
        engine.submit(request_)
    assert not leaks(engine)


def test_a_full_queue_refuses() -> None:
    engine, _ = watched(EngineOptions(queue=3), max_batch=1)
    streams = [engine.submit(Request([5], GREEDY, max_tokens=2)) for _ in range(3)]
    with pytest.raises(OverloadedError, match="queue is full .3 of"):
        engine.submit(Request([5]))
    engine.step()
    streams.append(engine.submit(Request([5], GREEDY, max_tokens=2)))
    assert all(stream.collect()[0].tokens for stream in streams)


def failing(fake: FakeRunner, call: str, when: Callable[[], bool]) -> None:
    def before(name: str) -> None:
        if name == call and when():
            raise OSError("out of luck")

    fake.before = before


@pytest.mark.parametrize("call", ["prefill", "decode"])
def test_an_error_of_the_runner_fails_its_requests_and_no_others(call: str) -> None:
    engine, fake = watched(local=1.0)
    prompt = [5, 6, 7] * 30
    bad = [
        engine.submit(Request([*prompt, i], GREEDY, max_tokens=60, ignore_eos=True, n=2)) for i in range(2)
    ]
    for _ in range(4):
        engine.step()
    late = engine.submit(Request([*prompt, 9], GREEDY, max_tokens=60, ignore_eos=True))
    broken = [True]
    failing(fake, call, lambda: broken != [] and broken.pop())
    while broken:
        engine.step()
    hit, spared = {"prefill": ([late], bad), "decode": (bad, [late])}[call]
    for stream in hit:
        with pytest.raises(EngineError, match="the model failed: OSError: out of luck"):
            stream.collect()
    # Only the prompt's first page was shared before; pages of failed sequences are not used.
    if call == "decode":
        again = engine.submit(Request(bad[0].request.prompt, GREEDY, max_tokens=1))
        assert again.collect()[0].tokens and again.cached_tokens == PAGE
    for stream in spared:
        for choice in stream.collect():
            assert choice.tokens == fake.greedy(stream.request.prompt, 60)
    assert engine.stats().finished["error"] == {"prefill": 1, "decode": 4}[call]
    assert engine.submit(Request([5], GREEDY, max_tokens=3, ignore_eos=True)).collect()[
        0
    ].tokens == fake.greedy([5], 3)
    assert not fake.misuses and not leaks(engine)


def test_logits_that_are_no_numbers_fail_the_request() -> None:
    engine, fake = watched()
    fake.bias[3] = np.nan
    with pytest.raises(
        EngineError, match="no next token can be chosen after 2 tokens: the model's logits are NaN"
    ):
        engine.submit(Request([5, 6])).collect()
    fake.bias[3] = 0
    assert engine.submit(Request([5, 6], max_tokens=1)).collect()[0].tokens and not leaks(engine)


def test_a_page_that_cannot_be_copied_is_computed() -> None:
    engine, fake = watched()
    prompt = list(range(2, 52))
    failing(fake, "copy_page", lambda: True)
    request = Request(prompt, GREEDY, max_tokens=5, ignore_eos=True, n=2)
    for choice in [*engine.submit(request).collect(), *engine.submit(request).collect()]:
        assert choice.tokens == fake.greedy(prompt, 5)
    assert fake.calls["copy_page"] > 0 and not leaks(engine)


def test_embeddings() -> None:
    engine, fake = watched()
    assert engine.embed([3, 4, 5]).tolist() == [3, 7, 12]
    for tokens, message in (
        ([], "has 0 tokens"),
        ([5] * 2000, "has 2000 tokens"),
        ([-1], "outside the model's"),
    ):
        with pytest.raises(RequestError, match=message):
            engine.embed(tokens)
    failing(fake, "embed", lambda: True)
    with pytest.raises(EngineError, match="failed on the text: OSError"):
        engine.embed([3])


def test_options_must_fit_the_model() -> None:
    for options, message in (
        (EngineOptions(pages=1000), "option pages is 1000; the model was compiled for 1 to 64"),
        (EngineOptions(max_batch=0), "option max_batch is 0"),
        (EngineOptions(chunk=4096), "option chunk is 4096"),
    ):
        with pytest.raises(RequestError, match=message):
            watched(options)


def test_statistics_count_what_happened() -> None:
    engine, _ = watched(EngineOptions(max_batch=2))
    streams = [engine.submit(Request([5] * 70, GREEDY, max_tokens=4, ignore_eos=True)) for _ in range(3)]
    for _ in range(3):
        engine.step()
    found = engine.stats()
    assert (found.running, found.waiting, found.requests, found.pages) == (
        2,
        1,
        3,
        64,
    ) and found.pages_used >= 3
    for stream in streams:
        stream.collect()
    found = engine.stats()
    assert found.prompt_tokens == 210 and found.generated_tokens == 12 and found.finished == {"length": 3}
    assert sum(found.time_to_first_token.counts) == sum(found.queue_time.counts) == 3
    assert sum(found.inter_token.counts) == 9 and sum(found.request_time.counts) == 3
    assert found.pages_used == 0 and found.pages_kept == 2 and PAGE == 64
