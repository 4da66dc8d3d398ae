"""torch's recurrent layers in all their forms, compared with eager torch and imported as loops for any
sequence length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.dialects import graph  # noqa: E402

from .checks import check, close, random  # noqa: E402

FORMS = {
    "lstm": lambda: torch.nn.LSTM(5, 8),
    "lstm-deep": lambda: torch.nn.LSTM(5, 8, 2, bidirectional=True, batch_first=True),
    "lstm-projected": lambda: torch.nn.LSTM(5, 8, 2, proj_size=3, bidirectional=True),
    "lstm-no-bias": lambda: torch.nn.LSTM(5, 8, bias=False, batch_first=True),
    "gru": lambda: torch.nn.GRU(5, 8, 2, bidirectional=True),
    "gru-no-bias": lambda: torch.nn.GRU(5, 8, bias=False, batch_first=True),
    "rnn": lambda: torch.nn.RNN(5, 8, 3, batch_first=True),
    "rnn-relu": lambda: torch.nn.RNN(
        5, 8, nonlinearity="relu", bidirectional=True, dropout=0.5, num_layers=2
    ),
}


class Whole(torch.nn.Module):
    """Wraps a recurrent layer and returns its output and all its final states, from given or from zero
    states.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, h: Any = None, c: Any = None) -> Any:
        states = None if h is None else h if c is None else (h, c)
        y, last = self.layer(x, states)
        return (y, *last) if isinstance(last, tuple) else (y, last)


def model(form: str) -> Any:
    torch.manual_seed(1)
    return Whole(FORMS[form]()).eval()


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    whole = model(form)
    axis = int(whole.layer.batch_first)

    def x(time: int) -> Any:
        return random(*((3, time, 5) if axis else (time, 3, 5)))

    module = check(whole, x(6), dims={"x": {axis: "seq<=40"}}, others=[(x(1),), (x(11),)])
    directions = 2 if whole.layer.bidirectional else 1
    loops = [op for op in module.walk() if isinstance(op, graph.Scan)]
    assert len(loops) == whole.layer.num_layers * directions


@pytest.mark.parametrize("form", ["lstm-projected", "gru"])
def test_states_as_inputs(form: str) -> None:
    whole = model(form)
    width = whole.layer.proj_size or 8
    states = [random(4, 3, width)] + ([random(4, 3, 8, seed=1)] if form.startswith("lstm") else [])
    check(whole, random(4, 3, 5), *states)


def test_one_sequence_without_batch() -> None:
    check(model("lstm"), random(7, 5))


@pytest.mark.parametrize("form", ["lstm", "lstm-deep", "gru", "rnn-relu"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(form: str, dynamic: bool) -> None:
    whole = model(form)
    axis = int(whole.layer.batch_first)
    shape = (2, 7, 5) if axis else (7, 2, 5)
    library = tw.compile(
        whole, (random(*shape),), dims={"x": {axis: "seq<=40"}} if dynamic else None, cache=False
    )
    for time in (1, 7, 30) if dynamic else (7,):
        x = random(*((2, time, 5) if axis else (time, 2, 5)))
        with torch.no_grad():
            wanted = whole(x)
        for got, want in zip(library(x.numpy()), wanted, strict=True):
            close(np.asarray(got), want)


def test_few_launches_a_step() -> None:
    """A step launches two kernels: one for the product with the state and everything added to it, one for the
    cell.
    """
    library = tw.compile(model("lstm"), (random(9, 1, 5),), cache=False)
    text = library.ir("host")
    loop = text[text.index("host.for") : text.index("host.yield")]
    assert loop.count("host.launch") == 2 and "host.copy" not in loop


def test_dropout_while_training_is_refused() -> None:
    from tilewright.errors import UnsupportedOperatorError

    layer = torch.nn.LSTM(5, 8, 2, dropout=0.5)
    with pytest.raises(UnsupportedOperatorError, match="dropout"):
        tw.compile(Whole(layer).train(), (random(4, 1, 5),), cache=False)


def test_weights_of_both_products_are_rounded_when_asked() -> None:
    whole = model("lstm-deep")
    x = random(2, 7, 5)
    library = tw.compile(whole, (x,), precision="bf16", cache=False)
    with torch.no_grad():
        wanted = whole(x)
    for got, want in zip(library(x.numpy()), wanted, strict=True):
        close(np.asarray(got), want, atol=3e-2)
    # Each of the two layers has three weights: one for the inputs of both directions, and one for the state
    # of each direction.
    constants = [
        line for line in library.ir("host").splitlines() if "host.constant" in line and ".packed" in line
    ]
    assert len(constants) == 6 and all('"bf16"' in line for line in constants)
