"""`Engine`: many requests to one model at a time."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as List
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import EngineError, InternalError, OverloadedError, RequestError, TilewrightError
from ..runner import Floats, Runner
from ..tokenizer import Detokenizer, Tokenizer
from .sampling import Chooser, TokenLogprob, choose, logprobs, seed_of_choice
from .scheduler import Scheduler, Sequence
from .speculative import DraftModel, Guess, PromptLookup, Speculation, accepted
from .statistics import Statistics
from .stream import Delta, FinishReason, Request, Stream, failure

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """How an engine serves."""

    queue: int = 1024
    """Most choices that wait; a request that would make them more is refused."""
    max_batch: int | None = None
    """Most choices at a time; None as many as the model was compiled for."""
    pages: int | None = None
    """Of the KV cache to use; None all."""
    chunk: int | None = None
    """Most tokens of a prompt in one step: fewer make others wait less, and prompts take longer. None as many as the model was compiled for."""
    prefix_cache: bool = True
    """Whether pages are kept for prompts that begin alike."""
    speculation: Speculation | None = None
    seed: int | None = None
    """Of the seeds that requests without one get; None draws it."""


class Engine:
    """Continuous batching (Orca, Yu et al. 2022) over a paged KV cache (Kwon et al. 2023): each step adds a token, or several, to every running choice, and a chunk to one prompt
    (Sarathi, Agrawal et al. 2024).

    `submit`, `embed` and `stats` may be called in any thread; steps are made by the thread of `start`, by whoever reads a stream, or by `step`. An error of the
    runner fails the requests of that call and nothing else.
    """

    def __init__(self, runner: Runner, tokenizer: Tokenizer, options: Options | None = None) -> None:
        """
        Raises:
            RequestError: the options do not fit the model.
            ArtifactError: the tokenizer cannot tell what single tokens stand for.
        """
        tokenizer.bytes_of(0)  # makes the table of all tokens, which takes a moment
        self.runner = runner
        self.tokenizer = tokenizer
        self.options = options = options or Options()
        self._chunk = _fit("chunk", options.chunk, runner.chunk)
        self._scheduler = Scheduler(
            pages=_fit("pages", options.pages, runner.pages),
            slots=_fit("max_batch", options.max_batch, runner.max_batch),
            context=runner.context,
            share=not runner.has_state,
            keep=options.prefix_cache,
            copy_page=self._copy_page,
        )
        self._speculation = options.speculation
        self._lookup = PromptLookup()
        self._draft: DraftModel | None = None
        if options.speculation is not None:
            if runner.has_state:
                raise RequestError(
                    "the model keeps state that cannot be taken back: it cannot be used with speculation"
                )
            if options.speculation.draft is not None:
                self._draft = DraftModel(options.speculation.draft)
                self._draft.check(runner)
                self._scheduler.drafts = True
        self._random = random.Random(options.seed)
        self._statistics = Statistics(pages=self._scheduler.pool.size)
        self._order = 0
        self._stepping = threading.RLock()
        self._changed = threading.Condition()  # guards what follows
        self._arrived: list[Sequence] = []
        self._arriving = 0  # choices that do not wait or run yet, those to be forked included
        self._cancelled: list[Stream] = []
        self._texts: list[tuple[list[int], Future[Floats]]] = []
        self._thread: threading.Thread | None = None
        self._state: str = ""  # why nothing is taken any more

    # What callers do

    @property
    def limit(self) -> int:
        """Most tokens of prompt and output together."""
        return self._scheduler.limit

    def submit(self, request: Request) -> Stream:
        """Queue a request.

        Raises:
            RequestError: it can never be served.
            OverloadedError: the queue is full, or the engine is being stopped.
        """
        request.check(self.runner.vocabulary, self.limit)
        constraints = [request.grammar.fork() if request.grammar is not None else None for _ in range(request.n)]
        stream = Stream(request, self._cancel, self._step_unless_running)
        now = time.perf_counter()
        with self._changed:
            if self._state:
                raise OverloadedError(f"the engine takes no more requests: {self._state}")
            waiting = self._scheduler.waiting + self._arriving
            if waiting + request.n > self.options.queue:
                raise OverloadedError(
                    f"{waiting} choices wait already, of at most {self.options.queue}: try again later"
                )
            self._order += 1
            given = request.sampling.seed
            seed = self._random.getrandbits(64) if given is None else given
            sequences = []
            for index, constraint in enumerate(constraints):
                chooser = Chooser(request.sampling, request.prompt, seed_of_choice(seed, index), constraint)
                sequence = Sequence(request, stream, index, self._order, chooser, Detokenizer(self.tokenizer))
                sequence.submitted = now
                sequences.append(sequence)
            if self._scheduler.share:
                sequences[0].forks = sequences[1:]
                del sequences[1:]
            self._arrived += sequences
            self._arriving += request.n
            self._statistics.requests += 1
            self._changed.notify()
        return stream

    def embed(self, tokens: List[int]) -> Floats:
        """The embedding of a text: f32 [hidden].

        Raises:
            RequestError: it has no token, or more than the model takes.
            OverloadedError: the engine is being stopped.
            EngineError: the model failed.
        """
        future = self.submit_embedding(tokens)
        while not future.done() and self._step_unless_running() is not None:
            pass
        return future.result()

    def submit_embedding(self, tokens: List[int]) -> Future[Floats]:
        """Like `embed`, without waiting."""
        if not 0 < len(tokens) <= self.runner.context:
            raise RequestError(f"the text has {len(tokens)} tokens; it must have 1 to {self.runner.context}")
        if not 0 <= min(tokens) <= max(tokens) < self.runner.vocabulary:
            raise RequestError(f"the text has a token that is none of the model's 0 to {self.runner.vocabulary - 1}")
        future: Future[Floats] = Future()
        with self._changed:
            if self._state:
                raise OverloadedError(f"the engine takes no more requests: {self._state}")
            if len(self._texts) >= self.options.queue:
                raise OverloadedError(f"{len(self._texts)} texts wait already to be embedded: try again later")
            self._texts.append((list(tokens), future))
            self._changed.notify()
        return future

    def stats(self) -> Statistics:
        """Counts, times and what is going on now."""
        scheduler, found = self._scheduler, self._statistics.copy()
        found.running = len(scheduler.running)
        found.waiting = scheduler.waiting + self._arriving
        found.pages_kept = scheduler.cache.idle
        found.pages_used = scheduler.pool.size - scheduler.pool.free - found.pages_kept
        found.preemptions = scheduler.preemptions
        found.evictions = scheduler.cache.evicted
        return found

    def start(self) -> None:
        """Make steps in a thread until `stop`."""
        with self._changed:
            if self._thread is None:
                self._state = ""
                self._thread = threading.Thread(target=self._run, name="tilewright-engine", daemon=True)
                self._thread.start()

    def stop(self, drain: bool = False, timeout: float | None = None) -> None:
        """End the thread. New requests are refused at once; those under way are finished first if `drain`, for at most `timeout` seconds, and fail otherwise."""
        with self._changed:
            self._state = "it is being stopped"
            thread = self._thread
            if thread is not None and drain:
                self._changed.wait_for(lambda: self._idle, timeout)
            self._thread = None
            self._changed.notify_all()
        if thread is not None:
            thread.join()
        while drain and thread is None and self.step():
            pass
        with self._stepping:
            self._receive()
            self._fail_all(EngineError("the engine was stopped before the request was finished"))

    def step(self) -> bool:
        """One step: a token for each running choice, and a chunk of one prompt. Whether there was anything to do."""
        with self._stepping:
            try:
                self._receive()
                worked = self._embed()
                self._admit()
                worked = self._decode() or worked
                worked = self._prefill() or worked or bool(self._scheduler.running)
                self._statistics.steps += worked
            except Exception as error:
                self._fail_all(failure("the engine failed", error))
                raise
            return worked

    # Between callers and steps

    @property
    def _idle(self) -> bool:
        return not (self._arrived or self._texts or self._scheduler.running or self._scheduler.waiting)

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                self._changed.notify_all()  # who drains
                self._changed.wait_for(lambda: not self._idle or self._cancelled or self._thread is not me)
                if self._thread is not me:
                    return
            try:
                self.step()
            except Exception:  # a mistake of ours: its requests have failed, others shall be served
                log.exception("a step of the engine failed")

    def _step_unless_running(self) -> bool | None:
        """For who waits: makes a step if no thread does. Whether there was anything to do; None where there is a thread."""
        return None if self._thread is not None else self.step()

    def _cancel(self, stream: Stream) -> None:
        with self._changed:
            self._cancelled.append(stream)
            self._changed.notify()

    def _receive(self) -> None:
        with self._changed:
            arrived, self._arrived = self._arrived, []
            cancelled, self._cancelled = self._cancelled, []
            self._arriving -= sum(1 + len(s.forks) for s in arrived)
            for sequence in arrived:
                self._scheduler.add(sequence)
        if cancelled:
            streams = set(map(id, cancelled))
            for sequence in self._scheduler.everyone():
                if id(sequence.stream) in streams:
                    self._scheduler.remove(sequence)
                    for one in (sequence, *sequence.forks):
                        self._end(one, "cancelled")
                        one.stream.put(Delta("", [], None, "cancelled", one.index))

    def _admit(self) -> None:
        now = time.perf_counter()
        for sequence in self._scheduler.admit():
            if self.runner.has_state:
                try:
                    self.runner.reset(sequence.slot)
                except Exception as error:
                    self._fail([sequence], failure("the model failed", error))
                    continue
            if not sequence.admitted:
                sequence.admitted = now
                self._statistics.queue_time.observe(now - sequence.submitted)
                if not sequence.index:
                    self._statistics.prompt_tokens += len(sequence.request.prompt)

    # The steps

    def _embed(self) -> bool:
        with self._changed:
            if not self._texts:
                return False
            tokens, future = self._texts.pop(0)
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(self.runner.embed(np.array(tokens, np.int32)))
            except Exception as error:
                future.set_exception(failure("the model failed to embed the text", error))
        return True

    def _prefill(self) -> bool:
        work = self._scheduler.next_prefill(self._chunk)
        if work is None:
            return False
        sequence, start, end = work
        tokens = np.array(sequence.tokens[start:end], np.int32)
        pages = self._scheduler.pages_of([sequence])[0]
        try:
            logits = self._checked(self.runner.prefill(tokens, start, pages, sequence.slot), ())
        except Exception as error:
            self._fail([sequence], failure("the model failed", error))
            return True
        drafted = sequence.drafted
        if self._draft is not None:
            draft = self._draft
            if self._try_draft(lambda: draft.prefill(tokens.tolist(), start, self._scheduler, sequence)):
                drafted = end
        self._scheduler.wrote(sequence, end, drafted)
        self._scheduler.serve(sequence, end - start)
        if end == len(sequence.tokens):
            self._advance([sequence], [Guess([])], logits[None, None])
        return True

    def _decode(self) -> bool:
        speculation, more = self._speculation, 1
        if speculation is not None and sum(s.decoding for s in self._scheduler.running) <= speculation.max_batch:
            more += speculation.tokens
        sequences, more = self._scheduler.reserve(more)
        if not sequences:
            return False
        guesses = [Guess([]) for _ in sequences]
        if more > 1:
            if self._draft is None:
                guesses = self._lookup.guess(sequences, more - 1, self._scheduler)
            else:
                draft = self._draft
                self._try_draft(
                    lambda: guesses.__setitem__(slice(None), draft.guess(sequences, more - 1, self._scheduler))
                )
        k = 1 + max(len(g.tokens) for g in guesses)
        tokens = np.zeros(
            (len(sequences), k), np.int32
        )  # behind a row's guesses: written to the cache, and written over later
        for row, s, g in zip(tokens, sequences, guesses, strict=True):
            row[: 1 + len(g.tokens)] = [s.tokens[-1], *g.tokens]
        lengths = np.array([s.held for s in sequences], np.int32)
        slots = np.array([s.slot for s in sequences], np.int32)
        pages = self._scheduler.pages_of(sequences)
        try:
            if k == 1:
                found = self.runner.decode(tokens[:, 0], lengths, pages, slots)
                logits = self._checked(found, (len(sequences),))[:, None]
            else:
                logits = self._checked(self.runner.verify(tokens, lengths, pages, slots), tokens.shape)
        except Exception as error:
            self._fail(sequences, failure("the model failed", error))
            return True
        for s in sequences:
            s.held += 1
        self._advance(sequences, guesses, logits)
        return True

    def _advance(self, sequences: List[Sequence], guesses: List[Guess], logits: Floats) -> None:
        """Choose the next tokens of sequences whose tokens are all held.

        Args:
            sequences: n of them.
            guesses: of each, which the cache holds as well.
            logits: f32 [n, k, vocabulary]: after the last token, and after each guess.
        """
        entries: list[tuple[Sequence, Guess, int]] = []
        for i, (sequence, guess) in enumerate(zip(sequences, guesses, strict=True)):
            entries.append((sequence, guess, i))
            forks, sequence.forks = sequence.forks, []
            entries += [(fork, Guess([]), i) for fork in forks if self._scheduler.start_fork(sequence, fork)]
        rows = [(i, j) for _, guess, i in entries for j in range(len(guess.tokens) + 1)]
        raw = logits[:, 0] if len(rows) == len(logits) else logits[tuple(np.transpose(rows))]
        adjusted = raw
        if any(s.chooser.adjusts for s, _, _ in entries):
            adjusted = np.array(raw)
            row = 0
            for sequence, guess, _ in entries:
                self._adjust(sequence, guess, adjusted[row : row + len(guess.tokens) + 1])
                row += len(guess.tokens) + 1
        steps = [(s.chooser, s.output + j) for s, guess, _ in entries for j in range(len(guess.tokens) + 1)]
        chosen = choose(adjusted, steps).tolist()
        end = 0
        for sequence, guess, _ in entries:
            start, end = end, end + len(guess.tokens) + 1
            if sequence.finished:  # another choice of the request has failed
                continue
            tokens = accepted(sequence, guess, adjusted[start:end], chosen[start:end])
            sequence.held += len(tokens) - 1
            self._statistics.proposed_tokens += len(guess.tokens)
            self._statistics.accepted_tokens += len(tokens) - 1
            top = sequence.request.sampling.logprobs
            probable = (
                None if top is None else [logprobs(raw[start + j], t, top) for j, t in enumerate(tokens) if t >= 0]
            )
            self._give(sequence, tokens, probable)

    def _adjust(self, sequence: Sequence, guess: Guess, logits: Floats) -> None:
        """Penalties, bias and grammar: each row as if the guesses before it were right."""
        chooser, count = sequence.chooser, 0
        if not chooser.adjusts:
            return
        chooser.look_ahead()
        try:
            for row, token in zip(logits, [*guess.tokens, None], strict=True):
                chooser.adjust(row)
                if token is not None:
                    chooser.accept(token)
                    count += 1
        except TilewrightError as error:
            self._fail([sequence], error)
        finally:
            chooser.look_back(guess.tokens[:count])

    def _give(self, sequence: Sequence, tokens: list[int], probable: list[TokenLogprob] | None) -> None:
        """Append tokens to a sequence and hand them to the reader, up to where the output ends."""
        request, chooser = sequence.request, sequence.chooser
        most = self.limit
        if request.max_tokens is not None:
            most = min(most, len(request.prompt) + request.max_tokens)
        text, given, ended = "", 0, False
        reason: FinishReason | None = None
        for token in tokens:
            if token < 0:
                what = "the model's logits are no numbers" if chooser.constraint is None else "the grammar allows none"
                self._fail([sequence], EngineError(f"no token can follow the {len(sequence.tokens)} so far: {what}"))
                return
            sequence.tokens.append(token)
            given += 1
            if token in request.stop_tokens or (token in self.tokenizer.eos and not request.ignore_eos):
                reason = "stop"
                break
            piece, ended = sequence.stops.add(sequence.detokenizer.add((token,)))
            text += piece
            try:
                chooser.accept(token)
            except TilewrightError as error:
                self._fail([sequence], error)
                return
            if ended or (chooser.constraint is not None and chooser.constraint.complete):
                reason = "stop"
                break
            if len(sequence.tokens) >= most:
                reason = "length"
                break
        sequence.held = min(sequence.held, len(sequence.tokens))
        sequence.drafted = min(sequence.drafted, sequence.held)
        if reason is not None and not ended:
            rest, ended = sequence.stops.finish(sequence.detokenizer.finish())
            text += rest
            reason = "stop" if ended else reason
        self._scheduler.serve(sequence, 2 * given)  # as costly as two of a prompt, says the paper on fairness
        self._measure(sequence, given)
        self._put(sequence, Delta(text, tokens[:given], probable and probable[:given], reason, sequence.index))

    def _measure(self, sequence: Sequence, tokens: int) -> None:
        now, statistics = time.perf_counter(), self._statistics
        statistics.generated_tokens += tokens
        if not sequence.emitted:
            statistics.time_to_first_token.observe(now - sequence.submitted)
            if not sequence.index:
                statistics.cached_tokens += sequence.stream.cached_tokens
        else:
            for _ in range(tokens):
                statistics.inter_token.observe((now - sequence.emitted) / tokens)
        sequence.emitted = now

    # How sequences end

    def _put(self, sequence: Sequence, delta: Delta) -> None:
        if delta.finish_reason is not None:
            self._scheduler.remove(sequence)
            self._end(sequence, delta.finish_reason)
        sequence.stream.put(delta)

    def _end(self, sequence: Sequence, reason: str) -> None:
        self._statistics.finished[reason] += 1
        self._statistics.request_time.observe(time.perf_counter() - sequence.submitted)

    def _fail(self, sequences: List[Sequence], error: TilewrightError) -> None:
        """These sequences cannot go on, nor can the other choices of their requests. What their pages hold is not to be relied on."""
        streams = {id(s.stream): s.stream for s in sequences}
        for sequence in [*sequences, *self._scheduler.everyone()]:
            if id(sequence.stream) in streams and not sequence.finished:
                self._scheduler.remove(sequence, keep=sequence not in sequences)
                for one in (sequence, *sequence.forks):
                    self._end(one, "error")
        for stream in streams.values():
            stream.fail(error)

    def _fail_all(self, error: TilewrightError) -> None:
        self._fail(list(self._scheduler.everyone()), error)
        with self._changed:
            texts, self._texts = self._texts, []
        for _, future in texts:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    # The runner

    def _copy_page(self, source: int, target: int) -> None:
        self.runner.copy_page(source, target)
        if self._draft is not None:
            self._draft.runner.copy_page(source, target)

    def _checked(self, logits: Any, shape: tuple[int, ...]) -> Floats:
        found: Floats = np.asarray(logits)
        if found.shape != (*shape, self.runner.vocabulary):
            raise InternalError(f"the model gave logits of shape {found.shape}, not {(*shape, self.runner.vocabulary)}")
        return found

    def _try_draft(self, call: Callable[[], object]) -> bool:
        """Call the draft model; should it fail, go on without: outputs do not depend on it."""
        try:
            call()
        except Exception:
            log.exception("the draft model failed; going on without speculation")
            self._draft = self._speculation = None
            self._scheduler.drafts = False
            return False
        return True


def _fit(name: str, wanted: int | None, most: int) -> int:
    if wanted is None:
        return most
    if not 1 <= wanted <= most:
        raise RequestError(f"option {name} is {wanted}; the model was compiled for 1 to {most}")
    return wanted
