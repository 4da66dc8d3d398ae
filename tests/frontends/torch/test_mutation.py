"""Exported programs that modify their inputs and buffers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.errors import CompileError, ShapeError  # noqa: E402
from tilewright.frontends.torch import import_torch  # noqa: E402
from tilewright.ir.interpreter import Interpreter  # noqa: E402

from .checks import Lambda, random  # noqa: E402


class Cache(nn.Module):
    """A cache of a sequence's keys, with their count."""

    def __init__(self, length: int = 16) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, length, 4))
        self.register_buffer("count", torch.tensor(3), persistent=False)

    def forward(self, x: Any, places: Any) -> Any:
        self.keys.index_copy_(1, places, x)
        self.count += places.shape[0]
        return self.keys.mean(1), self.count.clone()


def steps(model: Any, calls: list[tuple[Any, ...]], **options: Any) -> Any:
    """Run the model eagerly and compiled for each call, and compare outputs, arguments and states. Returns
    the library with its states reset.
    """
    eager = copy.deepcopy(model)
    library = tw.compile(model, calls[0], **options)
    for call in calls:
        given, wanted = copy.deepcopy(call), copy.deepcopy(call)
        results, expected = library(*given), eager(*wanted)
        pairs = zip(
            results if isinstance(results, tuple) else (results,),
            expected if isinstance(expected, tuple) else (expected,),
            strict=True,
        )
        for a, b in (*pairs, *zip(given, wanted, strict=True)):
            torch.testing.assert_close(a, b)
        buffers = dict(eager.named_buffers()) | dict(eager.named_parameters())
        for name, value in library.state.items():
            np.testing.assert_allclose(value, buffers[name].detach().numpy(), rtol=1e-5, atol=1e-6)
    library.state.reset()
    return library


@pytest.mark.parametrize("target", ["cpu", "wasm32"])
def test_a_cache_is_kept(target: str) -> None:
    calls = [(random(2, 3, 4, seed=k), torch.tensor([k, k + 1, 15 - k])) for k in range(4)]
    library = steps(Cache(), calls, target=target)
    assert library.metadata["states"][0] == {"name": "keys", "dtype": "float32", "shape": [2, 16, 4]}
    assert [entry["name"] for entry in library.metadata["inputs"]] == ["x", "places"]
    assert library.state["count"] == 3
    launches = [
        line for line in library.ir("host").splitlines() if "host.launch" in line and "scatter" in line
    ]
    assert len(launches) == 1 and launches[0].count("%keys") == 2  # The kernel updates the keys in place.


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = Cache()
    model.keys += 2
    library = tw.compile(model, (random(2, 1, 4), torch.tensor([3])))
    model.keys += 1  # The library was compiled with the earlier values.
    library(random(2, 1, 4), torch.tensor([3]))
    loaded = tw.load(library.save(tmp_path / "cache.so"))
    np.testing.assert_array_equal(loaded.state["keys"], np.full((2, 16, 4), 2, np.float32))
    assert loaded.state["count"] == 3
    loaded(random(2, 1, 4), torch.tensor([3]))
    np.testing.assert_array_equal(loaded.state["keys"], library.state["keys"])


def test_a_cached_artifact_is_not_that_of_other_first_values() -> None:
    class Counter(nn.Module):
        def __init__(self, start: float) -> None:
            super().__init__()
            self.register_buffer("table", torch.full((100,), start))

        def forward(self, x: Any) -> Any:
            self.table += 1
            return x + self.table

    for start in (1.0, 2.0, 1.0):
        steps(Counter(start), [(random(100),)] * 2)


def test_inputs_are_changed_in_place() -> None:
    def function(x: Any, y: Any) -> Any:
        x.add_(y)
        x[:, 1] = 5
        return x * 2

    calls = [
        (random(3, 4), random(3, 4)),
        (random(4, 3).T, random(3, 4)),
        (random(3, 8)[:, ::2], random(3, 8)[:, 1::2]),
    ]
    library = tw.compile(Lambda(function), calls[0])
    for x, y in calls:
        wanted = x.clone()
        expected = function(wanted, y)
        torch.testing.assert_close(library(x, y), expected)
        torch.testing.assert_close(x, wanted)
    a, b = np.ones((3, 4), np.float32), np.ones((3, 4), np.float32)
    out = np.empty((3, 4), np.float32)
    call = library.bind(a, b, out=out)
    call()
    call()
    np.testing.assert_array_equal(a[:, 0], 3)  # The initial 1, and 1 added by each of two calls.


@pytest.mark.parametrize("target", ["cpu", "wasm32"])
def test_changed_inputs_of_dynamic_sizes(target: str) -> None:
    class Shift(nn.Module):
        def forward(self, x: Any) -> Any:
            total = x.sum()
            x.copy_(x.flip(0) * 2)
            return total

    library = tw.compile(Shift(), (random(5, 3),), dims={"x": {0: "n<=64"}}, target=target)
    for n in (1, 5, 33):
        x = random(n, 3)
        before = x.clone()
        torch.testing.assert_close(library(x), before.sum())
        torch.testing.assert_close(x, before.flip(0) * 2)


def test_inputs_that_cannot_be_updated_are_refused() -> None:
    library = tw.compile(Lambda(lambda x, y: x.mul_(y)), (random(3, 4), random(3, 4)))
    whole, y = random(4, 4), random(3, 4)
    with pytest.raises(ShapeError, match="changes input 'x', which shares memory with input 'y'"):
        library(whole[:3], whole[1:])
    with pytest.raises(ShapeError, match="several of its elements share memory"):
        library(random(1, 4).expand(3, 4), y)
    with pytest.raises(ShapeError, match="that can be written to, not a list"):
        library([[1.0] * 4] * 3, y.numpy())
    fixed = np.ones((3, 4), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(ShapeError, match="not a read-only array"):
        library(fixed, y.numpy())
    torch.testing.assert_close(library(whole[:3], y), whole[:3])


def test_values_that_change_places() -> None:
    """Two states that exchange their values are both read before either is written."""

    class Swap(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.arange(3.0))
            self.register_buffer("b", -torch.arange(3.0))

        def forward(self, x: Any) -> Any:
            old = self.a.clone()
            self.a.copy_(self.b)
            self.b.copy_(old)
            return old + x, old

    steps(Swap(), [(random(3),)] * 3)


def test_old_values_are_read_after_new_ones_are_made() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # The values are small because the softmax of large numbers amplifies their rounding to 1e-5, and
            # the order of sums differs by machine.
            self.register_buffer("a", torch.arange(64.0).reshape(8, 8) / 64)

        def forward(self, x: Any) -> Any:
            old = self.a.clone()
            self.a.copy_(torch.softmax(self.a @ x, -1))
            return old @ self.a, self.a[0], old.T.contiguous()

    steps(Late(), [(random(8, 8, seed=k),) for k in range(3)])


def test_training_mode_keeps_running_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    steps(model.train(), [(random(2, 3, 8, 8, seed=k),) for k in range(3)])


def test_a_changed_parameter() -> None:
    class Normalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(random(4, 4))

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                self.weight.div_(self.weight.norm())
            return x @ self.weight

    steps(Normalized(), [(random(2, 4),)] * 2)


def test_equal_names() -> None:
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(2))

        def forward(self, cache: Any) -> Any:
            self.cache += cache
            cache.mul_(2)
            return self.cache.sum()

    library = tw.compile(Same(), (random(2),))
    x = torch.ones(2)
    assert [library(x).item() for _ in range(3)] == [2, 6, 14]
    np.testing.assert_array_equal(library.state["cache_"], [7, 7])


def test_random_numbers_and_states() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(1000))

        def forward(self, x: Any) -> Any:
            self.total += torch.rand_like(x)
            return self.total.mean() + x.sum()

    library = tw.compile(Noisy(), (torch.zeros(1000),))
    first = library(torch.zeros(1000), seed=1)
    assert library(torch.zeros(1000), seed=2) > first > 0.4


def test_complex_states() -> None:
    class Phase(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("z", torch.tensor([1 + 2j, 3 - 1j]))

        def forward(self, x: Any) -> Any:
            self.z *= 1j
            return (self.z * x).real

    library = tw.compile(Phase(), (random(2),))
    np.testing.assert_allclose(library(torch.ones(2)), [-2, 1])
    np.testing.assert_allclose(library.state["z_imaginary"], [1, 3])


def test_shared_memory_is_refused() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            base = torch.zeros(4)
            self.register_buffer("base", base)
            self.register_buffer("part", base[1:3])

        def forward(self, x: Any) -> Any:
            self.part += x
            return self.base.sum()

    with pytest.raises(CompileError, match="buffers 'base' and 'part' share memory"):
        import_torch(Tied(), (random(2),))


def test_the_interpreter_gives_new_values_last() -> None:
    module = import_torch(Cache(), (random(2, 1, 4), torch.tensor([3])))
    main = module.symbol("main")
    assert main.updates == ("keys", "count") and [n for n, _ in main.states] == ["keys", "count"]
    x, keys = random(2, 1, 4).numpy(), np.zeros((2, 16, 4), np.float32)
    _, count, new, again = Interpreter(module).run("main", [x, np.array([3]), keys, np.array(5)])
    assert count == again == 6
    np.testing.assert_array_equal(new[:, 3], x[:, 0])


def test_checked_and_verified(tmp_path: Path) -> None:
    from tilewright.tools.verify import verify

    program = torch.export.export(Cache(), (random(2, 2, 4), torch.tensor([3, 4])))
    library = tw.compile(program, check=True)
    assert verify(library, program).passed
    changing = Lambda(lambda x, y: x.add_(y).sum())
    library = tw.compile(changing, (random(3), random(3)))
    report = verify(library, changing, (random(3), random(3)))
    assert report.passed and "x (updated)" in report.text()
