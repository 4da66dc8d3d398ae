"""Elementwise functions on one thread, data in the cache: cycles per element of Tilewright's kernels, PyTorch
and NumPy.

    python bench/vector_math.py                   # all functions
    python bench/vector_math.py exp gelu --target cpu:x86-64-v3

Writes bench/results/vector_math-CLASS.json, CLASS being this machine's class, and prints the table.

Each row compiles the PyTorch function as a user would and times the kernel that comes out; PyTorch (its
vector library) and NumPy run into arrays given in advance. The engines take turns, the least time counts; a
cycle is one step of a chain of dependent operations.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import tilewright as tw
from tilewright.tools.roofline import machine

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from bench.machines import results_file  # noqa: E402

COUNT = 1 << 14
Function = Callable[[torch.Tensor], torch.Tensor]
FUNCTIONS: dict[str, tuple[Function, Any, float, float]] = {
    "exp": (torch.exp, np.exp, -20, 20),
    "exp2": (torch.exp2, np.exp2, -20, 20),
    "expm1": (torch.expm1, np.expm1, -5, 5),
    "log": (torch.log, np.log, 0.01, 100),
    "log2": (torch.log2, np.log2, 0.01, 100),
    "log10": (torch.log10, np.log10, 0.01, 100),
    "log1p": (torch.log1p, np.log1p, -0.9, 10),
    "sin": (torch.sin, np.sin, -10, 10),
    "cos": (torch.cos, np.cos, -10, 10),
    "tan": (torch.tan, np.tan, -10, 10),
    "asin": (torch.asin, np.arcsin, -1, 1),
    "acos": (torch.acos, np.arccos, -1, 1),
    "atan": (torch.atan, np.arctan, -5, 5),
    "sinh": (torch.sinh, np.sinh, -5, 5),
    "cosh": (torch.cosh, np.cosh, -5, 5),
    "tanh": (torch.tanh, np.tanh, -5, 5),
    "asinh": (torch.asinh, np.arcsinh, -5, 5),
    "acosh": (torch.acosh, np.arccosh, 1, 10),
    "atanh": (torch.atanh, np.arctanh, -0.9, 0.9),
    "erf": (torch.erf, None, -4, 4),
    "erfc": (torch.erfc, None, -4, 4),
    "pow": (lambda x: torch.pow(x, 2.3), lambda x: np.power(x, np.float32(2.3)), 0.01, 100),
    "sqrt": (torch.sqrt, np.sqrt, 0, 100),
    "rsqrt": (torch.rsqrt, None, 0.01, 100),
    "sigmoid": (torch.sigmoid, None, -8, 8),
    "silu": (F.silu, None, -8, 8),
    "gelu": (F.gelu, None, -5, 5),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), None, -5, 5),
    "softplus": (F.softplus, None, -8, 8),
    "softmax": (lambda x: torch.softmax(x.view(-1, 128), 1).view(-1), None, -5, 5),
}


class Elementwise(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Kernel:
    """The one kernel of a compiled function, called in a loop of its own."""

    def __init__(self, function: Function, x: np.ndarray[Any, Any], target: str) -> None:
        import llvmlite.binding as llvm

        from tilewright.targets.llvm.toolchain import compile_object
        from tilewright.targets.registry import resolve

        self.library: Any = tw.compile(
            Elementwise(function), (torch.from_numpy(x),), target=target, cache=False
        )
        (self.text,) = [t for t in self.library.built.texts if "define void @kernel_" in t]
        name = self.text.split("define void @kernel_")[1].split("(")[0]
        found = re.search(r'in 0\.\.(\d+) \{kind = "parallel"', self.library.ir("loop"))
        extent = int(found[1]) + 1 if found else 1
        repeat = f"""
define void @repeat(i64 %times, i64 %end, ptr %buffers, ptr %dims, ptr %scratch) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  call void @kernel_{name}(i64 0, i64 %end, ptr %buffers, ptr %dims, ptr %scratch)
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %times
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
        described: Any = resolve(target)
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        code = compile_object(self.text + repeat, described.isa)
        self._engine = llvm.create_mcjit_compiler(
            llvm.parse_assembly(""), llvm.Target.from_default_triple().create_target_machine()
        )
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 3)(
            self._engine.get_function_address("repeat")
        )
        self.x, self.out = x, np.empty_like(x)
        self._buffers = (ctypes.c_void_p * 2)(self.x.ctypes.data, self.out.ctypes.data)
        self.extent = extent
        self._scratch = np.zeros(1 << 20, np.uint8)

    def __call__(self, times: int) -> None:
        self._run(times, self.extent, ctypes.addressof(self._buffers), None, self._scratch.ctypes.data)


def cycles_per_second() -> float:
    """From a chain of dependent operations of one cycle."""
    import llvmlite.binding as llvm

    steps = "".join(f"  %x{k} = xor i64 %v{k}, %k\n  %v{k + 1} = add i64 %x{k}, %k\n" for k in range(50))
    text = f"""define i64 @chain(i64 %n, i64 %k) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %v0 = phi i64 [ 0, %entry ], [ %v50, %loop ]
{steps}  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  ret i64 %v50
}}"""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    engine = llvm.create_mcjit_compiler(
        llvm.parse_assembly(text), llvm.Target.from_default_triple().create_target_machine(opt=2)
    )
    chain = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(
        engine.get_function_address("chain")
    )
    return 100 * 20_000 / least(lambda: chain(20_000, 3))


def least(run: Callable[[], object], rounds: int = 7) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(name: str, target: str, peers: bool, rounds: int) -> dict[str, float]:
    """Cycles per element by engine."""
    function, numpy_function, low, high = FUNCTIONS[name]
    x = np.random.default_rng(0).uniform(low, high, COUNT).astype(np.float32)
    kernel = Kernel(function, x, target)
    runs: dict[str, Callable[[int], object]] = {"tilewright": kernel}
    if peers:
        tensor, array = torch.from_numpy(x), np.empty_like(x)

        def torch_run(times: int) -> None:
            for _ in range(times):
                function(tensor)

        runs["torch"] = torch_run
        if numpy_function is not None:

            def numpy_run(times: int) -> None:
                for _ in range(times):
                    np.copyto(array, numpy_function(x))

            runs["numpy"] = numpy_run
    best = dict.fromkeys(runs, float("inf"))
    rate = 0.0
    with torch.no_grad():
        for _ in range(rounds):
            rate = max(rate, cycles_per_second())
            for engine, run in runs.items():
                times = 60 if engine == "tilewright" else 10
                best[engine] = min(best[engine], least(lambda run=run, times=times: run(times), 3) / times)
    return {engine: seconds * rate / COUNT for engine, seconds in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("functions", nargs="*", choices=[*FUNCTIONS, []])
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument(
        "--json",
        type=Path,
        help="where the figures go; default: bench/results, if all functions are measured",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    print(f"{'cycles/element':<14}{'tilewright':>12}{'torch':>10}{'numpy':>10}")
    for name in options.functions or FUNCTIONS:
        rows[name] = {
            k: round(v, 3)
            for k, v in measure(name, options.target, not options.no_peers, options.rounds).items()
        }
        print(
            f"{name:<14}"
            + "".join(
                f"{rows[name][k]:>{w}.2f}" if k in rows[name] else " " * w
                for k, w in (("tilewright", 12), ("torch", 10), ("numpy", 10))
            ),
            flush=True,
        )
    path = options.json or (None if options.functions else results_file("vector_math"))
    if path is not None:
        described = {
            "date": datetime.date.today().isoformat(),
            "processor": machine(1).processor,
            "target": options.target,
            "elements": COUNT,
        }
        path.write_text(json.dumps({**described, "cycles_per_element": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
