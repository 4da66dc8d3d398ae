"""``torch.compile(backend="tilewright")``: values, gradients and training steps against eager torch; what is not compiled is said."""

from __future__ import annotations

import copy
import tomllib
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tilewright import torch_backend  # noqa: E402
from tilewright.errors import CompileError, UnsupportedOperatorError  # noqa: E402

from .checks import random  # noqa: E402

F = torch.nn.functional


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were compiled."""
    graphs: list[Any] = []
    real = torch_backend._library

    def counted(graph: Any, options: Any) -> Any:
        graphs.append(graph)
        return real(graph, options)

    monkeypatch.setattr(torch_backend, "_library", counted)
    return graphs


def compile(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend=torch_backend.tilewright, options={"fallback": False}, **options)


def close(got: Any, wanted: Any, rtol: float = 1e-4) -> None:
    torch.testing.assert_close(got, wanted, rtol=rtol, atol=rtol)


def step(model: Any, optimizer: Any, x: Any, loss: Callable[[Any], Any]) -> Any:
    value = loss(model(x))
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    return value.detach()


def trains_like_eager(
    model: Any, inputs: Sequence[Any], loss: Callable[[Any], Any] = lambda y: y.square().mean()
) -> None:
    """Loss of every step, gradients of the last one, parameters and buffers after it."""
    model.train()
    twin = copy.deepcopy(model)
    fast = compile(twin)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, twin)]
    for x in inputs:
        close(step(fast, optimizers[1], x, loss), step(model, optimizers[0], x, loss))
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert q.grad is not None, name
        close(q.grad, p.grad, 1e-3)
        close(q, p, 1e-3)
    for p, q in zip(model.buffers(), twin.buffers(), strict=True):
        close(q, p, 1e-3)


def test_the_entry_point_names_the_backend() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    where = project["entry-points"]["torch_dynamo_backends"]["tilewright"]
    assert where == f"{torch_backend.__name__}:{torch_backend.tilewright.__name__}"


def test_inference() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
    )
    x = random(5, 16)
    with torch.no_grad():
        close(compile(model)(x), model(x))


def test_mlp_trains() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 6))
    target = torch.tensor([0, 3, 5, 1, 2, 2, 4])
    trains_like_eager(model, [random(7, 12, seed=k) for k in range(3)], lambda y: F.cross_entropy(y, target))


def test_cnn_with_batch_norm_trains() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(3, 2, 1),
        torch.nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2),
        torch.nn.SiLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    )
    trains_like_eager(model, [random(4, 3, 14, 14, seed=k) for k in range(3)])


def test_transformer_layer_trains() -> None:
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    trains_like_eager(model, [random(2, 6, 16, seed=k) for k in range(3)])


def test_embedding_trains() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Linear(8, 3))
    trains_like_eager(model, [torch.tensor([[1, 2, 2, 10], [0, 1, 9, 3]])] * 2)


def test_sizes_do_not_recompile(compiled: list[Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    fast = compile(model, dynamic=True)
    for rows in (3, 7, 20, 4):
        x, y = random(rows, 8).requires_grad_(), random(rows, 8).requires_grad_()
        wanted = model(x)
        wanted.sum().backward()
        got = fast(y)
        got.sum().backward()
        close(got, wanted)
        close(y.grad, x.grad)
    assert len(compiled) == 2  # forward and backward


def test_a_size_that_is_no_tensors() -> None:
    def f(x: Any, n: int) -> Any:
        return x.sum() + torch.arange(n, dtype=torch.float32) * n, x.shape[0] * n

    fast = compile(f, dynamic=True)
    for rows, n in ((3, 5), (4, 9)):
        x = random(rows, 4)
        got, wanted = fast(x, n), f(x, n)
        close(got[0], wanted[0])
        assert got[1] == wanted[1]


def test_mutation_views_and_aliases() -> None:
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        view = y.t()
        base = (y * 2).transpose(0, 1).contiguous().t()
        return view, base[1:], x, base[1:, 1:], base.relu()

    a, b = random(3, 4), random(3, 4, seed=1)
    c, d = a.clone(), b.clone()
    wanted, got = f(a, b), compile(f)(c, d)
    close(c, a)
    for g, w in zip(got, wanted, strict=True):
        close(g, w)
        assert g.stride() == w.stride()
    assert got[0].data_ptr() == d.data_ptr()
    got[1].zero_()
    assert not got[3].any()  # both are views of one result
    assert got[2] is c


def test_dropout_draws_what_torch_draws() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.4), torch.nn.Linear(64, 3))
    x = random(5, 8)
    fast = compile(model)
    losses = []
    for m in (model, fast):
        torch.manual_seed(7)
        model.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        losses.append((loss.detach(), model[0].weight.grad.clone()))
    close(losses[1], losses[0])
    assert not torch.equal(fast(x), fast(x))


def test_graph_breaks() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        return y.sin() if y.sum() > 0 else y.cos()

    fast = compile(f)
    for x in (torch.ones(4), -torch.ones(4)):
        close(fast(x), f(x))


def test_what_is_not_compiled_runs_in_torch_and_is_named(compiled: list[Any]) -> None:
    def f(x: Any) -> Any:
        y = torch.linalg.qr(x * 2)[1].abs() + torch.rand(4, 4)
        return torch.linalg.qr(y.relu().t() @ x)[1] + torch.rand(4), y[1:]

    x = random(4, 4)
    results, gradients = [], []
    with pytest.warns(torch_backend.FallbackWarning, match=r"linalg_qr") as told:
        for g in (f, torch.compile(f, backend=torch_backend.tilewright)):
            torch.manual_seed(3)
            x = x.detach().requires_grad_()
            results.append(g(x))
            gradients.append(torch.autograd.grad(results[-1][0].sum(), x))
    assert told[0].message.operators == ("aten.linalg_qr.default",)
    close(results[1], results[0])
    close(gradients[1], gradients[0], 1e-3)
    assert len(compiled) >= 4  # what stands before, between and behind
    torch._dynamo.reset()
    with pytest.raises(Exception, match="linalg_qr") as caught:
        compile(f)(x)
    assert isinstance(
        caught.value.__cause__ or getattr(caught.value, "inner_exception", caught.value), UnsupportedOperatorError
    )


def test_unknown_option() -> None:
    with pytest.raises(CompileError, match="fast.*known: fallback"):
        torch_backend.tilewright(None, [], options={"fast": True})


def test_nothing_is_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(torch.compile(lambda x: x.exp(), backend=torch_backend.tilewright)(random(3)), random(3).exp())


def test_max_pool_finds_torchs_positions() -> None:
    """Equal elements, windows of nothing but -inf that overlap padding, NaNs."""
    x = torch.relu(random(2, 3, 9, 8))
    x[0, 0] = -torch.inf
    x[0, 1, :4, 2:5] = torch.nan

    def pool(x: Any) -> Any:
        return F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True)

    for got, wanted in zip(compile(pool)(x), pool(x), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)


POOLINGS = {
    "average": lambda x: F.avg_pool2d(x, (3, 2), 2, 1),
    "average without padding": lambda x: F.avg_pool2d(x, 3, (2, 1), 1, ceil_mode=True, count_include_pad=False),
    "average by divisor": lambda x: F.avg_pool2d(x, 2, 3, divisor_override=5),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
    "adaptive average along one": lambda x: F.adaptive_avg_pool2d(x, (1, 5)),
    "maximum": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "adaptive maximum": lambda x: F.adaptive_max_pool2d(x, (4, 3)),
    "adaptive maximum, divided": lambda x: F.adaptive_max_pool2d(x, (3, 4)),
    "replicated edge": lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"),
}


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [("average", False), ("adaptive maximum, divided", False), *((name, True) for name in POOLINGS)],
)
def test_pooling_has_gradients(name: str, dynamic: bool) -> None:
    fast = compile(POOLINGS[name], dynamic=dynamic)
    for shape in ((2, 3, 9, 8), (1, 2, 11, 7)) if dynamic else ((2, 3, 9, 8),):
        x, y = (random(*shape).requires_grad_() for _ in range(2))
        wanted, got = POOLINGS[name](x), fast(y)
        close(got, wanted)
        cotangent = random(*wanted.shape, seed=9)
        close(torch.autograd.grad(got, y, cotangent)[0], torch.autograd.grad(wanted, x, cotangent)[0])
