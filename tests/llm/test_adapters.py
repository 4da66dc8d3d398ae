"""Low-rank adapters: a library with several equals PEFT with one of them, and a merged checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.numpy import save_file  # noqa: E402

from tests.llm.small_library import check_bits, checkpoint  # noqa: E402
from tests.llm.small_tokenizer import tokenizer  # noqa: E402
from tilewright.cli.llm import command  # noqa: E402
from tilewright.errors import CompileError, WeightsError  # noqa: E402
from tilewright.llm.engine.engine import Engine  # noqa: E402
from tilewright.llm.engine.sampling import SamplingParameters  # noqa: E402
from tilewright.llm.engine.stream import Request  # noqa: E402
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library  # noqa: E402
from tilewright.llm.memory import planned  # noqa: E402
from tilewright.llm.weights import Conversion, convert, merged, open_checkpoint, read_adapter  # noqa: E402

every_isa = pytest.mark.every_isa
RANK = 8
OPTIONS = LibraryOptions(
    context=128, chunk=64, max_batch=32, speculated=2, cache_dtype="float32", precision=None, max_adapters=4,
    max_adapter_rank=RANK,
)  # fmt: skip
ATTENTION = ("self_attn.q_proj", "self_attn.v_proj")
ALL = (
    *ATTENTION, "self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
SIZES = {"k_proj": (32, 64), "v_proj": (32, 64), "gate_proj": (128, 64), "up_proj": (128, 64)}
SIZES |= {"down_proj": (64, 128), "q_proj": (64, 64), "o_proj": (64, 64)}
KINDS: list[tuple[Sequence[str], dict[str, Any]]] = [
    (ATTENTION, {}),
    (ALL, {"target_modules": "all-linear", "r": RANK, "use_rslora": True}),
    (ALL[3:], {"target_modules": r".*\.(o_proj|mlp\.\w+_proj)", "rank_pattern": {"down_proj": 2}}),
    (ALL, {"alpha_pattern": {r"layers\.1\.mlp\.up_proj": 3, "k_proj": 20}, "lora_alpha": 7}),
]
"""Modules and settings of the four adapters."""


def write_adapter(folder: Path, seed: int, modules: Sequence[str], **settings: Any) -> Path:
    """Write an adapter of the small Llama's modules as PEFT does, and return its folder."""
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "small/llama",
        "bias": "none",
        "use_dora": False,
    }
    config |= {
        "r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.1,
        "modules_to_save": None,
        "task_type": "CAUSAL_LM",
    }
    config |= {"target_modules": [m.rpartition(".")[2] for m in modules], **settings}
    draw, tensors = np.random.default_rng(seed), {}
    for name in [f"model.layers.{k}.{m}" for k in range(2) for m in modules]:
        outputs, inputs = SIZES[name.rpartition(".")[2]]
        rank = config.get("rank_pattern", {}).get(name.rpartition(".")[2], config["r"])
        tensors[f"base_model.model.{name}.lora_A.weight"] = draw.normal(size=(rank, inputs)) / 8
        tensors[f"base_model.model.{name}.lora_B.weight"] = draw.normal(size=(outputs, rank)) / 4
    folder.mkdir()
    save_file({n: t.astype(np.float32) for n, t in tensors.items()}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [write_adapter(folder / f"{k}", k, *kind[:1], **kind[1]) for k, kind in enumerate(KINDS)]


@pytest.fixture(scope="module")
def runner(folder: Path, adapters: list[Path]) -> Iterator[LibraryRunner]:
    with compile_library(folder, OPTIONS) as library:
        yield with_adapters(library, adapters)


def with_adapters(library: Any, adapters: list[Path]) -> LibraryRunner:
    runner = LibraryRunner(library)
    assert runner.adapters is not None
    for number, adapter in enumerate(adapters, 1):
        runner.adapters.write(number, runner.adapters.read(adapter))
    return runner


def torch_model(folder: Path, weights: Any = None) -> Any:
    """Return transformers' model, with other weights if given."""
    model = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    if weights is not None:
        model.load_state_dict({n: torch.tensor(np.array(w)) for n, w in weights.items()}, strict=False)
    return model


def logits(model: Any, tokens: Any) -> Any:
    with torch.no_grad():
        return model(torch.tensor(np.asarray(tokens)[None].astype(np.int64))).logits[0].numpy()


@every_isa
def test_equals_a_model_with_the_changes(folder: Path, adapters: list[Path], runner: LibraryRunner) -> None:
    """A prompt, and then rows of one call with different adapters, have the logits of models whose weights
    contain the changes.
    """
    tokens = np.random.default_rng(0).integers(2, runner.vocabulary, 45).astype(np.int32)
    expected = [logits(torch_model(folder), tokens)]
    expected += [
        logits(torch_model(folder, merged(open_checkpoint(folder), read_adapter(adapter))), tokens)
        for adapter in adapters
    ]
    assert runner.adapters is not None
    for slot in range(5):
        runner.adapters.use(slot, slot)
        for start in (0, 20):
            found = runner.prefill(tokens[start : start + 20], start, np.array([slot], np.int32), slot)
        np.testing.assert_allclose(found, expected[slot][39], atol=2e-4)
        assert slot == 0 or abs(expected[slot][39] - expected[0][39]).max() > 0.1
    for at in range(40, 45):
        order = np.random.default_rng(at).permutation(5).astype(np.int32)
        found = runner.decode(np.full(5, tokens[at]), np.full(5, at, np.int32), order[:, None], order)
        np.testing.assert_allclose(found, np.stack([e[at] for e in expected])[order], atol=2e-4)
        one = order[:1]
        alone = runner.decode(tokens[at : at + 1], np.array([at], np.int32), one[:, None], one)
        np.testing.assert_array_equal(alone[0], found[0], "a row alone has the same bits")


def test_32_requests_over_four_adapters_equal_peft(
    folder: Path, adapters: list[Path], runner: LibraryRunner
) -> None:
    """Requests of one batch get the greedy tokens that PEFT gives each of them alone."""
    peft = pytest.importorskip("peft")
    engine = Engine(runner, tokenizer())
    draw = np.random.default_rng(1)
    for k, adapter in enumerate(adapters):
        engine.adapters.load(f"adapter{k}", adapter)
    prompts = [draw.integers(2, runner.vocabulary, draw.integers(3, 90)).tolist() for _ in range(32)]
    greedy = SamplingParameters(temperature=0)
    streams = [
        engine.submit(Request(p, greedy, max_tokens=16, ignore_eos=True, adapter=f"adapter{i % 4}"))
        for i, p in enumerate(prompts)
    ]
    found = [stream.collect()[0].tokens for stream in streams]
    assert engine.stats().steps < 80, "the requests run together"
    for k, adapter in enumerate(adapters):
        model = peft.PeftModel.from_pretrained(torch_model(folder), adapter).eval()
        for i in range(k, 32, 4):
            ids = torch.tensor([prompts[i]])
            with torch.no_grad():
                whole = model.generate(
                    input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False,
                    eos_token_id=None, pad_token_id=0,
                )  # fmt: skip
            assert found[i] == whole[0, len(prompts[i]) :].tolist(), (i, k)


@every_isa
@pytest.mark.parametrize("scheme", ["int4_g32", "int8"])
def test_quantized_weights(tmp_path: Path, folder: Path, adapters: list[Path], scheme: str) -> None:
    """The changes are added to quantized products, and a row has the same bits in every call."""
    source = convert(folder, tmp_path / "converted", Conversion(scheme))
    tokens = np.random.default_rng(3).integers(2, 400, 40).astype(np.int32)
    options = LibraryOptions(context=256, chunk=64, max_batch=4, max_adapters=2, max_adapter_rank=RANK)
    with compile_library(source, options) as library:
        runner = with_adapters(library, adapters[1:3])
        assert runner.adapters is not None
        for number, adapter in ((1, adapters[1]), (2, adapters[2])):
            runner.adapters.use(0, number)
            found = runner.prefill(tokens, 0, np.array([0], np.int32), 0)
            expected = logits(torch_model(folder, merged(source, read_adapter(adapter))), tokens)[-1]
            without = logits(torch_model(folder, source), tokens)[-1]
            # Factors are rounded to 8 or 16 bits; the adapter's effect is much larger.
            assert abs(found - expected).max() < 0.2 * abs(expected - without).max()
        runner.adapters.use(1, 2)
        check_bits(runner, chunks=(7, 32), count=3)


def test_memory_and_options(folder: Path, runner: LibraryRunner) -> None:
    memory = planned(runner.library.metadata)
    pairs = sum(sum(SIZES[m.rpartition(".")[2]]) for m in ALL)
    assert memory.adapters == 2 * 5 * RANK * pairs * 4 and "adapters" in str(memory)
    with pytest.raises(CompileError, match="max_adapter_rank=0"):
        compile_library(folder, LibraryOptions(max_adapters=1, max_adapter_rank=0))
    with pytest.raises(CompileError, match="no linear layer c_attn; it has down_proj, gate_proj, k_proj"):
        compile_library(folder, LibraryOptions(max_adapters=1, adapter_targets=("c_attn", "q_proj")))


def test_layers_without_adapters(folder: Path, adapters: list[Path]) -> None:
    options = replace(OPTIONS, adapter_targets=("q_proj", "v_proj"))
    with compile_library(folder, options) as library:
        runner = with_adapters(library, adapters[:1])
        assert {name.split(".")[-2] for name in library.state if "adapter." in name} == {"q_proj", "v_proj"}
        assert runner.adapters is not None
        with pytest.raises(
            WeightsError, match="down_proj is not one of its linear layers that take adapters"
        ):
            runner.adapters.read(adapters[3])


def test_merging(tmp_path: Path, folder: Path, adapters: list[Path]) -> None:
    """`llm convert --adapter` adds the changes, and converts again after the adapter has changed."""
    out = tmp_path / "merged"
    adapter = write_adapter(tmp_path / "adapter", 9, ATTENTION)
    arguments = ["convert", str(folder), "-o", str(out), "--quantization", "none", "--adapter", str(adapter)]
    for scale in (2.0, 1.0):
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 0, result.output
        before, after = open_checkpoint(folder), open_checkpoint(out)
        name = "model.layers.1.self_attn.v_proj"
        change = read_adapter(adapter)[name]
        expected = before[f"{name}.weight"].read() + scale * (change.b.read() @ change.a.read())
        np.testing.assert_allclose(after[f"{name}.weight"].read(), expected, atol=1e-6)
        same = "model.layers.1.self_attn.k_proj.weight"
        assert np.array_equal(after[same].read(), before[same].read())
        config = json.loads((adapter / "adapter_config.json").read_text())
        (adapter / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 4}))


def test_merging_into_transposed_matrices(tmp_path: Path) -> None:
    """GPT-2 stores matrices [in, out]."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=64)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path / "base")
    how = peft.LoraConfig(r=2, lora_alpha=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    adapted = peft.get_peft_model(model, how)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
    adapted.save_pretrained(tmp_path / "adapter")
    found = merged(open_checkpoint(tmp_path / "base"), read_adapter(tmp_path / "adapter"))
    expected = adapted.merge_and_unload().state_dict()
    for name in ("transformer.h.0.attn.c_attn.weight", "transformer.h.0.mlp.c_fc.weight"):
        np.testing.assert_allclose(found[name].read(), expected[name].numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_dora": True}, "use_dora is True"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"some_new_method": {"size": 3}}, "some_new_method is"),
        ({"r": 0}, "r is 0"),
        ({"lora_alpha": "high"}, "lora_alpha is 'high'"),
        ({"rank_pattern": {"q_proj": "x"}}, "rank_pattern must give a number"),
        ({"alpha_pattern": {"(": 2}}, "not an expression"),
        ({"target_modules": ["v_proj"]}, r"does not name model.layers.0.self_attn.q_proj"),
        ({"target_modules": "model.*k_proj"}, "does not name"),
        ({"target_modules": 3}, "must be a string or a list"),
        ({"r": 5}, "has rank 4, but adapter_config.json says 5"),
    ],
)  # fmt: skip
def test_configurations_that_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    adapter = write_adapter(tmp_path / "adapter", 0, ATTENTION)
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(WeightsError, match=message):
        read_adapter(adapter)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("model.layers.0.self_attn.q_proj.lora_magnitude_vector", (64,), "DoRA"),
        ("model.embed_tokens.lora_embedding_A", (4, 400), "adapter of an embedding"),
        ("model.layers.0.self_attn.k_proj.lora_A.weight", (4, 64), "has lora_A only"),
        ("lm_head.weight", (400, 64), "no low-rank matrix"),
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, name: str, shape: Any, message: str) -> None:
    adapter = write_adapter(tmp_path / "adapter", 0, ATTENTION)
    whole = {f"base_model.model.{name}": np.zeros(shape, np.float32)}
    save_file(whole, adapter / "adapter_model.safetensors")
    with pytest.raises(WeightsError, match=message):
        read_adapter(adapter)


def test_files_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such folder"):
        read_adapter(tmp_path / "none")
    adapter = write_adapter(tmp_path / "adapter", 0, ATTENTION)
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(WeightsError, match="pickle"):
        read_adapter(adapter)
    (adapter / "adapter_config.json").unlink()
    with pytest.raises(WeightsError, match="adapter_config.json: no such file"):
        read_adapter(adapter)


def test_adapters_of_other_models(
    tmp_path: Path, folder: Path, runner: LibraryRunner, adapters: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter that does not fit is refused by name, and loaded ones stay."""
    assert runner.adapters is not None
    before = {name: runner.library.state[name] for name in runner.library.state if "q_proj" in name}
    large = write_adapter(tmp_path / "large", 0, ATTENTION, r=RANK + 1)
    with pytest.raises(WeightsError, match=r"q_proj has rank 9; .* at most 8: .*--max-adapter-rank 9"):
        runner.adapters.read(large)
    monkeypatch.setitem(SIZES, "q_proj", (96, 64))
    wide = write_adapter(tmp_path / "wide", 0, ATTENTION)
    with pytest.raises(
        WeightsError, match=r"'small/llama'.*q_proj is \[64, 64\] here, the change \[96, 64\]"
    ):
        runner.adapters.read(wide)
    with pytest.raises(WeightsError, match=r"q_proj.weight is \[64, 64\]"):
        merged(open_checkpoint(folder), read_adapter(wide))
    monkeypatch.setitem(SIZES, "out_proj", (64, 64))
    other = write_adapter(tmp_path / "other", 0, ("attn.out_proj",))
    with pytest.raises(
        WeightsError, match=r"model.layers.0.attn.out_proj is not one of its linear layers that"
    ):
        runner.adapters.read(other)
    with pytest.raises(WeightsError, match=r"has no model.layers.0.attn.out_proj.weight"):
        merged(open_checkpoint(folder), read_adapter(other))
    for name, value in before.items():
        assert np.array_equal(runner.library.state[name], value), name
