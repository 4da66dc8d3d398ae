"""The goals: the minimum ratio of the best peer's time to Tilewright's."""

from __future__ import annotations

from .case import Case

_TEXT, _WIDE = (1.3, 1.8), (1.1, 1.6)  # float32, bf16
_FIRST = {
    "minilm": _TEXT,
    "distilbert": _TEXT,
    "bert": _TEXT,
    "vit": _WIDE,
    "gpt2": _WIDE,
    "whisper-encoder": _WIDE,
    "resnet50": (1.05, 1.4),
    "mobilenet_v2": (1.2, 1.2),
    "convnext": (1.2, 1.2),
    "swin": (1.2, None),
    "lstm": (1.2, None),
    "mlp": (1.2, None),
}


def wanted(case: Case) -> float | None:
    """The goal for `case`: a ratio for each model at batch 1 on two threads, 1 at batch 8."""
    if case.threads != 2:
        return None
    if case.batch == 8:
        return 1.0
    both = _FIRST.get(case.model, (None, None))
    return both[case.precision == "bf16"] if case.batch == 1 else None
