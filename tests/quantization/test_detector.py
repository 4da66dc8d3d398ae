"""A detector in 8 bits: its boxes and classes against those in floating point."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.zoo import detector
from tilewright.dialects import graph

Array = np.ndarray[Any, Any]
SIDE, DIGITS, KEPT = 96, 3, 10
"""The side of a scene, the digits in it (0, 1 and 2), and the boxes of a scene that are looked at."""


@cache
def scenes(count: int, seed: int) -> tuple[Array, Array, Array]:
    """Scenes (count, 3, side, side) of two digits from scikit-learn on noise, the boxes of the digits
    (count, 2, 4) in parts of the scene, and their classes (count, 2) from 1.
    """
    datasets = pytest.importorskip("sklearn.datasets")
    data, rng = datasets.load_digits(n_class=DIGITS), np.random.default_rng(seed)
    images = 0.3 * rng.standard_normal((count, 3, SIDE, SIDE)).astype(np.float32)
    boxes, classes = np.zeros((count, 2, 4), np.float32), np.zeros((count, 2), np.int64)
    for k in range(count):
        for half in range(2):
            size = int(rng.choice([32, 40]))
            which = int(rng.integers(len(data.images)))
            y, x = rng.integers(SIDE - size + 1), half * SIDE // 2 + rng.integers(SIDE // 2 - size + 1)
            digit = np.kron(data.images[which] / 8 - 1, np.ones((size // 8, size // 8)))
            images[k, :, y : y + size, x : x + size] += digit
            boxes[k, half] = np.array([x, y, x + size, y + size]) / SIDE
            classes[k, half] = data.target[which] + 1
    return images, boxes, classes


@cache
def trained() -> Any:
    """A small detector, trained on scenes with the loss of SSD."""
    torch = pytest.importorskip("torch")
    from torch.nn import functional

    model = detector.detector("tiny", classes=DIGITS + 1)
    images, boxes, classes = map(torch.from_numpy, scenes(1024, 0))
    places = model.anchors
    corners = torch.cat([places[:, :2] - places[:, 2:] / 2, places[:, :2] + places[:, 2:] / 2], 1)
    overlaps = torch.from_numpy(detector.overlap(corners.numpy()[None, :, None], boxes.numpy()[:, None]))
    best, which = overlaps.max(2)  # (scenes, boxes)
    forced = overlaps.max(1).indices  # the best box of each digit
    for digit in range(2):
        which.scatter_(1, forced[:, digit : digit + 1], digit)
        best.scatter_(1, forced[:, digit : digit + 1], 1.0)
    wanted = torch.where(best > 0.5, classes.gather(1, which), 0)
    target = boxes.gather(1, which[..., None].expand(-1, -1, 4))
    optimizer = torch.optim.Adam(model.train().parameters(), 3e-3)
    torch.manual_seed(0)
    for _ in range(10):
        for part in torch.randperm(len(images)).split(32):
            found = model(images[part])
            positive = wanted[part] > 0
            loss = -torch.log(found[..., 4:].gather(2, wanted[part][..., None])[..., 0] + 1e-9)
            negative = loss.masked_fill(positive, 0).topk(24, 1).values.sum()
            near = functional.smooth_l1_loss(
                found[..., :4][positive], target[part][positive], beta=0.02, reduction="sum"
            )
            optimizer.zero_grad()
            ((loss[positive].sum() + negative + 10 * near) / positive.sum()).backward()
            optimizer.step()
    return model.eval()


def recall(run: Any) -> float:
    """The percentage of the digits for which one of the best boxes has the class and overlaps by half."""
    images, boxes, classes = scenes(200, 1)
    hits = 0
    for k in range(0, len(images), 25):
        for one, box, number in zip(
            np.asarray(run(images[k : k + 25])), boxes[k : k + 25], classes[k : k + 25], strict=True
        ):
            best = one[np.argsort(-one[:, 5:].max(1))[:KEPT]]
            for b, c in zip(box, number, strict=True):
                is_hit = (detector.overlap(best[:, :4], b) > 0.5) & (best[:, 5:].argmax(1) + 1 == c)
                hits += bool(is_hit.any())
    return 100 * hits / classes.size


@pytest.mark.slow
def test_a_trained_detector_keeps_its_accuracy() -> None:
    images, _, _ = scenes(1024, 0)
    quantized = tw.quantize(trained(), [images[k : k + 25] for k in range(0, 100, 25)], metric=recall)
    report = quantized.report
    assert report.before is not None and report.before > 80
    assert report.after is not None and report.after >= report.before - 1


def test_decoding_stays_in_floating_point() -> None:
    data = [detector.images("tiny", seed).numpy() for seed in range(4)]
    model = detector.detector("tiny")
    quantized = tw.quantize(model, data)
    library = tw.compile(quantized)
    exact, rounded = tw.compile(model, (detector.images("tiny", 0),))(data[0]), library(data[0])
    assert detector.overlap(exact[..., :4], rounded[..., :4]).mean() > 0.9
    assert not library.report.slower
    kinds = {type(op) for op in quantized.module.walk() if op.results and op.results[0].type.dtype.is_integer}
    assert graph.Exp not in kinds and graph.Softmax not in kinds
