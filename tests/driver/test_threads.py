"""Compiling, loading and running in many threads at once in a new process, so that the threads race to make
everything that is made at first use.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

THREADS = 8
ROUNDS = 1


def _torch(seed: int, folder: Path) -> None:
    import torch

    import tilewright as tw

    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3 + seed), torch.nn.ReLU()).eval()
    x = torch.randn(5, 4, generator=generator)
    with torch.no_grad():
        wanted = model(x)
    library = tw.compile(model, (x,), dims={"input": {0: "rows"}}, cache=False)
    torch.testing.assert_close(library(x), wanted)
    torch.testing.assert_close(library(x[:2]), wanted[:2])


def _lstm(seed: int, folder: Path) -> None:
    import torch

    import tilewright as tw

    model = torch.nn.LSTM(3, 2 + seed).eval()
    x = torch.randn(4, 1, 3)
    with torch.no_grad():
        wanted, _ = model(x)
    torch.testing.assert_close(tw.compile(model, (x,), cache=False)(x)[0], wanted)


def _onnx(seed: int, folder: Path) -> None:
    from onnx import TensorProto, helper

    import tilewright as tw

    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "x"], ["s"]), helper.make_node("ReduceSum", ["s"], ["y"], keepdims=0)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2 + seed])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    x = np.arange(3.0 * (2 + seed), dtype=np.float32).reshape(3, -1)
    np.testing.assert_allclose(tw.compile(model)(x), (x * x).sum(), rtol=1e-5)


def _traced(seed: int, folder: Path) -> None:
    import tilewright as tw

    x = np.linspace(-1, 1, 6 + seed, dtype=np.float32)

    def softmax(x: Any) -> Any:
        e = np.exp(x - np.max(x))
        return e / np.sum(e) + seed

    library = tw.compile(softmax, (x,), dims={"x": {0: "n"}}, cache=False)
    path = library.save(folder / f"traced{seed}_{threading.get_ident()}.so")
    for found in (library(x), tw.load(path)(x)):
        np.testing.assert_allclose(found, softmax(x), rtol=1e-5)


TASKS: tuple[Callable[[int, Path], None], ...] = (_torch, _lstm, _onnx, _traced)


def main() -> None:
    """Run all kinds of models in every thread, each thread in another order. Exits with the errors, if there
    are any.
    """
    errors: list[str] = []
    start = threading.Barrier(THREADS)

    def work(k: int, folder: Path) -> None:
        start.wait()
        for step in range(ROUNDS * len(TASKS)):
            task = TASKS[(k + step) % len(TASKS)]
            try:
                task(k % 3, folder)
            except BaseException as error:
                errors.append(f"{task.__name__}: {type(error).__name__}: {str(error)[:300]}")

    with TemporaryDirectory() as name:
        threads = [threading.Thread(target=work, args=(k, Path(name))) for k in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sys.exit("\n".join(errors) or None)


def test_models_of_all_kinds_compile_in_many_threads_of_a_new_process() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.driver.test_threads"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]


CALLED_AT_THE_END = """
import threading, time
import numpy as np
import tilewright as tw

X = np.ones((400, 400), np.float32)
library = tw.compile(lambda x: tw.numpy.tanh(tw.numpy.tanh(x @ X) @ X), (X,))
calls = []

def call():
    while True:
        calls.append(library(X))

for _ in range(2):
    threading.Thread(target=call, daemon=True).start()
while len(calls) < 20:
    time.sleep(0.01)
"""


def test_a_process_ends_while_daemon_threads_call_a_model() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CALLED_AT_THE_END], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_equal_expressions_of_several_threads_are_one() -> None:
    from tilewright.ir.symbolic import Expr, symbol

    found: list[list[Expr]] = []
    start = threading.Barrier(4)
    before = sys.getswitchinterval()

    def work() -> None:
        mine: list[Expr] = []
        start.wait()
        for k in range(3000):
            n = symbol(f"threads_{k}", 1, 1000 + k)
            mine += [n, (n + k) // 7]  # type: ignore[list-item]
        found.append(mine)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(found) == 4
    assert all(a is b for others in found[1:] for a, b in zip(found[0], others, strict=True))


if __name__ == "__main__":
    main()
