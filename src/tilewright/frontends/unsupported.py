"""What a front end cannot translate, all of it, and the nearest way around each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..errors import UnsupportedOperator, UnsupportedOperatorError

_OUTSIDE = "do it before or after the model, in Python: make what it gives an input, or what it takes an output"
_WAYS = (
    (r"rand|normal_|bernoulli|multinomial|dropout", "call model.eval() before the export; or draw the numbers outside, and pass them as an input"),
    (r"Image|String|Regex|Token|TfIdf|Audio", _OUTSIDE),
    (r"eig|svd|qr|cholesky|solve|lstsq|pinv|det\b|geqrf|lu_|triangular|linalg", f"{_OUTSIDE}; of weights alone, compute it once and keep the result as a weight"),
    (r"complex|fft|stft|r2c|c2c|c2r", "keep real and imaginary part as a last dimension of two, or take the transform out of the model"),
    (r"quantize|fake_quant", "export the model in float, or with ONNX's QuantizeLinear and DequantizeLinear"),
    (r"sparse|nested|jagged", "make the tensors dense and of one size, with a mask"),
    (r"unique|nonzero|masked_select|_local_scalar", "give every result a fixed size: a mask instead of a selection"),
    (r"Gradient|Adam|Adagrad|Momentum", "export the forward pass alone; torch.compile(model, backend='tilewright') also trains"),
)  # fmt: skip
"""By what is found in an operator's name."""


def unsupported(problems: Mapping[str, Sequence[tuple[str, str]]], otherwise: str) -> UnsupportedOperatorError:
    """The error that lists operators with their places and the reasons given there; `otherwise` is what always helps."""
    return UnsupportedOperatorError(
        [
            UnsupportedOperator(
                operator,
                len(places),
                tuple(dict.fromkeys(where for where, _ in places)),
                next((h for _, h in places if h), ""),
                "; or ".join(filter(None, (_way(operator), otherwise))),
            )
            for operator, places in problems.items()
        ]
    )


def _way(operator: str) -> str:
    return next((way for pattern, way in _WAYS if re.search(pattern, operator)), "")


__all__ = ["unsupported"]
