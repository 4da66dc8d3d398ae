"""The CTC loss and its gradient equal PyTorch's, at once, compiled, and imported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import nn
from tilewright.frontends.torch import import_torch
from tilewright.ir.interpreter import Interpreter

F, T = nn.functional, torch.nn.functional

RNG = np.random.default_rng(0)
LOGITS = RNG.standard_normal((9, 4, 6))
TARGETS = RNG.integers(1, 6, (4, 5))
TARGETS[0, :3] = 2  # repeated labels need a blank between them
TIMES, COUNTS = np.array([9, 7, 6, 9]), np.array([5, 3, 4, 0])
FLAT = np.concatenate([row[:k] for row, k in zip(TARGETS, COUNTS, strict=True)])


def in_torch(logits: Any, targets: Any, times: Any, counts: Any, **options: Any) -> tuple[Any, Any]:
    """PyTorch's loss of logits, and the gradient of the sum of its squares."""
    x = torch.tensor(logits, requires_grad=True)
    rest = [torch.tensor(v) for v in (targets, times, counts)]
    loss = T.ctc_loss(x.log_softmax(-1), *rest, **options)
    (loss**2).sum().backward()
    assert x.grad is not None
    return loss.detach().numpy(), x.grad.numpy()


def ours(x: Any, targets: Any, times: Any, counts: Any, **options: Any) -> Any:
    return F.ctc_loss(F.log_softmax(x, -1), targets, times, counts, **options)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("case", ["rows", "one after the other", "one sequence", "other blank"])
def test_like_torch(case: str, reduction: str) -> None:
    arrays: tuple[Any, ...] = LOGITS, TARGETS, TIMES, COUNTS
    options: dict[str, Any] = {"reduction": reduction}
    if case == "one after the other":
        arrays = LOGITS, FLAT, TIMES, COUNTS
    elif case == "one sequence":
        arrays = LOGITS[:, 1], TARGETS[1, :3], np.array(7), np.array(3)
    elif case == "other blank":
        arrays, options["blank"] = (LOGITS, TARGETS % 5, TIMES, COUNTS), 5
    value, gradient = in_torch(*arrays, **options)
    np.testing.assert_allclose(ours(*arrays, **options), value, rtol=1e-11)

    def loss(x: Any, targets: Any, times: Any, counts: Any) -> Any:
        return (ours(x, targets, times, counts, **options) ** 2).sum()

    scale = float(np.abs(gradient).max())
    np.testing.assert_allclose(tw.grad(loss)(*arrays), gradient, rtol=1e-9, atol=1e-11 * scale)
    found = tw.jit(tw.grad(loss))(*arrays)
    np.testing.assert_allclose(found, gradient, rtol=1e-9, atol=1e-11 * scale)
    narrow = tw.jit(tw.grad(loss))(arrays[0].astype(np.float32), *arrays[1:])
    np.testing.assert_allclose(narrow, gradient, rtol=1e-4, atol=1e-5 * scale)


def test_labels_too_long_for_their_times() -> None:
    times = np.array([9, 2, 6, 9])  # three labels at two times
    value, gradient = in_torch(LOGITS, TARGETS, times, COUNTS, zero_infinity=True)
    found, dx = tw.jit(tw.value_and_grad(lambda x: ours(x, TARGETS, times, COUNTS, zero_infinity=True) ** 2))(
        LOGITS
    )
    np.testing.assert_allclose(found, value**2, rtol=1e-11)
    np.testing.assert_allclose(dx, gradient, rtol=1e-9, atol=1e-12)
    assert not np.asarray(dx)[:, 1].any()
    each = np.asarray(ours(LOGITS, TARGETS, times, COUNTS, reduction="none"))
    np.testing.assert_array_equal(np.isinf(each), [False, True, False, False])


def test_sizes_of_a_run() -> None:
    library = tw.compile(
        tw.value_and_grad(lambda x, y, t, c: ours(x, y, t, c)),
        [LOGITS, TARGETS, TIMES, COUNTS],
        dims={"x": {0: "time<=20", 1: "n<=8"}, "y": {0: "n", 1: "labels<=9"}, "t": {0: "n"}, "c": {0: "n"}},
    )
    for time, n, labels in ((9, 4, 5), (14, 2, 3)):
        x, y = RNG.standard_normal((time, n, 6)), RNG.integers(1, 6, (n, labels))
        times, counts = np.full(n, time), RNG.integers(0, labels + 1, n)
        r = torch.tensor(x, requires_grad=True)
        expected = T.ctc_loss(r.log_softmax(-1), *map(torch.tensor, (y, times, counts)))
        expected.backward()
        assert r.grad is not None
        value, gradient = library(x, y, times, counts)
        np.testing.assert_allclose(value, expected.item(), rtol=1e-11)
        np.testing.assert_allclose(gradient, r.grad.numpy(), rtol=1e-9, atol=1e-12)
    with pytest.raises(tw.TilewrightError, match=r"an index is outside of 0 \.\. time"):
        library(x, y, times + 1, counts)


@pytest.mark.parametrize("lengths", ["tensors", "numbers"])
@pytest.mark.parametrize("targets", [TARGETS, FLAT], ids=["rows", "flat"])
def test_imported_from_torch(targets: Any, lengths: str) -> None:
    class Loss(torch.nn.Module):
        def forward(self, x: Any, targets: Any, *rest: Any) -> Any:
            rest = rest or (TIMES.tolist(), COUNTS.tolist())
            return tuple(
                T.ctc_loss(x, targets, *rest, reduction=r, zero_infinity=r == "mean")
                for r in ("none", "mean", "sum")
            )

    rest = [torch.tensor(v) for v in (TIMES, COUNTS)] if lengths == "tensors" else []
    args = [torch.tensor(LOGITS).log_softmax(-1), torch.tensor(targets), *rest]
    found = Interpreter(import_torch(Loss(), args)).run("main", [a.numpy() for a in args])
    for got, wanted in zip(found, Loss()(*args), strict=True):
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-12)


def test_a_module_of_torch_trains() -> None:
    class Recognizer(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x).log_softmax(-1)

    def loss(logs: Any, targets: Any, times: Any, counts: Any) -> Any:
        return T.ctc_loss(logs, targets, times, counts)

    batch = torch.tensor(LOGITS), *map(torch.tensor, (TARGETS, TIMES, COUNTS))
    torch.manual_seed(0)
    model, reference = (Recognizer(6, 6).double() for _ in range(2))
    reference.load_state_dict(model.state_dict())
    step = tw.train_step(model, loss, tw.optim.SGD(lr=0.5), batch)
    optimizer = torch.optim.SGD(reference.parameters(), 0.5)
    for _ in range(4):
        expected = loss(reference(batch[0]), *batch[1:])
        assert float(step(*batch)) == pytest.approx(expected.item(), rel=1e-9)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()


def test_errors() -> None:
    module = nn.CTCLoss(reduction="sum")
    logs = np.asarray(F.log_softmax(LOGITS, -1))
    expected = F.ctc_loss(logs, TARGETS, TIMES, COUNTS, reduction="sum")
    np.testing.assert_array_equal(module(logs, TARGETS, TIMES, COUNTS), expected)
    wrong: list[tuple[Any, Any]] = [
        ((logs[..., None], TARGETS, TIMES, COUNTS), r"\(T, N, C\)"),
        ((logs, TARGETS * 1.0, TIMES, COUNTS), "targets are integers, not float64"),
        ((logs, TARGETS, TIMES[:2], COUNTS), r"input_lengths have shape \(2,\), not \(4,\)"),
        ((logs, TARGETS[:3], TIMES, COUNTS), r"targets have shape \(3, 5\)"),
        ((logs, TARGETS, TIMES, COUNTS, 6), "blank=6 is none of the 6 classes"),
    ]
    for args, message in wrong:
        with pytest.raises(tw.ShapeError, match=message):
            F.ctc_loss(*args)
    with pytest.raises(tw.CompileError, match="'mean', 'sum' or 'none', not 'max'"):
        F.ctc_loss(logs, TARGETS, TIMES, COUNTS, reduction="max")
    with pytest.raises(IndexError, match="index 12 is outside"):
        F.ctc_loss(logs, TARGETS, TIMES + 3, COUNTS)
    with pytest.raises(IndexError, match="index 6 is outside"):
        F.ctc_loss(logs, TARGETS + 4, TIMES, COUNTS)
