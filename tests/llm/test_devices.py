"""Language models on devices give the CPU's logits and tokens: OpenCL, Vulkan and WebGPU by this machine's
drivers, CUDA, HIP and Metal on simulated devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright as tw

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.devices import need, running
from tests.llm.devices import without_nvrtc
from tests.llm.small_library import check_bits, learned, library, trained
from tests.llm.small_tokenizer import tokenizer
from tilewright.cli.llm import command
from tilewright.errors import ArtifactError, CompileError, DeviceError
from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Request
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library, open_library
from tilewright.runtime.device_library import DeviceLibrary
from tilewright.runtime.simulated_device import simulated_driver

TOKENS = np.random.default_rng(1).integers(5, tokenizer().vocabulary, 200).astype(np.int32)
BOUNDS = {"context": 192, "chunk": 32, "max_batch": 4}
FORMS = {
    "f32": ("none", LibraryOptions(**BOUNDS, cache_dtype="float32", precision=None)),
    "bf16": ("none", LibraryOptions(**BOUNDS)),
    "int4": ("int4_g32", LibraryOptions(**BOUNDS, cache_dtype="int8", prompt_factors="int8")),
}
ERRORS = {"f32": 1e-5, "bf16": 0.02, "int4": 0.04}
"""The largest difference from the CPU's logits, relative to the greatest of them. Operands are rounded to
bf16 or 8 bits, where a difference in the last bit of a sum before it may become one of rounding.
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("llama"))


Pair = tuple[str, LibraryRunner, LibraryRunner]


QUICK = "cuda-bf16", "opencl-int4"
TARGETS = "cuda", "hip", "metal", "opencl", "vulkan", "webgpu"
OTHERS = {f"{target}-{form}" for target in TARGETS for form in FORMS} - {*QUICK}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in sorted(OTHERS)]


@pytest.fixture(scope="module", params=[*QUICK, *SLOW])
def pair(request: pytest.FixtureRequest, folder: Path) -> Iterator[Pair]:
    """A form, and its runners on the CPU and on a device."""
    target, form = request.param.split("-")
    scheme, options = FORMS[form]
    need(target)
    with without_nvrtc():
        made = library(folder, scheme, options, target=target)
    with running(made) as there, library(folder, scheme, options) as here:
        yield form, LibraryRunner(here), LibraryRunner(there)


def near(found: Any, wanted: Any, form: str) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=ERRORS[form] * np.abs(wanted).max())


def test_logits(pair: Pair) -> None:
    """Prompts in chunks, decoding of two sequences, a copied page, several rows of a sequence, embeddings."""
    form, *runners = pair
    pages = np.array([[3, 7, 1], [5, 2, 6]], np.int32)
    found: list[list[Any]] = []
    for r in runners:
        rows: list[Any] = []
        for start, stop in ((0, 20), (20, 52), (52, 70)):
            rows.append(r.prefill(TOKENS[start:stop], start, pages[0, : -(-stop // 64)], 0))
        rows.append(r.prefill(TOKENS[100:110], 0, pages[1, :1], 1))
        for step in range(3):
            lengths, slots = np.array([70 + step, 10 + step], np.int32), np.arange(2, dtype=np.int32)
            rows.append(r.decode(TOKENS[[70 + step, 110 + step]], lengths, pages[:, :2], slots))
        r.copy_page(7, 4)
        r.decode(TOKENS[:1], np.array([72], np.int32), pages[:1], np.zeros(1, np.int32))
        again = np.arange(73, 77, dtype=np.int32)
        rows.append(r.decode(TOKENS[again], again, np.array([[3, 4]] * 4, np.int32), np.zeros(4, np.int32)))
        found.append([*rows, r.embed(TOKENS[:40])])
    for here, there in zip(*found, strict=True):
        near(there, here, form)


def test_rows_and_chunks_do_not_matter(pair: Pair) -> None:
    check_bits(pair[2], (70, 21), (9, 32), 3)


def requests() -> list[Request]:
    """Beginnings of the text that the model knows; more of them than run at once, and than pages hold."""
    sampling = [{"temperature": 0}] * 3 + [
        {"seed": 1, "top_p": 0.8},
        {"seed": 2, "temperature": 0.8, "top_k": 30},
        {"seed": 3, "frequency_penalty": 0.5, "min_p": 0.02},
    ]
    return [
        Request(
            learned()[:n].tolist(), SamplingParameters(**s), max_tokens=25 if i % 2 else 10, ignore_eos=True
        )
        for i, (n, s) in enumerate(zip((70, 50, 66, 60, 54, 1), sampling, strict=True))
    ]


def outputs(runner: LibraryRunner, options: EngineOptions) -> list[list[int]]:
    engine = Engine(runner, tokenizer(), options)
    first, *others = requests()
    found = [engine.submit(first).collect()[0].tokens]
    streams = [engine.submit(r) for r in others]
    found += [stream.collect()[0].tokens for stream in streams]
    stats = engine.stats()
    assert stats.cached_tokens > 0 and (options.pages is None or stats.preemptions + stats.evictions > 0)
    return found


def test_engines_give_the_same_tokens(pair: Pair) -> None:
    """Greedy requests get the CPU's tokens, and seeded ones where operands are not rounded. They get the same
    with few pages and with guesses.
    """
    form, here, there = pair
    found = outputs(there, EngineOptions())
    wanted = outputs(here, EngineOptions())
    assert found[:3] == wanted[:3] and (form != "f32" or found == wanted)
    assert outputs(there, EngineOptions(pages=5)) == found
    if form != "bf16":
        assert outputs(there, EngineOptions(pages=5, speculation=Speculation(adaptive=False))) == found


def test_greedy_tokens_are_the_cpus(pair: Pair) -> None:
    """80 tokens after a prompt are those of the CPU and of the text that the model knows. The most probable
    token leads by more than devices differ: its lead is at least the largest difference of two logits.
    """
    form, here, there = pair
    prompt, count = learned()[100:140], 80
    request = Request(prompt.tolist(), SamplingParameters(0), max_tokens=count, ignore_eos=True)
    found, wanted = (Engine(r, tokenizer()).submit(request).collect()[0].tokens for r in (there, here))
    assert found == wanted == learned()[140 : 140 + count].tolist()
    pages, slot = np.arange(2, dtype=np.int32), np.zeros(1, np.int32)
    for start in (0, 32):
        logits = here.prefill(prompt[start : start + 32], start, pages, 0)
    for length, token in enumerate(wanted, len(prompt)):
        second, first = np.sort(logits)[-2:]
        assert first - second > 2 * ERRORS[form] * np.abs(logits).max()
        at = np.array([length], np.int32)
        logits = here.decode(np.array([token], np.int32), at, pages[None], slot)[0]


def test_bytes_of_a_step(pair: Pair) -> None:
    """A step copies the tokens, lengths and tables of rows, and the most probable tokens back. Rows with a
    temperature are drawn by a second call, which copies their parameters. Nothing is allocated, and chunks of
    prompts, too, copy tokens only.
    """
    _, _, runner = pair
    if not isinstance(runner.library, DeviceLibrary) or runner.library.api != "cuda":
        pytest.skip("the driver does not count")
    driver = simulated_driver("cuda")
    for drawn in (0, 1, 3):
        engine = Engine(runner, tokenizer())
        for i in range(3):
            sampling = SamplingParameters(float(i < drawn), seed=1, top_k=20)
            engine.submit(Request(TOKENS[i : i + 9].tolist(), sampling, max_tokens=20, ignore_eos=True))
        for _ in range(6):
            engine.step()
        driver.reset()
        engine.step()
        counted = driver.counters()
        rows, pages = 3, 1
        assert counted["downloaded"] == 4 * (rows + drawn) and counted["downloads"] == 1 + (drawn > 0)
        assert counted["uploaded"] == rows * (4 + 4 + 4 * pages) + drawn * (4 + 5 * 4)
        assert counted["allocations"] == 0
        engine.stop()
    engine = Engine(runner, tokenizer())
    engine.submit(Request(TOKENS[80:144].tolist(), SamplingParameters(0), max_tokens=2, ignore_eos=True))
    engine.step()
    driver.reset()
    engine.step()
    assert driver.counters()["downloaded"] == 4
    engine.stop()


def test_checked_kernels_have_no_faults(folder: Path) -> None:
    """A prompt and a step on a simulated device that finds races and accesses out of bounds."""
    scheme, options = FORMS["int4"]
    need("cuda")
    with without_nvrtc():
        made = library(folder, scheme, options, target="cuda")
    with running(made, checked=True) as checked:
        runner, pages = LibraryRunner(checked), np.array([[3, 1], [2, 0]], np.int32)
        for row in range(2):
            runner.prefill(TOKENS[:10], 0, pages[row, :1], row)
        engine = Engine(runner, tokenizer())
        for request in requests()[3:]:
            engine.submit(request)
        for _ in range(6):
            engine.step()
        assert engine.stats().generated_tokens > 3
        engine.stop()


def test_a_missing_driver_is_named(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = pair[2].library
    if not isinstance(library, DeviceLibrary):
        pytest.skip("wgpu looks for drivers of WebGPU")
    monkeypatch.setenv(f"TILEWRIGHT_{library.api.upper()}_DRIVER", "/nowhere/driver.so")
    path = library.save(tmp_path / "model.so")
    with pytest.raises(DeviceError, match=r"/nowhere/driver\.so was not found"):
        open_library(path)
    if library.api == "cuda":  # The library's own runtime opens the simulated driver.
        with pytest.raises(ArtifactError, match="tokenizer"):
            open_library(path, simulate=True)


def test_an_unknown_target_is_told(folder: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "model.so")
    found = CliRunner().invoke(command, ["compile", str(folder), "-o", output, "--target", "nowhere"])
    assert isinstance(found.exception, CompileError)
    assert "unknown target 'nowhere'; known: this processor and x86-64: cpu" in str(found.exception)


def test_a_library_for_webgpu_has_its_weights_beside_it(folder: Path, tmp_path: Path) -> None:
    need("webgpu")
    path = tmp_path / "small.tar"
    options = ["--context-window-size", "64", "--prefill-chunk-size", "32", "--max-batch-size", "1"]
    done = CliRunner().invoke(
        command, ["compile", str(folder), "-o", str(path), "--target", "webgpu", *options]
    )
    assert done.exit_code == 0, done.output
    assert path.with_suffix(".weights").exists()
    runner = LibraryRunner(tw.load(path))
    token = runner.prefill(TOKENS[:9], 0, np.array([1], np.int32), 0)
    compiled = compile_library(folder, LibraryOptions(context=64, chunk=32, max_batch=1))
    wanted = LibraryRunner(compiled).prefill(TOKENS[:9], 0, np.array([1], np.int32), 0)
    near(token, wanted, "bf16")
