"""Train a small language model and its tokenizer on the texts of a Python installation.

    python examples/train_small_model.py examples/small-model

Reads the sources and docstrings of Python's standard library, trains a byte-level BPE tokenizer of 4096
tokens and a model of 5.8 M parameters shaped like Llama 3 (grouped queries, tied embedding), and writes a
Hugging Face folder: `model.safetensors` in bf16, the configurations, and the tokenizer with a chat template.
It also writes two texts, `calibration.txt` (of the training data) and `held_out.txt` (of files that are not
training data), for quantization and perplexity. A small part of the data is conversations made of docstrings
("What does textwrap.dedent do?"), so that the model ends its answers.

Training takes about ten minutes on two idle cores with AMX, and longer without AMX. More STEPS make a better
model. After an interruption, the same command continues: the state is in FOLDER.training until the model is
complete. The order of the data depends only on the seed.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
LENGTH = 512  # tokens of a training sequence
BATCH = 12
STEPS = 400
WARMUP = 40
SAVED_EVERY = 50
RATE = 6e-3
END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
QUESTIONS = (
    "What does {} do?",
    "What is {}?",
    "Explain {}.",
    "Describe {} in a sentence.",
    "What is {} for?",
)
SKIPPED = {"site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"}
"""Folders that are not training data: tests, installed packages, and tables."""


def documents() -> tuple[dict[str, str], dict[str, str]]:
    """Training and held-out texts by name: a twentieth of the files, chosen by their names, is held out."""
    import pydoc_data.topics

    library = Path(os.__file__).parent
    texts = {f"topics/{name}": text for name, text in pydoc_data.topics.topics.items()}
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if SKIPPED.isdisjoint(name.parts):
            texts[name.as_posix()] = path.read_text(encoding="utf-8", errors="replace")
    texts = {name: text for name, text in texts.items() if len(text) > 200}
    held_out = {name for name in texts if zlib.crc32(name.encode()) % 20 == 0}
    return {n: texts[n] for n in texts if n not in held_out}, {n: texts[n] for n in sorted(held_out)}


def summaries(name: str, text: str) -> Iterator[tuple[str, str]]:
    """The definitions of a module by dotted name, with the first paragraph of each docstring."""

    def walk(scope: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
        for node in ast.iter_child_nodes(scope):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            dotted = f"{prefix}.{node.name}"
            summary = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            if 15 < len(summary) < 300 and not node.name.startswith("_"):
                yield dotted, summary
            yield from walk(node, dotted)

    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    yield from walk(ast.parse(text), module)


def conversations(training: dict[str, str], randomly: random.Random) -> list[list[dict[str, str]]]:
    """Questions about what the training files define, answered by its docstrings; one to three in a
    conversation.
    """
    pairs = [
        pair for name, text in training.items() if name.endswith(".py") for pair in summaries(name, text)
    ]
    randomly.shuffle(pairs)
    found = []
    while pairs:
        turns = []
        for dotted, summary in [
            pairs.pop() for _ in range(min(len(pairs), randomly.choice((1, 1, 1, 2, 3))))
        ]:
            question = randomly.choice(QUESTIONS).format(dotted)
            turns += [{"role": "user", "content": question}, {"role": "assistant", "content": summary}]
        found.append(turns)
    return found


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END, TURN, TURN_END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=TURN_END,
        pad_token=END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=2 * LENGTH,
    )


def training_tokens(tokenizer: PreTrainedTokenizerFast, training: dict[str, str], seed: int) -> torch.Tensor:
    """All texts in a random order, each after the end of the one before."""
    randomly = random.Random(seed)
    texts = [END + text for text in training.values()]
    texts += [
        tokenizer.apply_chat_template(turns, tokenize=False) for turns in conversations(training, randomly)
    ]
    randomly.shuffle(texts)
    encoded = tokenizer.backend_tokenizer.encode_batch_fast(texts)
    return torch.tensor([token for text in encoded for token in text.ids])


def batches(tokens: torch.Tensor, seed: int) -> Iterator[torch.Tensor]:
    """Sequences of LENGTH + 1 tokens, epoch after epoch, cut at other places in each."""
    for epoch in range(1_000_000):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        start = int(torch.randint(LENGTH, (), generator=generator))
        starts = torch.arange(start, len(tokens) - LENGTH - 1, LENGTH)
        for chosen in starts[torch.randperm(len(starts), generator=generator)].split(BATCH):
            if len(chosen) == BATCH:
                yield torch.stack([tokens[at : at + LENGTH + 1] for at in chosen.tolist()])


def loss_of(model: LlamaForCausalLM, batch: torch.Tensor) -> torch.Tensor:
    """The mean negative log-likelihood of sequences [batch, n]. Parameters are float32; what is computed with
    them is bf16, but for the logits' softmax.
    """
    rounded = {name: parameter.bfloat16() for name, parameter in model.named_parameters()}
    logits = torch.func.functional_call(model, rounded, (batch[:, :-1],)).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def train(tokens: torch.Tensor, state_file: Path, steps: int, seed: int) -> LlamaForCausalLM:
    """Muon (Jordan et al., 2024) for matrices, AdamW for embedding and norms; the rate falls linearly to
    zero.
    """
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            max_position_embeddings=2 * LENGTH,
            bos_token_id=0,
            eos_token_id=2,
            pad_token_id=0,
            **SHAPE,
        )
    )
    matrices = list(model.model.layers.parameters())
    matrices = [parameter for parameter in matrices if parameter.ndim == 2]
    others = [
        parameter for parameter in model.parameters() if all(parameter is not matrix for matrix in matrices)
    ]
    optimizers = [
        torch.optim.Muon(matrices, lr=RATE, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            o, lambda step: min((step + 1) / WARMUP, (steps - step) / (steps - WARMUP))
        )
        for o in optimizers
    ]
    parts = {"model": model}
    parts |= {f"optimizer{i}": part for i, part in enumerate(optimizers)}
    parts |= {f"schedule{i}": part for i, part in enumerate(schedules)}
    done, used, losses = 0, 0.0, []
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        done, used = state["done"], state["used"]
        print(f"goes on after step {done}", flush=True)
    source = batches(tokens, seed)
    for _ in range(done):
        next(source)
    began, cpu = time.perf_counter(), time.process_time()
    model.train()
    for step in range(done, steps):
        loss = loss_of(model, next(source))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for part in (*optimizers, *schedules):
            part.step()
        model.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 20 == 0 or step + 1 == steps:
            now = time.perf_counter() - began
            left = now / (step + 1 - done) * (steps - step - 1)
            cpu_minutes = (used + time.process_time() - cpu) / 60
            mean = sum(losses[-20:]) / len(losses[-20:])
            speed = (step + 1 - done) * BATCH * LENGTH / now
            print(
                f"step {step + 1}/{steps}  loss {mean:.3f}  {speed:,.0f} tokens/s  "
                f"{cpu_minutes:.1f} CPU minutes  {left / 60:.1f} minutes left",
                flush=True,
            )
        if (step + 1) % SAVED_EVERY == 0:
            state = {name: part.state_dict() for name, part in parts.items()}
            state |= {"done": step + 1, "used": used + time.process_time() - cpu}
            whole = state_file.with_suffix(".partial")
            torch.save(state, whole)
            os.replace(whole, state_file)
    return model.eval()


def sample(texts: dict[str, str], characters: int, seed: int) -> str:
    """Pieces of 4000 characters of so many texts, whole lines, in a random order."""
    pieces = []
    for text in texts.values():
        cuts = range(0, max(1, len(text) - 4000), 4000)
        pieces += [text[at : at + 4000].partition("\n")[2].rpartition("\n")[0] + "\n" for at in cuts]
    random.Random(seed).shuffle(pieces)
    return "".join(pieces)[:characters].rpartition("\n")[0] + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("folder", type=Path, help="what to write")
    arguments.add_argument(
        "--steps", type=int, default=STEPS, help=f"of {BATCH * LENGTH} tokens (default: {STEPS})"
    )
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--threads", type=int, default=2)
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    state = given.folder.with_name(given.folder.name + ".training")
    state.mkdir(parents=True, exist_ok=True)

    training, held_out = documents()
    print(
        f"{len(training)} texts, {sum(map(len, training.values())) / 1e6:.1f} M characters; {len(held_out)} "
        "held out"
    )
    if (state / "tokenizer.json").exists():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(state)
    else:
        tokenizer = train_tokenizer(list(training.values()))
        tokenizer.save_pretrained(state, save_jinja_files=False)
    tokens = training_tokens(tokenizer, training, given.seed)
    print(
        f"{len(tokens) / 1e6:.2f} M tokens, {given.steps * BATCH * LENGTH / len(tokens):.1f} epochs",
        flush=True,
    )

    model = train(tokens, state / "state.pt", given.steps, given.seed)
    text = sample(held_out, 200_000, given.seed)
    ids = torch.tensor(tokenizer.backend_tokenizer.encode(text).ids)
    with torch.no_grad():
        pieces = ids[: len(ids) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)
        loss = sum(loss_of(model, piece).item() for piece in pieces.split(4)) / len(pieces.split(4))
    print(f"held-out text: {loss:.3f} a token, perplexity {2.718281828**loss:.2f}")

    model.generation_config = GenerationConfig(
        bos_token_id=0, eos_token_id=[2, 0], pad_token_id=0, do_sample=True, temperature=0.7, top_p=0.9
    )
    model.to(torch.bfloat16).save_pretrained(given.folder)
    tokenizer.save_pretrained(given.folder, save_jinja_files=False)
    (given.folder / "held_out.txt").write_text(text, encoding="utf-8")
    (given.folder / "calibration.txt").write_text(sample(training, 100_000, given.seed), encoding="utf-8")
    shutil.rmtree(state)
    print(f"{given.folder}: {model.num_parameters() / 1e6:.2f} M parameters")


if __name__ == "__main__":
    sys.exit(main())
