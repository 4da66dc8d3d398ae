"""`Engine`: serves many requests to one model at the same time."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import abc
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...errors import EngineError, OverloadedError, RequestError, TilewrightError
from ..runner import Floats, Runner
from ..tokenizer import Detokenizer, Tokenizer
from .adapters import Adapters
from .draft_model import DraftModel
from .outputs import Outputs
from .replies import Replies
from .sampling import Sampler, seed_of_choice
from .scheduler import Scheduler
from .sequence import Sequence
from .speculative import Speculation
from .statistics import Statistics
from .steps import Steps
from .stored_prefixes import StoredPrefixes
from .stream import Request, Stream, failure

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineOptions:
    """Limits and features of an engine."""

    queue: int = 1024
    """The most choices that may wait in the queue; a request that would exceed it is refused."""
    max_batch: int | None = None
    """The most choices that run at the same time; None: as many as the model was compiled for."""
    pages: int | None = None
    """Pages of the KV cache to use; None: all."""
    chunk: int | None = None
    """The most tokens of a prompt that one step computes. A smaller value shortens other requests' waits and
    lengthens the computation of prompts. None: as many as the model was compiled for.
    """
    prefix_cache: bool = True
    """Whether finished requests' pages are kept for later prompts with the same beginning."""
    replies: bool = True
    """Whether replies are prefilled while the engine is idle, so that the next turns of their conversations
    find them in the prefix cache. Needs `prefix_cache`.
    """
    page_folder: Path | None = None
    """The folder of files in which pages of the prefix cache are kept when memory is needed, and over
    restarts; None: they are not. The same model with the same settings finds them again.
    """
    page_folder_bytes: int = 10**10
    """The most bytes of these files."""
    speculation: Speculation | None = None
    """How tokens are guessed, for the model to check; None: they are not."""
    seed: int | None = None
    """Seed of the generator that draws seeds for requests without one; None: it is drawn at random."""


class Engine:
    """Serves requests with continuous batching (Orca, Yu et al. 2022) over a paged KV cache (Kwon et al.
    2023).

    Each step adds one or several tokens to every running choice, and computes one chunk of one prompt
    (Sarathi, Agrawal et al. 2024).

    `submit`, `embed` and `stats` may be called from any thread. Steps run in the thread that `start` creates,
    in the thread that reads a stream, or in `step`. An error of the runner fails only the requests of that
    call.
    """

    def __init__(self, runner: Runner, tokenizer: Tokenizer, options: EngineOptions | None = None) -> None:
        """Prepare an engine; `start` or `step` runs it.

        Args:
            runner: The model.
            tokenizer: The model's tokenizer.
            options: Limits and features; None: the defaults.

        Raises:
            RequestError: The options do not fit the model.
            ArtifactError: The tokenizer cannot give the bytes of single tokens.
        """
        tokenizer.bytes_of(0)  # builds the table of all tokens now, which takes a moment
        self.runner = runner
        self.tokenizer = tokenizer
        self.options = options = options or EngineOptions()
        window = runner.window
        chunk = self._chunk = _fit("chunk", options.chunk, runner.chunk)
        self._scheduler = Scheduler(
            pages=_fit("pages", options.pages, runner.pages),
            slots=_fit("max_batch", options.max_batch, runner.max_batch),
            context=runner.context,
            share=not runner.has_state,
            keep=options.prefix_cache,
            copy_page=runner.copy_page,
            begin=self._begin,
            window=window,
            chunk=chunk,
        )
        self.adapters = Adapters(runner.adapters)
        """The low-rank adapters that requests may choose."""
        draft = None
        if options.speculation is not None:
            if runner.has_state:
                raise RequestError(
                    "the model keeps state that cannot be rolled back: it cannot be used with speculation"
                )
            if options.speculation.draft is not None:
                if runner.sight is not None:
                    raise RequestError("a draft model does not see the images that the model takes")
                draft = DraftModel(options.speculation.draft, whole=not options.speculation.adaptive)
                draft.check(runner)
        self._statistics = Statistics(pages=self._scheduler.pool.size)
        self._outputs = Outputs(self._scheduler, self._statistics, self.adapters, runner.vocabulary)
        self._steps = Steps(
            runner, self._scheduler, self._outputs, self._statistics, chunk, options.speculation, draft
        )
        self._replies: Replies | None = None
        if self._scheduler.share and options.prefix_cache and options.replies and not runner.uniform:
            self._replies = Replies(self._scheduler.cache, chunk, self._steps.prefill_idle, window)
            self._outputs.replies = self._replies
        if options.page_folder is not None:
            self._scheduler.stored = self._stored(options.page_folder)
        self._random = random.Random(options.seed)
        self._order = 0
        self._stepping = threading.RLock()
        self._changed = threading.Condition()  # guards the attributes below
        self._arrived: list[Sequence] = []
        self._arriving = 0  # choices that neither wait nor run yet, including those still to be forked
        self._cancelled: list[Stream] = []
        self._texts: list[tuple[abc.Callable[[], Floats], Future[Floats]]] = []
        self._thread: threading.Thread | None = None
        self._state: str = ""  # why requests are refused; empty while they are accepted

    def _stored(self, folder: Path) -> StoredPrefixes:
        access = self.runner.page_access
        why = (
            "the model keeps state beside its pages" if not self._scheduler.share
            else "the prefix cache is off" if not self.options.prefix_cache
            else "the model's memory is not this process's own" if access is None
            else ""
        )  # fmt: skip
        if why or access is None:
            raise RequestError(f"pages cannot be stored in {folder}: {why}")
        return StoredPrefixes(self._scheduler.cache, access, folder, self.options.page_folder_bytes)

    # Methods for callers.

    @property
    def limit(self) -> int:
        """The most tokens of prompt and output together."""
        return self._scheduler.limit

    def submit(self, request: Request) -> Stream:
        """Queue a request.

        Raises:
            RequestError: The request can never be served.
            OverloadedError: The queue is full, or the engine is being stopped.
        """
        self.check(request)
        constraints = [
            request.grammar.fork() if request.grammar is not None else None for _ in range(request.sequences)
        ]
        stream = Stream(request, self._cancel, self._step_unless_running)
        now = time.perf_counter()
        with self._changed:
            if self._state:
                raise OverloadedError(f"the engine accepts no more requests: {self._state}")
            waiting = self._scheduler.waiting + self._arriving
            if waiting + request.sequences > self.options.queue:
                raise OverloadedError(
                    f"the queue is full ({waiting} of {self.options.queue} choices wait): try again later"
                )
            self._order += 1
            requested_seed = request.sampling.seed
            seed = self._random.getrandbits(64) if requested_seed is None else requested_seed
            sampling = request.sampling if request.beams is None else replace(request.sampling, temperature=0)
            ends = request.ends(self.tokenizer.eos)
            sequences = []
            for index, constraint in enumerate(constraints):
                sampler = Sampler(
                    sampling,
                    request.prompt,
                    seed_of_choice(seed, index),
                    constraint,
                    request.min_tokens,
                    sorted(ends),
                )
                detokenizer = Detokenizer(self.tokenizer, shown=request.shown)
                sequence = Sequence(request, stream, index, self._order, sampler, detokenizer, ends)
                sequence.uniform = self.runner.uniform
                sequence.submitted = now
                sequences.append(sequence)
            adapter = self.adapters.taken(request.adapter, request.sequences)
            for sequence in sequences:
                sequence.adapter = adapter
            if self._scheduler.share or request.beams is not None:
                sequences[0].forks = sequences[1:]
                del sequences[1:]
            self._arrived += sequences
            self._arriving += request.sequences
            self._statistics.requests += 1
            self._changed.notify()
        return stream

    def check(self, request: Request) -> None:
        """Check a request against the model, as `submit` does.

        Raises:
            RequestError: The request can never be served.
        """
        request.check(self.runner.vocabulary, self.limit, self.runner.source)
        if request.images is not None:
            if self.runner.sight is None:
                raise RequestError("the model takes no images")
            request.images.check(len(request.prompt), self._chunk)
        beams = request.beams
        if beams is None:
            return
        beams.check(len(self._scheduler.tables))
        if self.runner.has_state and self.runner.source_kind is None:
            raise RequestError("the model keeps state that cannot be copied: it has no beam search")
        tokens = request.length(self.limit)
        needed, there = beams.width * self._scheduler.pages_for(tokens), self._scheduler.pool.size
        if needed > there:
            raise RequestError(
                f"a beam search of width {beams.width} over {tokens} tokens needs {needed} pages of the KV "
                f"cache, which has {there}: lower max_tokens or the width"
            )

    def embed(self, tokens: abc.Sequence[int]) -> Floats:
        """Compute the embedding of a text, f32 [hidden].

        Args:
            tokens: The text's tokens, at least one and at most as many as the model's context.

        Raises:
            RequestError: The text has no token, more than the model accepts, or one outside of its
                vocabulary.
            OverloadedError: The queue is full, or the engine is being stopped.
            EngineError: The model failed.
        """
        future = self.submit_embedding(tokens)
        while not future.done() and self._step_unless_running() is not None:
            pass
        return future.result()

    def submit_embedding(self, tokens: abc.Sequence[int]) -> Future[Floats]:
        """Queue a text to be embedded as `embed` does, without waiting for the result.

        Args:
            tokens: The text's tokens, at least one and at most as many as the model's context.

        Returns:
            The future embedding, float32 of shape (hidden). It fails with `EngineError` if the model fails.

        Raises:
            RequestError: The text has no token, more than the model accepts, or one outside of its
                vocabulary.
            OverloadedError: The queue is full, or the engine is being stopped.
        """
        self._check_text(tokens)
        ids = np.array(tokens, np.int32)
        return self._submit_text(lambda: self.runner.embed(ids))

    def submit_score(self, tokens: abc.Sequence[int], types: abc.Sequence[int]) -> Future[Floats]:
        """Queue a text for the classifier, without waiting for the result.

        Args:
            tokens: The text's tokens, at least one and at most as many as the model's context.
            types: The number of each token's segment.

        Returns:
            The future logits, float32 of shape (labels). It fails with `EngineError` if the model fails.

        Raises:
            RequestError: The text has no token, more than the model accepts, or one outside of its
                vocabulary.
            OverloadedError: The queue is full, or the engine is being stopped.
        """
        self._check_text(tokens)
        ids, segments = np.array(tokens, np.int32), np.array(types, np.int32)
        return self._submit_text(lambda: self.runner.score(ids, segments))

    def _check_text(self, tokens: abc.Sequence[int]) -> None:
        if not 0 < len(tokens) <= self.runner.context:
            raise RequestError(f"the text has {len(tokens)} tokens; it must have 1 to {self.runner.context}")
        if not 0 <= min(tokens) <= max(tokens) < self.runner.vocabulary:
            raise RequestError(f"the text has a token outside the model's 0 to {self.runner.vocabulary - 1}")

    def _submit_text(self, compute: abc.Callable[[], Floats]) -> Future[Floats]:
        future: Future[Floats] = Future()
        with self._changed:
            if self._state:
                raise OverloadedError(f"the engine accepts no more requests: {self._state}")
            if len(self._texts) >= self.options.queue:
                raise OverloadedError(
                    f"the queue is full ({len(self._texts)} texts wait to be computed): try again later"
                )
            self._texts.append((compute, future))
            self._changed.notify()
        return future

    def stats(self) -> Statistics:
        """Return counts and times since the start, and the current load."""
        scheduler, statistics = self._scheduler, self._statistics.copy()
        statistics.running = len(scheduler.running)
        statistics.waiting = scheduler.waiting + self._arriving
        statistics.pages_kept = scheduler.cache.idle
        statistics.pages_used = scheduler.pool.size - scheduler.pool.free - statistics.pages_kept
        statistics.preemptions = scheduler.preemptions
        statistics.evictions = scheduler.cache.evicted
        statistics.pages_released = scheduler.released
        if self._replies is not None:
            statistics.reply_tokens = self._replies.computed
        if (stored := scheduler.stored) is not None:
            statistics.pages_written, statistics.pages_read = stored.written, stored.read
            statistics.pages_refused = stored.refused
        return statistics

    def start(self) -> None:
        """Run steps in a thread until `stop`."""
        with self._changed:
            if self._thread is None:
                self._state = ""
                self._thread = threading.Thread(target=self._run, name="tilewright-engine", daemon=True)
                self._thread.start()

    def stop(self, drain: bool = False, timeout: float | None = None) -> None:
        """End the thread.

        New requests are refused at once. Unfinished requests are completed first if `drain` is set; otherwise
        they fail.

        Args:
            drain: Whether unfinished requests are completed first.
            timeout: The most seconds to wait for them if there is a thread; None: without a limit.
        """
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
            if self._scheduler.stored is not None:
                self._scheduler.stored.write_all()

    def step(self) -> bool:
        """Run one step: a token for each running choice, and a chunk of one prompt. Return whether there was
        work.
        """
        with self._stepping:
            try:
                self._receive()
                worked = self._embed()
                self._admit()
                worked = self._steps.decode() or worked
                worked = self._steps.prefill() or worked or bool(self._scheduler.running)
                self._statistics.steps += worked
                if not worked and self._replies is not None and not self._state:
                    worked = self._replies.step()
            except Exception as error:
                self._fail_all(failure("the engine failed", error))
                raise
            return worked

    # Exchange between callers and steps.

    @property
    def _idle(self) -> bool:
        return not (self._arrived or self._texts or self._scheduler.running or self._scheduler.waiting)

    @property
    def _busy(self) -> bool:
        """Whether a step has work: requests, or replies to compute ahead."""
        return not self._idle or (self._replies is not None and self._replies.waiting and not self._state)

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                self._changed.notify_all()  # wakes a `stop` that waits for an idle engine
                self._changed.wait_for(lambda: self._busy or self._cancelled or self._thread is not me)
                if self._thread is not me:
                    return
            try:
                self.step()
            # a defect of the engine: its requests have failed already, and later ones are served
            except Exception:
                log.exception("a step of the engine failed")

    def _step_unless_running(self) -> bool | None:
        """Run a step for a waiting caller if no thread does. Return whether there was work; None if a thread
        runs.
        """
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
            for sequence in self._scheduler.all_sequences():
                if id(sequence.stream) in streams:
                    self._outputs.cancel(sequence)

    def _admit(self) -> None:
        now = time.perf_counter()
        for sequence in self._scheduler.admit():
            if self.runner.has_state:
                try:
                    self.runner.reset(sequence.slot)
                except Exception as error:
                    self._outputs.fail([sequence], failure("the model failed", error))
                    continue
            if not sequence.admitted:
                sequence.admitted = now
                sequence.stream.admitted = sequence.stream.admitted or now
                self._statistics.queue_time.observe(now - sequence.submitted)
                if not sequence.index:
                    self._statistics.prompt_tokens += len(sequence.request.prompt)

    def _begin(self, sequence: Sequence) -> None:
        if self.runner.adapters is not None:
            self.runner.adapters.use(sequence.slot, sequence.adapter_number)
        if self.runner.sight is not None:
            images = sequence.request.images
            self.runner.sight.shift(sequence.slot, 0 if images is None else images.offset)

    def _embed(self) -> bool:
        with self._changed:
            if not self._texts:
                return False
            compute, future = self._texts.pop(0)
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(compute())
            except Exception as error:
                future.set_exception(failure("the model failed on the text", error))
        return True

    def _fail_all(self, error: TilewrightError) -> None:
        self._outputs.fail(list(self._scheduler.all_sequences()), error)
        with self._changed:
            texts, self._texts = self._texts, []
        for _, future in texts:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)


def _fit(name: str, wanted: int | None, most: int) -> int:
    if wanted is None:
        return most
    if not 1 <= wanted <= most:
        raise RequestError(f"option {name} is {wanted}; the model was compiled for 1 to {most}")
    return wanted
