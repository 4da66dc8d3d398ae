"""``torch.compile(backend="tilewright")`` in training: gradients by the rules of the graph operators, and the
memory layout of the values that the backward pass reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tilewright.frontends.torch import graph_module  # noqa: E402
from tilewright.frontends.torch.memory_layout import layout_of  # noqa: E402
from tilewright.integrations import torch_compile as torch_backend  # noqa: E402

from .checks import random  # noqa: E402
from .test_compile_backend import compile, trains_like_eager  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
F = torch.nn.functional
f32, f64 = torch.float32, torch.float64
LABELS = torch.tensor([[1, 2, 2, 0], [2, 5, 0, 2]])


def attention(**options: Any) -> Callable[..., Any]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


HEADS = [(2, 3, 10, 8)] * 3
GRADIENTS: dict[str, tuple[Callable[..., Any], Sequence[tuple[int, ...]], str]] = {
    "gelu": (F.gelu, [(5, 7)], "aten.gelu_backward.default"),
    "gelu by tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        [(5, 7)],
        "aten.gelu_backward.default",
    ),
    "silu": (F.silu, [(5, 7)], "aten.silu_backward.default"),
    "softmax": (lambda x: x.softmax(1), [(3, 9, 2)], "aten._softmax_backward_data.default"),
    "softmax of a number": (lambda x: x.softmax(0), [()], "aten._softmax_backward_data.default"),
    "log softmax": (lambda x: x.log_softmax(-1), [(3, 9)], "aten._log_softmax_backward_data.default"),
    "cross entropy": (
        lambda x: F.cross_entropy(x, LABELS[0], label_smoothing=0.1),
        [(4, 6)],
        "aten._log_softmax_backward_data.default",
    ),
    "embedding": (lambda t: F.embedding(LABELS, t), [(6, 5)], "aten.embedding_dense_backward.default"),
    "embedding with padding": (
        lambda t: F.embedding(LABELS, t, padding_idx=2),
        [(6, 5)],
        "aten.embedding_dense_backward.default",
    ),
    "embedding by frequency": (
        lambda t: F.embedding(LABELS, t, padding_idx=0, scale_grad_by_freq=True),
        [(6, 5)],
        "aten.embedding_dense_backward.default",
    ),
    "attention": (attention(), HEADS, "tilewright.attention_backward.default"),
    "causal attention": (attention(is_causal=True), HEADS, "tilewright.attention_backward.default"),
    "attention with a scale": (attention(scale=0.5), HEADS, "tilewright.attention_backward.default"),
    "attention of other sizes": (
        attention(),
        [(2, 3, 10, 8), (2, 3, 7, 8), (2, 3, 7, 8)],
        "tilewright.attention_backward.default",
    ),
    "attention with a mask": (
        attention(attn_mask=torch.ones(10, 10, dtype=torch.bool).tril(2)),
        HEADS,
        "tilewright.attention_backward.default",
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_equal_torchs(name: str, compiled: list[Any]) -> None:
    """Gradients equal torch's, to 1e-9 of the scale in float64 and 1e-5 in float32, by the named operator."""
    function, shapes, operator = GRADIENTS[name]
    for dtype, limit in ((f64, 1e-9), (f32, 1e-5)):
        given = [random(*shape, seed=k, dtype=f64) for k, shape in enumerate(shapes)]
        twins = [x.to(dtype).requires_grad_() for x in given]
        exact = [x.requires_grad_() for x in given]
        wanted = function(*exact)
        cotangent = random(*wanted.shape, seed=9, dtype=f64)
        got = torch.autograd.grad(compile(function)(*twins), twins, cotangent.to(dtype))
        for a, b in zip(got, torch.autograd.grad(wanted, exact, cotangent), strict=True):
            assert a.dtype is dtype and a.shape == b.shape
            assert (a.to(f64) - b).abs().max() <= limit * max(1.0, b.abs().max())
    assert operator in {str(n.target) for n in compiled[-1].source.graph.nodes}


def test_gradients_of_one_tensor_in_two_places() -> None:
    """Attention whose queries, keys and values are one tensor."""
    x, y = (random(1, 2, 6, 4, dtype=f64).requires_grad_() for _ in range(2))
    for z, run in ((x, attention()), (y, compile(attention()))):
        run(z, z, z).square().sum().backward()
    assert (x.grad - y.grad).abs().max() < 1e-9


def test_16_bits() -> None:
    """In bfloat16 a gradient is rounded once, as torch's are."""
    x, y = (random(4, 3, 8, dtype=torch.bfloat16).requires_grad_() for _ in range(2))

    def f(x: Any) -> Any:
        return F.gelu(x.softmax(-1)).log_softmax(1)

    for z, run in ((x, f), (y, compile(f))):
        run(z).backward(random(4, 3, 8, seed=1, dtype=torch.bfloat16))
    torch.testing.assert_close(y.grad, x.grad, rtol=3e-2, atol=3e-2)


def test_attention_keeps_no_sums(compiled: list[Any]) -> None:
    """The forward pass returns no logarithms of sums, so it computes the scores once."""
    q, k, v = (random(1, 2, 6, 4, seed=s).requires_grad_() for s in range(3))
    compile(attention())(q, k, v).sum().backward()
    forward, backward = (g.source.graph for g in compiled)
    kept = [tuple(n.meta["val"].shape) for n in forward.output_node().args[0]]
    assert kept == [(1, 2, 6, 4)] * len(kept)
    assert {str(n.target) for n in backward.nodes} & {"tilewright.attention_backward.default"}


def convolutions() -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 12, 3, stride=2, padding=1),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 4),
    )


def test_kept_images_are_channels_last(compiled: list[Any]) -> None:
    """Values that the backward pass of convolutions reads lie in memory as its kernels use them. Results
    that a user sees have torch's strides.
    """
    torch.manual_seed(0)
    model = convolutions()[:4]
    x = random(2, 3, 16, 16)
    y = compile(model)(x)
    assert y.is_contiguous()
    y.square().mean().backward()
    forward, backward = compiled
    assert forward.free
    assert all(forward.orders[n] == (0, 2, 3, 1) for n in forward.free)
    assert {layout.order for layout in backward.layouts.values()} == {(0, 2, 3, 1)}
    assert len(backward.relaid) == sum(n in forward.free for n in forward.results[forward.first_kept :])


def test_convolutions_train() -> None:
    torch.manual_seed(0)
    trains_like_eager(convolutions(), [random(4, 3, 14, 14, seed=k) for k in range(3)])


def test_convolutions_on_a_line_and_in_space_train() -> None:
    torch.manual_seed(0)
    nn = torch.nn
    line = nn.Sequential(nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6), nn.ReLU(), nn.Conv1d(6, 4, 3))
    trains_like_eager(line, [random(2, 3, 12, seed=k) for k in range(2)])
    space = nn.Sequential(nn.Conv3d(2, 4, 3), nn.ReLU(), nn.Conv3d(4, 3, 2))
    trains_like_eager(space, [random(2, 2, 6, 7, 5, seed=k) for k in range(2)])


def test_a_backward_pass_that_torch_runs_in_part() -> None:
    """Where torch runs parts of the backward pass, they get tensors of the layout that they were traced
    with: a view of a kept value is possible.
    """

    @torch.library.custom_op("tests::halved", mutates_args=())
    def halved(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    halved.register_fake(torch.empty_like)
    halved.register_autograd(lambda ctx, dy: halved(dy))
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(3, 5, 3)

    def f(x: Any) -> Any:
        y = convolution(x)
        y = y * y.relu()
        return halved(y.reshape(2, -1)).square()

    x, z = (random(2, 3, 6, 7).requires_grad_() for _ in range(2))
    with pytest.warns(torch_backend.FallbackWarning, match="halved"):
        got = torch.compile(f, backend=torch_backend.tilewright)(x)
        got.sum().backward()
    wanted = f(z)
    wanted.sum().backward()
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(x.grad, z.grad, rtol=1e-4, atol=1e-4)


def test_arguments_in_channels_last_layout() -> None:
    """Arguments are read in the memory layout that they have, at the first call and with another one."""
    torch.manual_seed(0)
    model = torch.nn.Conv2d(4, 6, 3).eval()
    fast = compile(model)
    x = random(2, 4, 9, 8)
    with torch.no_grad():
        for given in (x.to(memory_format=torch.channels_last), x, x.transpose(2, 3).contiguous().mT):
            torch.testing.assert_close(fast(given), model(x), rtol=1e-4, atol=1e-4)


BASE = random(4, 6, 8)
PARTS = {
    "columns": BASE[:, :, 2:5],
    "columns of a permuted tensor": BASE.permute(2, 0, 1)[:, :, 1:4],
    "rows and columns": BASE[1:, 2:4, 3:],
    "every other column": BASE[..., 1::2],
    "a part of the last dimension, divided": BASE.view(4, 6, 2, 4)[:, :, 1].unsqueeze(0),
    "one of three": BASE.view(4, 3, 2, 8).permute(1, 3, 0, 2)[2],
    "one element": BASE[2:3, 3:4, 5:6],
}


@pytest.mark.parametrize("name", PARTS)
def test_the_elements_of_a_layout(name: str) -> None:
    """A part of a tensor is read where it lies, or copied where it lies elsewhere."""
    x = PARTS[name]
    layout = layout_of(x)
    if layout is None:
        assert x.numel() == 1
        return
    for given, shared in ((x, True), (x.clone(), x.clone().stride() == x.stride())):
        dense = layout.dense(given)
        assert dense.is_contiguous()
        assert (dense.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()) == shared
        for start, taken in zip(layout.starts, layout.taken, strict=True):
            dense = dense.movedim(0, -1)[..., start : start + taken]
        found = dense.reshape([x.shape[d] for d in layout.order])
        back = sorted(range(x.dim()), key=layout.order.__getitem__)
        assert torch.equal(found.permute(back), x)


def test_layouts_that_are_copied() -> None:
    """Repeated elements, and parts whose last row ends behind the memory."""
    assert layout_of(BASE[0].expand(3, 6, 8)) is None
    assert layout_of(torch.arange(16.0).view(4, 4).diagonal()) is None
    assert layout_of(BASE) is None
    assert layout_of(3) is None


def test_joined_projections_are_read_where_they_lie(compiled: list[Any]) -> None:
    """The backward pass of attention gets queries, keys and values as parts of one tensor."""
    torch.manual_seed(0)
    joined = torch.nn.Linear(16, 48)

    def f(x: Any) -> Any:
        q, k, v = joined(x).view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v)

    x, y = (random(2, 6, 16).requires_grad_() for _ in range(2))
    fast = compile(f)
    for _ in range(2):
        found = torch.autograd.grad(fast(x).square().sum(), (x, joined.weight))
    wanted = torch.autograd.grad(f(y).square().sum(), (y, joined.weight))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    parts = [layout for layout in compiled[1].layouts.values() if layout.sizes]
    assert [layout.starts for layout in parts] == [(0, 0), (0, 16), (0, 32)]


def test_images_end_at_views() -> None:
    """Values behind a view of an image, such as the rows of a transformer, keep torch's layout."""
    torch.manual_seed(0)
    patches, mix = torch.nn.Conv2d(3, 8, 4, stride=4), torch.nn.Linear(8, 8)

    def f(x: Any) -> Any:
        rows = patches(x).flatten(2).transpose(1, 2)
        return F.gelu(mix(rows.exp()))

    found: list[Any] = []
    real = graph_module.images

    def noted(graph: Any) -> Any:
        found.append(real(graph))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_module, "images", noted)
        x, y = (random(2, 3, 8, 8).requires_grad_() for _ in range(2))
        got, wanted = compile(f)(x), f(y)
        got.sum().backward()
        wanted.sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    assert all(n.meta["val"].dim() == 4 for nodes in found for n in nodes)
