"""`python -m bench.gemm`: single matrix products, compared with MKL and oneDNN through torch, and for bytes
with ONNX Runtime.

Forty shapes (rows x depth x columns, with optional batch) in float32, bf16 and int8 (unsigned by signed bytes
into int32): square, narrow and batched small products, those of BERT, and those of a language model's
decoding. The right operand is a constant where it is a weight, else an input. float32 and bf16 are
`nn.Linear` or ``a @ b``; int8 is ONNX's MatMulInteger (`torch._int_mm` for torch, which has no batches), into
a given array. Each engine runs in its own process, interleaved with the others. New measurements replace the
corresponding ones in bench/results/gemm-CLASS.json and .md, CLASS being this machine's class.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from .machines import machine, results_file  # noqa: E402
from .roofline import Roof, measure_roof  # noqa: E402
from .worker import Child, holding  # noqa: E402

PEERS = {"float32": ("torch",), "bf16": ("torch",), "int8": ("torch", "onnxruntime")}
TIMEOUT = 120  # seconds that an engine may take to load a shape


@dataclass(frozen=True)
class Shape:
    """(batch, m, k) @ (k, n) with a weight, or (batch, m, k) @ (batch, k, n)."""

    kind: str
    m: int
    n: int
    k: int
    batch: int = 1
    weight: bool = True

    def __str__(self) -> str:
        return f"{f'{self.batch} × ' if self.batch > 1 else ''}{self.m} × {self.k} × {self.n}"

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k

    def bytes(self, element: int, result: int | None = None) -> float:
        """Bytes moved if each operand is read once and the result is written once, for this element size."""
        right = self.k * self.n * (1 if self.weight else self.batch)
        return (
            element * (self.batch * self.m * self.k + right)
            + (result or element) * self.batch * self.m * self.n
        )


SHAPES = [
    *[Shape("square", n, n, n) for n in (64, 128, 256, 384, 512, 768, 1024, 1536, 2048)],
    *[
        Shape("BERT", m, n, k)
        for m in (128, 384)
        for n, k in ((768, 768), (2304, 768), (3072, 768), (768, 3072))
    ],
    *[Shape("decode", m, n, k) for m in (1, 4, 8) for n, k in ((4096, 4096), (11008, 4096), (4096, 11008))],
    Shape("decode", 1, 32000, 2048),
    *[
        Shape("skinny", *s)
        for s in (
            (4096, 16, 256),
            (4096, 64, 64),
            (16, 4096, 256),
            (32, 32, 8192),
            (2048, 8, 2048),
            (1, 1000, 2048),
        )
    ],
    Shape("batched", 128, 128, 64, 12, False),
    Shape("batched", 128, 64, 128, 12, False),
    Shape("batched", 384, 384, 64, 12, False),
    Shape("batched", 49, 49, 32, 192, False),
    Shape("batched", 49, 32, 49, 192, False),
    Shape("batched", 16, 16, 16, 512, False),
    Shape("batched", 32, 32, 32, 256, False),
]


def serving(engine: str, threads: int) -> Iterator[Any]:
    """Child process (see `worker`): load the requested shape, then time turns of it. The answer to a load is
    the error, a text on failure.
    """
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    answer: Any = None
    call: Callable[[], Any] = int
    while True:
        question = yield answer
        if isinstance(question, float):
            answer = _turn(call, question)
            continue
        shape, precision = question
        load = _integers if precision == "int8" else _reals
        try:
            call, answer = load(engine, shape, precision, threads)
        except Exception as problem:
            answer = f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"


def _reals(engine: str, shape: Shape, precision: str, threads: int) -> tuple[Callable[[], Any], float]:
    """The call, and the largest difference from torch over the largest magnitude."""
    module, inputs = _torch(shape, precision)
    if engine == "torch":
        return partial(module, *inputs), 0.0
    import tilewright as tw

    library = tw.compile(module, inputs, threads=threads)
    wanted, found = module(*inputs).float(), library(*inputs).float()
    return partial(library, *inputs), float((wanted - found).abs().max() / wanted.abs().max())


def _torch(shape: Shape, precision: str) -> tuple[Any, tuple[Any, ...]]:
    import torch

    generator = torch.Generator().manual_seed(0)
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    lead = (shape.batch,) if shape.batch > 1 else ()
    left = torch.randn(*lead, shape.m, shape.k, generator=generator).to(dtype)
    if shape.weight:
        return torch.nn.Linear(shape.k, shape.n, bias=False).to(dtype).eval(), (left,)

    class Product(torch.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return a @ b

    return Product(), (left, torch.randn(*lead, shape.k, shape.n, generator=generator).to(dtype))


def _integers(engine: str, shape: Shape, precision: str, threads: int) -> tuple[Callable[[], Any], float]:
    """The call, which always writes into the same array, and the largest difference from NumPy."""
    import numpy as np

    random = np.random.default_rng(0)
    lead = (shape.batch,) if shape.batch > 1 else ()
    left = random.integers(0, 256, (*lead, shape.m, shape.k)).astype(np.uint8)
    right = random.integers(-128, 128, (*(() if shape.weight else lead), shape.k, shape.n)).astype(np.int8)
    out = np.full((*lead, shape.m, shape.n), -1, np.int32)
    inputs = {"a": left} if shape.weight else {"a": left, "b": right}
    call: Callable[[], Any]
    if engine == "torch":
        import torch

        call = partial(torch._int_mm, *map(torch.from_numpy, (left, right)), out=torch.from_numpy(out))
    elif engine == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        model = _integer_model(inputs, right, out).SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_cpu_input(name, value)
        binding.bind_output("y", "cpu", 0, out.dtype, out.shape, out.ctypes.data)

        def call() -> Any:
            session.run_with_iobinding(binding)
            # The binding holds only the arrays' addresses, so the closure has to keep the arrays alive.
            return inputs, out

    else:
        import tilewright as tw

        library = tw.compile(_integer_model(inputs, right, out), tuple(inputs.values()), threads=threads)
        call = library.bind(*inputs.values(), out=out)
    call()
    # sums of bytes are exact in float64, but not in float32
    return call, float(np.abs(left.astype(np.float64) @ right.astype(np.float64) - out).max())


def _integer_model(inputs: dict[str, Any], right: Any, out: Any) -> Any:
    """A model with MatMulInteger of a and b; b is a constant if it is not an input."""
    from onnx import helper, numpy_helper

    def info(name: str, array: Any) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["y"])],
        "product",
        [info(name, array) for name, array in inputs.items()],
        [info("y", out)],
        [] if "b" in inputs else [numpy_helper.from_array(right, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def measure(
    children: dict[str, Child],
    shape: Shape,
    precision: str,
    roof: Roof,
    seconds: float,
    lock: Path | None,
    nice: int | None,
) -> dict[str, Any]:
    """Median seconds of all engines that have this product, their share of the peak, and the roofline's lower
    bound.
    """
    row: dict[str, Any] = {**asdict(shape), "precision": precision, "date": datetime.date.today().isoformat()}
    for child in children.values():
        child.prioritize(None if nice is None else 0)
    engines = ("tilewright", *PEERS[precision])
    answers = {name: children[name].ask((shape, precision), TIMEOUT) for name in engines}
    row["error"] = answers["tilewright"]
    if isinstance(row["error"], str):
        return {**row, "failed": row["error"]}
    children = {name: children[name] for name in engines if not isinstance(answers[name], str)}
    element, result = {"float32": (4, 4), "bf16": (2, 2), "int8": (1, 4)}[precision]
    row["floor_seconds"] = roof.floor_seconds(precision, [(shape.flops, shape.bytes(element, result))])
    times: dict[str, list[float]] = {name: [] for name in children}
    with holding(lock):
        for child in children.values():
            child.prioritize(nice)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times["tilewright"]) < 3:
            for name, child in children.items():
                times[name] += child.ask(seconds / 20, TIMEOUT)
    for name, values in times.items():
        median = statistics.median(values)
        row[name] = {
            "seconds": median,
            "min_seconds": min(values),
            "max_seconds": max(values),
            "samples": len(values),
            "share_of_peak": shape.flops / median / roof.flops[precision],
        }
    return row


def _turn(call: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of single calls for about `seconds`; short ones are timed in groups of 0.1 ms, and the first
    two are not counted.
    """
    clock = time.perf_counter
    call()
    start = clock()
    call()
    group = max(1, int(1e-4 / (clock() - start)))
    times = []
    end = clock() + seconds
    while not times or clock() < end:
        start = clock()
        for _ in range(group):
            call()
        times.append((clock() - start) / group)
    return times


def merged(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The results `now`, completed by those of `before` if both are from the same machine."""
    if before["machine"] != now["machine"]:
        return now

    def place(row: dict[str, Any]) -> tuple[int, int]:
        return list(PEERS).index(row["precision"]), SHAPES.index(_shape(row))

    rows = {place(row): row for row in (*before["rows"], *now["rows"])}
    flops = before["roof"]["flops"] | now["roof"]["flops"]
    return {
        **now,
        "versions": before["versions"] | now["versions"],
        "roof": now["roof"] | {"flops": {p: flops[p] for p in PEERS if p in flops}},
        "rows": [rows[k] for k in sorted(rows)],
    }


def name(row: dict[str, Any]) -> str:
    """The row's shape as text."""
    return str(_shape(row))


def _shape(row: dict[str, Any]) -> Shape:
    return Shape(**{k: row[k] for k in ("kind", "m", "n", "k", "batch", "weight")})


def best_peer(row: dict[str, Any]) -> tuple[float, float]:
    """The fastest peer's seconds over ours, and its share of the peak."""
    found = min(
        (row[name] for name in PEERS[row["precision"]] if name in row), key=lambda figure: figure["seconds"]
    )
    return found["seconds"] / row["tilewright"]["seconds"], found["share_of_peak"]


def markdown(result: dict[str, Any]) -> str:
    """A table for each precision."""
    roof = result["roof"]
    peaks = ", ".join(
        f"{p} {v / 1e9:.0f} G{'' if p == 'int8' else 'FL'}OP/s" for p, v in roof["flops"].items()
    )
    days = sorted({row["date"] for row in result["rows"]})
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        f"{' to '.join(sorted({days[0], days[-1]}))}, {result['machine']['processor']}, {roof['threads']} "
        f"threads; measured peaks: {peaks}, "
        f"{roof['bandwidth'] / 1e9:.0f} GB/s. Medians; {versions}. Rows × depth × columns. Operands stay in "
        "the caches "
        "where they fit, a shared third-level one too, so a product bound by memory can be faster than the "
        "roofline of memory. "
        "int8: unsigned by signed bytes into int32 (MatMulInteger; torch: `torch._int_mm`), into a given "
        "array; the error is absolute."
    ]
    for precision, peers in PEERS.items():
        rows = [r for r in result["rows"] if r["precision"] == precision]
        if not rows:
            continue
        head = ["kind", "shape", *(f"{name} µs" for name in ("Tilewright", *peers)), "share of peak"]
        head += ["best peer's", "best peer ÷ ours", "floor ÷ ours", "error"]
        lines += ["", f"## {precision}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        ratios = []
        for r in rows:
            cells = [r["kind"], str(_shape(r))]
            if "failed" in r:
                cells += [r["failed"], *[""] * (len(head) - 3)]
            else:
                ours, (ratio, share) = r["tilewright"], best_peer(r)
                ratios.append(ratio)
                cells += [f"{r[n]['seconds'] * 1e6:.1f}" if n in r else "" for n in ("tilewright", *peers)]
                cells += [f"{ours['share_of_peak']:.0%}", f"{share:.0%}", f"{ratio:.2f}"]
                cells += [f"{r['floor_seconds'] / ours['seconds']:.2f}", f"{r['error']:.0e}"]
            lines.append(f"| {' | '.join(cells)} |")
        if ratios:
            mean = [
                "",
                "geometric mean",
                *[""] * (len(head) - 5),
                f"{statistics.geometric_mean(ratios):.2f}",
                "",
                "",
            ]
            lines.append(f"| {' | '.join(mean)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gemm", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("-p", "--precision", choices=list(PEERS), nargs="+", default=list(PEERS))
    add(
        "-k",
        "--kinds",
        nargs="+",
        choices=sorted({s.kind for s in SHAPES}),
        help="only these kinds of shapes",
    )
    add("-t", "--threads", type=int, default=2)
    add("-s", "--seconds", type=float, default=1.0, help="of measuring, for each shape and precision")
    add("--lock", type=Path, help="hold this lock file while measuring")
    add(
        "--nice",
        type=int,
        help="scheduling priority while measuring, on a machine that does other work as well",
    )
    add("--results", type=Path, default=results_file("gemm"))
    options = parser.parse_args(arguments)
    from importlib.metadata import version

    roof = measure_roof(options.threads, options.lock, options.nice)
    peers = sorted({name for precision in options.precision for name in PEERS[precision]})
    children = {
        name: Child(serving, name, options.threads, threads=options.threads)
        for name in ("tilewright", *peers)
    }
    rows = []
    try:
        for child in children.values():
            child.first(TIMEOUT)
        for precision in options.precision:
            for shape in SHAPES:
                if options.kinds and shape.kind not in options.kinds:
                    continue
                row = measure(children, shape, precision, roof, options.seconds, options.lock, options.nice)
                rows.append(row)
                print(f"{precision} {shape.kind} {shape}:", _line(row), flush=True)
    finally:
        for child in children.values():
            child.close()
    result = {
        "machine": machine(),
        "versions": {name: version(name) for name in peers},
        "roof": asdict(replace(roof, flops={p: roof.flops[p] for p in options.precision})),
        "rows": rows,
    }
    if options.results.exists():
        result = merged(json.loads(options.results.read_text()), result)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(result, indent=1) + "\n")
    write(options.results)


def write(path: Path) -> None:
    """Write the table beside the results file at `path`."""
    path.with_suffix(".md").write_text(markdown(json.loads(path.read_text())))


def _line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return str(row["failed"])
    ratio, share = best_peer(row)
    return f"{row['tilewright']['share_of_peak']:.0%} of peak, best peer {share:.0%}, ratio {ratio:.2f}"


if __name__ == "__main__":
    main()
