"""Optimizers equal PyTorch's over 20 updates, at once and compiled with the state in `tw.State`s."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import optim

SHAPES = {"layer.weight": (3, 4), "layer.bias": (4,), "scale": ()}
CASES: list[tuple[str, Any, Any, dict[str, Any]]] = [
    ("sgd", optim.SGD, torch.optim.SGD, {"lr": 0.1}),
    ("sgd decay", optim.SGD, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("momentum", optim.SGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    ("dampening", optim.SGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.3}),
    (
        "nesterov",
        optim.SGD,
        torch.optim.SGD,
        {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    ("adam", optim.Adam, torch.optim.Adam, {"lr": 0.03}),
    ("adam decay", optim.Adam, torch.optim.Adam, {"lr": 0.03, "weight_decay": 0.1, "betas": (0.8, 0.95)}),
    ("adamw", optim.AdamW, torch.optim.AdamW, {"lr": 0.03}),
    ("adamw amsgrad", optim.AdamW, torch.optim.AdamW, {"lr": 0.03, "amsgrad": True, "eps": 1e-6}),
    ("adafactor", optim.Adafactor, torch.optim.Adafactor, {"lr": 0.1}),
    (
        "adafactor decay",
        optim.Adafactor,
        torch.optim.Adafactor,
        {"lr": 0.3, "weight_decay": 0.1, "d": 1.5, "eps": (1e-8, 1e-2)},
    ),
]
NAMES = [case[0] for case in CASES]


def start(dtype: str) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {name: np.asarray(rng.standard_normal(shape), dtype) for name, shape in SHAPES.items()}


def gradient(path: str, x: Any) -> Any:
    """A bounded function with zeros, for tensors of both packages."""
    return x / (1 + x * x) - 0.5 + 0.02 * len(path)


def expected(
    make: Any, options: dict[str, Any], dtype: str, steps: int = 20, shapes: Any = None
) -> dict[str, np.ndarray[Any, Any]]:
    parameters = {n: torch.nn.Parameter(torch.tensor(x)) for n, x in (shapes or start(dtype)).items()}
    optimizer = make(list(parameters.values()), **options)
    for _ in range(steps):
        for n, p in parameters.items():
            p.grad = gradient(n, p.detach())
        optimizer.step()
    return {n: p.detach().numpy() for n, p in parameters.items()}


def at_once(optimizer: optim.Optimizer, first: dict[str, Any], steps: int = 20) -> dict[str, Any]:
    parameters: dict[str, Any] = {n: tw.tensor(x) for n, x in first.items()}
    state = optimizer.init(parameters)
    for _ in range(steps):
        gradients = {n: gradient(n, x) for n, x in parameters.items()}
        parameters, state = optimizer.update(parameters, gradients, state)
    return parameters


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {p: x for k, v in tree.items() for p, x in leaves(v, f"{path}/{k}").items()}
    return {path: tree}


def rebuilt(tree: Any, values: Any, path: str = "") -> Any:
    if isinstance(tree, dict):
        return {k: rebuilt(v, values, f"{path}/{k}") for k, v in tree.items()}
    return values[path]


def compiled(optimizer: optim.Optimizer, first: dict[str, Any], steps: int = 20) -> dict[str, Any]:
    """The parameters after updates by a library that holds them and the optimizer's state."""
    tree = {
        "p": {n: tw.tensor(x) for n, x in first.items()},
        "s": optimizer.init({n: tw.tensor(x) for n, x in first.items()}),
    }
    states = {p: tw.State(p.replace("/", "_"), x.shape, x.dtype, x) for p, x in leaves(tree).items()}

    def step(unused: tw.Tensor) -> tw.Tensor:
        now = rebuilt(tree, {p: s.value for p, s in states.items()})
        gradients = {n: gradient(n, x) for n, x in now["p"].items()}
        parameters, state = optimizer.update(now["p"], gradients, now["s"])
        for p, x in leaves({"p": parameters, "s": state}).items():
            states[p].value = x
        return unused + 1

    library = tw.compile(step, [np.zeros(1, np.float32)])
    for _ in range(steps):
        library(np.zeros(1, np.float32))
    return {n: np.asarray(library.state[f"_p_{n}"]) for n in first}


def compare(found: dict[str, Any], wanted: dict[str, Any], dtype: str) -> None:
    tolerance = 1e-12 if dtype == "float64" else 2e-6
    for name, x in wanted.items():
        assert np.asarray(found[name]).dtype == dtype
        np.testing.assert_allclose(found[name], x, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("name", "ours", "theirs", "options"), CASES, ids=NAMES)
def test_like_torch(name: str, ours: Any, theirs: Any, options: dict[str, Any], dtype: str) -> None:
    compare(at_once(ours(**options), start(dtype)), expected(theirs, options, dtype), dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["dampening", "nesterov", "adamw amsgrad", "adafactor decay"])
def test_compiled(name: str, dtype: str) -> None:
    _, ours, theirs, options = next(case for case in CASES if case[0] == name)
    compare(compiled(ours(**options), start(dtype)), expected(theirs, options, dtype), dtype)


def test_a_model_learns_with_gradients_of_its_parameters() -> None:
    tw.nn.seed(0)
    model = tw.nn.Sequential(tw.nn.Linear(2, 8), tw.nn.Tanh(), tw.nn.Linear(8, 1))
    optimizer = optim.AdamW(lr=0.05)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((32, 2)).astype(np.float32)
    y = x[:, :1] * x[:, 1:]

    def loss(model: Any) -> tw.Tensor:
        return ((model(x) - y) ** 2).mean()

    parameters: dict[str, Any] = dict(model.named_parameters())
    state = optimizer.init(parameters)
    first = float(loss(model))
    for _ in range(60):
        parameters, state = optimizer.update(parameters, tw.grad(loss)(model), state)
        model.load_state_dict(parameters)
    assert int(state["step"]) == 60
    assert float(loss(model)) < 0.2 * first


def test_16_bit_parameters_keep_their_type() -> None:
    parameters = {"w": tw.tensor(np.ones(3), "bfloat16")}
    optimizer = optim.AdamW(lr=0.5)
    new, state = optimizer.update(parameters, {"w": parameters["w"]}, optimizer.init(parameters))
    assert new["w"].dtype == state["exp_avg"]["w"].dtype == "bfloat16"
    np.testing.assert_allclose(new["w"].numpy().astype(np.float32), 0.495, rtol=1e-2)


def test_what_does_not_fit_is_named() -> None:
    parameters = {n: tw.tensor(x) for n, x in start("float32").items()}
    gradients = dict(parameters)
    optimizer = optim.AdamW()
    state = optimizer.init(parameters)
    with pytest.raises(tw.GradientError, match=r"missing \['scale'\]"):
        optimizer.update(parameters, {n: x for n, x in gradients.items() if n != "scale"}, state)
    with pytest.raises(tw.GradientError, match=r"unknown \['more'\]"):
        optimizer.update(parameters, {**gradients, "more": gradients["scale"]}, state)
    with pytest.raises(tw.ShapeError, match=r"layer.weight' is \(4,\)"):
        optimizer.update(parameters, {**gradients, "layer.weight": gradients["layer.bias"]}, state)
    with pytest.raises(tw.CompileError, match=r"AdamW.update the state that its init"):
        optimizer.update(parameters, gradients, optim.SGD(momentum=0.9).init(parameters))
    with pytest.raises(tw.CompileError, match="for 'layer.weight'"):
        optimizer.update(parameters, gradients, optimizer.init({"other": parameters["scale"]}))
    wrong = optimizer.init({**parameters, "scale": parameters["layer.bias"]})
    with pytest.raises(tw.ShapeError, match="exp_avg of 'scale'"):
        optimizer.update(parameters, gradients, wrong)
    with pytest.raises(tw.CompileError, match="'ids' is int64"):
        optimizer.init({"ids": tw.tensor([1, 2])})
    for make in (
        lambda: optim.SGD(-1.0),
        lambda: optim.Adam(betas=(0.9, 1.0)),
        lambda: optim.SGD(nesterov=True),
    ):
        with pytest.raises(ValueError, match="must be|needs"):
            make()
