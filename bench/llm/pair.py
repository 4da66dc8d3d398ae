"""A model, trained on modules of Python's standard library, and a draft model of a quarter of its size, which
learns the model's probabilities on the model's own answers (distillation; DistillSpec, Zhou et al. 2023).
Training takes some minutes; the checkpoints are kept in a folder.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 1024
LENGTH = 64
"""Tokens of a sequence in the model's training."""
PROMPT, ANSWER = 128, 384
"""Tokens of a prompt and of the model's answer to it, from which the draft learns."""
ANSWERS = 64
"""The number of these answers. Their prompts are passages of the training text at random places."""
_NAMES = "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"
SHAPES = {
    "model": dict(zip(_NAMES, (384, 1024, 8, 4), strict=True)),
    "draft": dict(zip(_NAMES, (320, 1024, 2, 4), strict=True)),
}
"""Shapes of Llamas of 13.4 and 2.9 million parameters."""
LEFT_OUT = ("argparse.py", "tarfile.py", "textwrap.py", "queue.py")
"""Modules on which no model is trained."""
COUNT = 24
"""The number of modules on which the models are trained."""


def modules() -> list[Path]:
    """The first modules of the standard library in the order of their names, and those that are left out."""
    found = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    known = [path for path in found if path.name not in LEFT_OUT][:COUNT]
    return [*known, *(path for path in found if path.name in LEFT_OUT)]


def pair(folder: Path, steps: int) -> dict[str, Path]:
    """The folders of the checkpoints, which are trained for `steps` steps where they do not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = _tokenizer(folder / "tokenizer.json")
    paths = {name: folder / name for name in SHAPES}
    if not (paths["model"] / "config.json").exists():
        _save(_trained(steps, backend), backend, paths["model"])
    if not (paths["draft"] / "config.json").exists():
        _save(_distilled(paths["model"], steps, backend), backend, paths["draft"])
    return paths


def prompts(folder: Path, seen: bool) -> list[list[int]]:
    """The beginnings of modules on which the model was trained, or of those on which it was not."""
    backend = _tokenizer(folder / "tokenizer.json")
    texts = [path.read_text() for path in modules() if (path.name not in LEFT_OUT) == seen]
    found = [backend.encode(text).ids[:PROMPT] for text in texts]
    return [prompt for prompt in found if len(prompt) == PROMPT]


def _tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if path.exists():
        return Tokenizer.from_file(str(path))
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train([str(path) for path in modules()], trainer)
    backend.save(str(path))
    return backend


def _text(backend: Any) -> Any:
    """The tokens of the training text."""
    import torch

    texts = [path.read_text() for path in modules() if path.name not in LEFT_OUT]
    return torch.tensor(np.concatenate([part.ids for part in backend.encode_batch(texts)]))


def _passages(text: Any, count: int, length: int) -> Any:
    import torch

    return text[torch.randint(len(text) - length, (count, 1)) + torch.arange(length)]


def _new(name: str) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SHAPES[name],
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    return transformers.LlamaForCausalLM(config)


def _optimized(model: Any, steps: int, loss_of: Callable[[], Any]) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.2f}", flush=True)


def _trained(steps: int, backend: Any) -> Any:
    """The model, trained on passages of the text."""
    model, text = _new("model"), _text(backend)

    def loss() -> Any:
        batch = _passages(text, 8, LENGTH)
        return model(batch, labels=batch).loss

    _optimized(model, steps, loss)
    return model


def _distilled(path: Path, steps: int, backend: Any) -> Any:
    """The draft: for each answer of the model in `path` it learns the model's probabilities of all tokens."""
    import torch
    import transformers

    draft, teacher = _new("draft"), transformers.LlamaForCausalLM.from_pretrained(path)
    length = PROMPT + ANSWER
    with torch.no_grad():
        asked = _passages(_text(backend), ANSWERS, PROMPT)
        answers = teacher.generate(
            asked,
            attention_mask=torch.ones_like(asked),
            do_sample=False,
            min_length=length,
            max_length=length,
            pad_token_id=1,
        )
        goals = torch.cat([teacher(row[None]).logits.log_softmax(-1).bfloat16() for row in answers])

    def loss() -> Any:
        which = torch.randint(ANSWERS, (1,))
        found = draft(answers[which]).logits.log_softmax(-1)[0]
        return torch.nn.functional.kl_div(
            found, goals[which][0].float(), reduction="batchmean", log_target=True
        )

    _optimized(draft, steps, loss)
    return draft


def _save(model: Any, backend: Any, folder: Path) -> None:
    import transformers

    model.save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)


__all__ = ["PROMPT", "pair", "prompts"]
