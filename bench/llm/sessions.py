"""The sessions in an engine's process: the loaded model and its measurements. Imports are local, because a
peer's environment has only the peer and NumPy.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .model import Size

Array = np.ndarray[Any, Any]
Prompts = list[list[int]]


class Session:
    """A model that an engine has loaded."""

    modules: tuple[str, ...]
    """Packages imported before the time of loading is measured."""

    def __init__(self, file: Path, size: Size, threads: int) -> None:
        raise NotImplementedError

    def prefill(self, prompts: Prompts, steps: int) -> list[float]:
        """Seconds from a new prompt to its first token."""
        raise NotImplementedError

    def decode(self, prompts: Prompts, steps: int) -> list[float]:
        """Seconds of each of `steps` steps, which extend every sequence by one greedy token; all prompts are
        answered together.
        """
        raise NotImplementedError

    def greedy(self, prompt: list[int], steps: int) -> list[int]:
        """The first tokens of the answer."""
        raise NotImplementedError

    def logits(self, prompt: list[int], following: list[int]) -> Array | None:
        """The logits after the prompt and after each following token, [1 + following, vocabulary]; None if
        the engine does not return them.
        """
        return None


class _Stepwise(Session):
    """An engine that is called once per step. Between turns it keeps the prompts that it has read."""

    _held: Prompts = []
    _first: Array

    def fill(self, number: int, prompt: list[int]) -> Array:
        """Replace sequence `number` by a prompt; returns the logits [vocabulary] after it."""
        raise NotImplementedError

    def step(self, tokens: Array, length: int) -> Array:
        """The logits [batch, vocabulary] after one more token of sequences 0, 1, ... of `length` tokens;
        longer sequences are cut first.
        """
        raise NotImplementedError

    def prefill(self, prompts: Prompts, steps: int) -> list[float]:
        self._held = []
        start = time.perf_counter()
        self.fill(0, prompts[0]).argmax()
        return [time.perf_counter() - start]

    def decode(self, prompts: Prompts, steps: int) -> list[float]:
        if self._held != prompts:
            self._held = []
            self._first = np.array([self.fill(i, p).argmax() for i, p in enumerate(prompts)], np.int32)
            self._held = prompts
        tokens, times = self._first, []
        for i in range(steps + 1):  # the first step is not measured
            start = time.perf_counter()
            tokens = self.step(tokens, len(prompts[0]) + i).argmax(-1).astype(np.int32)
            times.append(time.perf_counter() - start)
        return times[1:]

    def logits(self, prompt: list[int], following: list[int]) -> Array:
        self._held = []
        rows = [self.fill(0, prompt)]
        for i, token in enumerate(following):
            rows.append(self.step(np.array([token], np.int32), len(prompt) + i)[0])
        return np.stack(rows)

    def greedy(self, prompt: list[int], steps: int) -> list[int]:
        self._held = []
        tokens = [int(self.fill(0, prompt).argmax())]
        while len(tokens) < steps:
            tokens.append(
                int(self.step(np.array(tokens[-1:], np.int32), len(prompt) + len(tokens) - 1).argmax())
            )
        return tokens


class Tilewright(_Stepwise):
    modules = ("tilewright.llm.library", "tilewright.runtime.library", "tokenizers")

    def __init__(self, file: Path, size: Size, threads: int) -> None:
        from tilewright.llm.library import open_library

        self.size = size
        self.runner, _, _ = open_library(file, threads=threads)

    def _pages(self, number: int, length: int) -> Array:
        """The pages of a sequence: all pages, unless there are several sequences, which are short."""
        own = -(-(length + self.size.steps + 2) // 64)
        return np.arange(number * own, (number + 1) * own, dtype=np.int32)

    def fill(self, number: int, prompt: list[int]) -> Array:
        tokens, pages = np.array(prompt, np.int32), self._pages(number, len(prompt))
        for start in range(0, len(tokens), self.runner.chunk):
            logits = self.runner.prefill(tokens[start : start + self.runner.chunk], start, pages, number)
        self._prompt = len(prompt)
        return logits

    def step(self, tokens: Array, length: int) -> Array:
        batch = len(tokens)
        pages = np.stack([self._pages(i, self._prompt) for i in range(batch)])
        lengths = np.full(batch, length, np.int32)
        return self.runner.decode(tokens, lengths, pages, np.arange(batch, dtype=np.int32))


class LlamaCpp(_Stepwise):
    modules = ("llama_cpp",)

    def __init__(self, file: Path, size: Size, threads: int) -> None:
        import llama_cpp as api

        self.api = api
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(str(file).encode(), api.llama_model_default_params())
        options = api.llama_context_default_params()
        options.n_ctx, options.n_seq_max, options.kv_unified = size.cached, size.users, True
        options.n_threads = options.n_threads_batch = threads
        self.context = api.llama_init_from_model(self.model, options)
        if not self.context:
            raise RuntimeError("llama.cpp makes no context for this model")
        self.vocabulary, self.most = size.vocabulary, options.n_batch
        self.batch = api.llama_batch_init(self.most, 0, 1)
        self.memory = api.llama_get_memory(self.context)

    def _run(self, entries: list[tuple[int, int, int]], wanted: int) -> Array:
        """Run tokens at positions of sequences; returns the logits after the last `wanted` of them."""
        batch = self.batch
        batch.n_tokens = len(entries)
        for i, (token, position, sequence) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = i >= len(entries) - wanted
        status = self.api.llama_decode(self.context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        if not wanted:
            return np.empty((0, self.vocabulary), np.float32)
        found = self.api.llama_get_logits(self.context)
        pointer = ctypes.cast(found, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (wanted, self.vocabulary)).copy()

    def fill(self, number: int, prompt: list[int]) -> Array:
        if number == 0:
            self.api.llama_memory_clear(self.memory, False)
        for start in range(0, len(prompt), self.most):
            piece = prompt[start : start + self.most]
            last = start + len(piece) == len(prompt)
            logits = self._run([(token, start + i, number) for i, token in enumerate(piece)], int(last))
        return logits[0]

    def step(self, tokens: Array, length: int) -> Array:
        for sequence in range(len(tokens)):
            self.api.llama_memory_seq_rm(self.memory, sequence, length, -1)
        return self._run([(int(token), length, i) for i, token in enumerate(tokens)], len(tokens))


class OpenVino(Session):
    modules = ("openvino_genai",)

    def __init__(self, file: Path, size: Size, threads: int) -> None:
        import openvino_genai

        self.pipeline = openvino_genai.LLMPipeline(str(file), "CPU", INFERENCE_NUM_THREADS=threads)

    def _answer(self, prompts: Prompts, tokens: int) -> Any:
        import openvino
        import openvino_genai

        ids = np.array(prompts, np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        options = openvino_genai.GenerationConfig()
        options.max_new_tokens, options.ignore_eos, options.do_sample = tokens, True, False
        return self.pipeline.generate(inputs, options)

    def prefill(self, prompts: Prompts, steps: int) -> list[float]:
        return [self._answer(prompts, 1).perf_metrics.get_ttft().mean / 1e3]

    def decode(self, prompts: Prompts, steps: int) -> list[float]:
        times = self._answer(prompts, steps + 2).perf_metrics.raw_metrics.m_new_token_times
        return (np.diff(times)[1:] / 1e3).tolist()

    def greedy(self, prompt: list[int], steps: int) -> list[int]:
        return list(self._answer([prompt], steps).tokens[0])


class Machine:
    """The lower bounds for all engines: a sequential read of as many bytes as a decoding step must read, and
    products without operands from memory.
    """

    def __init__(self, size: int, threads: int) -> None:
        from tilewright.tools.roofline import peaks, reader

        self.size, self.read, self.peaks = size, reader(threads, size), peaks(threads)

    def turn(self, seconds: float) -> dict[str, list[float]]:
        """Measurements during `seconds` for each kind: "bandwidth" in bytes/s, and peaks of products by their
        type in operations/s.
        """
        kinds = {"bandwidth": lambda: self.size / self.read(), **self.peaks}
        found: dict[str, list[float]] = {name: [] for name in kinds}
        for name, measure in kinds.items():
            end = time.perf_counter() + seconds
            while not found[name] or time.perf_counter() < end:
                found[name].append(measure())
        return found


def serving(session: type[Session], file: Path, size: Size, threads: int, prompt: list[int]) -> Iterator[Any]:
    """Child process (see `bench.worker`).

    The first answers are the seconds of importing and, once the model is loaded and has begun to answer
    `prompt`, seconds and memory; then the results of the session's methods, by name.
    """
    start = time.perf_counter()
    for module in session.modules:
        importlib.import_module(module)
    imported = time.perf_counter()
    yield {"import_seconds": imported - start, "baseline_bytes": memory()["VmRSS"]}
    start = time.perf_counter()
    loaded = session(file, size, threads)
    ready = time.perf_counter()
    loaded.greedy(prompt, 2)
    answered = time.perf_counter()
    loaded.decode([prompt], size.steps)
    found = memory()
    answer: Any = {
        "load_seconds": ready - start,
        "first_seconds": answered - ready,
        "peak_bytes": found["VmHWM"],
        "own_bytes": found["RssAnon"],
        "mapped_bytes": found["RssFile"],
    }
    while True:
        method, *arguments = yield answer
        answer = getattr(loaded, method)(*arguments)


def bounding(size: int, threads: int) -> Iterator[Any]:
    """Child process: `Machine`."""
    floor = Machine(size, threads)
    answer = None
    while True:
        question = yield answer
        answer = floor.turn(question)


def memory() -> dict[str, int]:
    """Bytes of this process: resident ("VmRSS"), at most so far ("VmHWM"), of them its own ("RssAnon") and
    pages of mapped files ("RssFile").
    """
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines() if "kB" in line)
    return {name.rstrip(":"): int(value) * 1024 for name, value, *_ in lines}
