"""``torch.compile(backend="tilewright")``: values, gradients and training steps equal eager torch's, and
warnings name the operators that are not compiled.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.caches import with_runtime

torch = pytest.importorskip("torch")

from tilewright.driver import compile as compiler  # noqa: E402
from tilewright.errors import CompileError, UnsupportedOperatorError  # noqa: E402
from tilewright.integrations import torch_compile as torch_backend  # noqa: E402

from ...devices import need  # noqa: E402
from .checks import random  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
F = torch.nn.functional


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
    """Compare with eager training: the loss of every step, the last gradients, and the parameters and buffers
    after all steps.
    """
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
    # The backend is listed even where the package is used without being installed.
    assert "tilewright" in torch._dynamo.list_backends()


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


@pytest.mark.parametrize("isa", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "host"])
def test_gradients_of_convolutions_on_every_instruction_set(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of convolutions equal torch's on every instruction set. The sum for the first weights runs
    over all rows of all images, in blocks that end within an image.
    """
    name = "cpu" if isa == "host" else f"cpu:{isa}"
    need(name)
    real = compiler.compile
    monkeypatch.setattr(compiler, "compile", lambda *args, **options: real(*args, target=name, **options))
    torch.manual_seed(0)
    layers = [
        m
        for k in (1, 3)
        for m in (torch.nn.Conv2d(16, 16, k, 1, k // 2), torch.nn.BatchNorm2d(16), torch.nn.ReLU())
    ]
    model = torch.nn.Sequential(*layers)
    x = torch.randn(8, 16, 24, 24)
    weights = [m.weight for m in model if isinstance(m, torch.nn.Conv2d)]
    got = torch.autograd.grad(compile(model)(x).square().mean(), weights)
    wanted = torch.autograd.grad(model(x).square().mean(), weights)
    for a, b in zip(got, wanted, strict=True):
        close(a, b, 1e-3)


def test_transformer_layer_trains() -> None:
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    trains_like_eager(model, [random(2, 6, 16, seed=k) for k in range(3)])


def test_recurrent_layer_trains() -> None:
    model = torch.nn.GRU(6, 5, batch_first=True)
    # Dynamo leaves recurrent layers to eager torch by default.
    with torch._dynamo.config.patch(allow_rnn=True):
        trains_like_eager(model, [random(2, 4, 6, seed=k) for k in range(2)], lambda y: y[0].square().mean())


def test_an_optimizers_step_is_compiled(compiled: list[Any]) -> None:
    models = [torch.nn.Linear(8, 16) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in models]
    fast = compile(lambda: optimizers[1].step())
    for seed in range(3):
        for m in models:
            m.zero_grad()
            m(random(4, 8, seed=seed)).square().mean().backward()
        optimizers[0].step()
        fast()
    for p, q in zip(*(m.parameters() for m in models), strict=True):
        close(q, p)
    assert len(compiled) == 1


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
    assert len(compiled) == 2  # One graph is for the forward pass, one for the backward pass.


@pytest.mark.parametrize("marked", (False, True))
def test_sizes_that_change_become_dynamic(compiled: list[Any], marked: bool) -> None:
    """A size becomes dynamic with its second value, or from the first one on if it is marked."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh())
    fast = compile(model)
    for rows in (3, 7, 20, 4):
        x = random(rows, 8)
        if marked:
            torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            close(fast(x), model(x))
    assert len(compiled) == (1 if marked else 2)


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
    assert not got[3].any()  # Both outputs are views of one result.
    assert got[2] is c


def test_dropout_draws_what_torch_draws() -> None:
    """Dropout draws torch's noise, forward and backward, also for transposed tensors such as the attention's
    output.
    """
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.3, batch_first=True)
    x = random(2, 6, 16)
    fast = compile(model)
    result = []
    for m in (model, fast):
        torch.manual_seed(7)
        model.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        result.append((loss.detach(), [p.grad.clone() for p in model.parameters()]))
    close(result[1][0], result[0][0])
    for got, wanted in zip(result[1][1], result[0][1], strict=True):
        close(got, wanted)
    assert not torch.equal(fast(x), fast(x))
    model.eval()
    close(fast(x), model(x))


def test_random_numbers_are_torchs() -> None:
    def f(x: Any) -> Any:
        y = x + torch.rand(x.shape) * torch.randn_like(x.t()).t() + torch.randint(0, 9, x.shape)
        return (
            y,
            torch.randperm(5),
            torch.empty(3).uniform_(2, 3),
            torch.bernoulli(torch.full_like(x, 0.3), 0.3),
        )

    x = random(3, 4)
    result = []
    for g in (f, compile(f, fullgraph=True)):
        torch.manual_seed(1)
        result.append([*g(x), torch.rand(1)])  # The generator continues from the same state.
    for got, wanted in zip(result[1], result[0], strict=True):
        close(got, wanted, 1e-6)


def test_graph_breaks() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        return y.sin() if y.sum() > 0 else y.cos()

    fast = compile(f)
    for x in (torch.ones(4), -torch.ones(4)):
        close(fast(x), f(x))


@torch.library.custom_op("tilewright_tests::cube", mutates_args=())  # type: ignore[untyped-decorator]
def cube(x: torch.Tensor) -> torch.Tensor:
    """An operator without an importer."""
    return x**3


cube.register_fake(torch.empty_like)
cube.register_autograd(
    lambda ctx, grad: 3 * ctx.saved_tensors[0] ** 2 * grad,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def test_operators_without_an_importer_run_in_torch_and_are_named(compiled: list[Any]) -> None:
    def f(x: Any) -> Any:
        y = cube(x * 2).abs() + torch.rand(4, 4)
        return cube(y.relu().t() @ x) + torch.rand(4), y[1:]

    x = random(4, 4)
    results, gradients = [], []
    with pytest.warns(
        torch_backend.FallbackWarning, match=r"tests\.cube.*test_compile_backend\.py:"
    ) as caught:
        for g in (f, torch.compile(f, backend=torch_backend.tilewright)):
            torch.manual_seed(3)
            x = x.detach().requires_grad_()
            results.append(g(x))
            gradients.append(torch.autograd.grad(results[-1][0].sum(), x))
    assert caught[0].message.operators == ("tilewright_tests.cube.default",)
    close(results[1], results[0])
    close(gradients[1], gradients[0], 1e-3)
    assert len(compiled) >= 4  # The parts before, between and after the calls of cube are compiled.
    torch._dynamo.reset()
    with pytest.raises(Exception, match="cube") as caught:
        compile(f)(x)
    assert isinstance(
        caught.value.__cause__ or getattr(caught.value, "inner_exception", caught.value),
        UnsupportedOperatorError,
    )
    assert "use torch.compile" not in str(caught.value) and "leave options={'fallback': False} out" in str(
        caught.value
    )


def test_complex_numbers() -> None:
    def f(x: Any, z: Any) -> Any:
        spectrum = torch.fft.rfft(x.sin() * 2) * z
        return (
            torch.fft.irfft(spectrum * spectrum.conj(), n=8).relu() + x,
            spectrum,
            spectrum.real,
            spectrum.T.conj(),
        )

    x, z = random(3, 8), torch.complex(random(5), random(5, seed=1))
    results, gradients = [], []
    for g in (f, compile(f)):
        a, b = x.clone().requires_grad_(), z.clone().requires_grad_()
        results.append(g(a, b.conj()))
        gradients.append(torch.autograd.grad(results[-1][0].sum() + results[-1][3].abs().sum(), (a, b)))
    for got, wanted in zip(results[1], results[0], strict=True):
        assert (got.dtype, got.stride(), got.is_conj()) == (wanted.dtype, wanted.stride(), wanted.is_conj())
        close(got, wanted)
    close(gradients[1], gradients[0])


def test_recurrent_layers_without_gradients() -> None:
    layer, x = torch.nn.LSTM(5, 6, num_layers=2, bidirectional=True, batch_first=True).eval(), random(3, 7, 5)
    with torch.no_grad():
        close(compile(layer)(x), layer(x))


def test_branches_and_loops() -> None:
    from torch._higher_order_ops import scan

    def f(x: Any) -> Any:
        y = torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos() - 1, (x,))
        return scan(lambda c, row: (c + row, c * row), torch.zeros(4), y, dim=0)

    compiled = compile(f)
    for x in (random(3, 4), -random(3, 4)):
        close(compiled(x), tuple(f(x)))


def test_operators_of_a_branch_may_run_in_torch() -> None:
    def f(x: Any) -> Any:
        y = torch.cond(x.sum() > 0, lambda a: cube(a), lambda a: a * 1, (x + 1,))
        return y * 2

    with pytest.warns(torch_backend.FallbackWarning, match="cube"):
        compiled = torch.compile(f, backend=torch_backend.tilewright)
        for x in (random(3, 4).abs(), -10 - random(3, 4)):
            close(compiled(x), f(x))


def test_assertions_hold() -> None:
    def f(x: Any) -> Any:
        y = x.relu()
        torch._assert_async(y.sum() > 0, "nothing is positive")
        return y + 1

    with pytest.warns(torch_backend.FallbackWarning, match="_assert_async"):
        fast = torch.compile(f, backend=torch_backend.tilewright)
        close(fast(torch.ones(3)), f(torch.ones(3)))
    with pytest.raises(RuntimeError, match="nothing is positive"):
        fast(-torch.ones(3))


def test_unknown_option() -> None:
    with pytest.raises(CompileError, match="fast.*known: fallback"):
        torch_backend.tilewright(None, [], options={"fast": True})


def test_compiling_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(torch.compile(lambda x: x.exp(), backend=torch_backend.tilewright)(random(3)), random(3).exp())


def test_max_pool_finds_torchs_positions() -> None:
    """The positions of maxima are torch's for equal elements, for windows of only -inf that overlap padding,
    and for NaN.
    """
    x = torch.relu(random(2, 3, 9, 8))
    x[0, 0] = -torch.inf
    x[0, 1, :4, 2:5] = torch.nan

    def pool(x: Any) -> Any:
        return F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True)

    for got, wanted in zip(compile(pool)(x), pool(x), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)


POOLINGS = {
    "average": lambda x: F.avg_pool2d(x, (3, 2), 2, 1),
    "average without padding": lambda x: F.avg_pool2d(
        x, 3, (2, 1), 1, ceil_mode=True, count_include_pad=False
    ),
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


WARM = """
import torch
from tilewright.integrations import torch_compile as torch_backend
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
fast = torch.compile(model, backend=torch_backend.tilewright)
fast(torch.ones(3, 4)).sum().backward()
print(model[0].weight.grad.abs().sum().item())
"""


def test_a_new_process_finds_everything_compiled(tmp_path: Path) -> None:
    """A process compiles neither the forward nor the backward graph that another one has compiled.

    Both are new processes: keys of the cache include what other tests have registered in this one.
    """
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(with_runtime(tmp_path))}
    said, kept = [], []
    for _ in range(2):
        command = [sys.executable, "-c", WARM]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        said.append(done.stdout)
        kept.append({path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()})
    assert said[0] == said[1] and kept[0] == kept[1]
    assert len([path for path in kept[0] if "artifacts" in path.parts]) == 2
