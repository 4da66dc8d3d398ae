"""The error for operators that a front end cannot translate: all of them, each with a remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..errors import UnsupportedOperator, UnsupportedOperatorError

_OUTSIDE = (
    "run it before or after the model, in Python: make its result an input of the model, or its operand an "
    "output"
)
_REMEDIES = (
    (
        r"rand|normal_|bernoulli|multinomial|dropout",
        "call model.eval() before the export; or draw the numbers outside, and pass them as an input",
    ),
    (r"Image|String|Regex|Token|TfIdf|Audio", _OUTSIDE),
    (
        r"eig|svd|qr|cholesky|solve|lstsq|pinv|det\b|geqrf|lu_|triangular|linalg",
        f"{_OUTSIDE}; of weights alone, compute it once and keep the result as a weight",
    ),
    (
        r"complex|fft|stft|r2c|c2c|c2r",
        "keep real and imaginary part as a last dimension of two, or take the transform out of the model",
    ),
    (r"quantize|fake_quant", "export the model in float, or with ONNX's QuantizeLinear and DequantizeLinear"),
    (r"sparse|nested|jagged", "make the tensors dense and of one size, with a mask"),
    (
        r"unique|nonzero|masked_select|_local_scalar",
        "give every result a fixed size: a mask instead of a selection",
    ),
    (
        r"Gradient|Adam|Adagrad|Momentum",
        "export the forward pass alone; torch.compile(model, backend='tilewright') also trains",
    ),
)
"""Remedies by patterns in an operator's name."""


class Unsupported(Exception):
    """An importer does not support this form of its operator. The message says which form, and what to do
    instead.
    """


def unsupported(
    problems: Mapping[str, Sequence[tuple[str, str]]], otherwise: str
) -> UnsupportedOperatorError:
    """Return the error that lists operators with their places and the reasons given there; `otherwise` is a
    remedy for all.
    """
    return UnsupportedOperatorError(
        [
            UnsupportedOperator(
                operator,
                len(places),
                tuple(dict.fromkeys(where for where, _ in places)),
                next((h for _, h in places if h), ""),
                "; or ".join(filter(None, (_remedy(operator), otherwise))),
            )
            for operator, places in problems.items()
        ]
    )


def _remedy(operator: str) -> str:
    return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, operator)), "")


__all__ = ["Unsupported", "unsupported"]
