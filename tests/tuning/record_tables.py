"""Record the times of all points of the spaces of real kernels, on which searches are replayed.

    python -m tests.tuning.record_tables compile FOLDER     # needs the compiler; takes long
    python -m tests.tuning.record_tables measure FOLDER --seconds 70     # repeat until nothing is left
    python -m tests.tuning.record_tables pack FOLDER     # writes tests/tuning/data/measured.json.gz

Spaces that are too large to measure are cut: `Kernel.domains` lists the values of some knobs, and all other
knobs have their defaults. A knob's default is always among its values.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.artifact.choices import Choice, Knob
from tilewright.driver.tuned import keys_for
from tilewright.errors import TilewrightError
from tilewright.nn import functional as F
from tilewright.schedule.core import ScheduleError
from tilewright.tuning import child
from tilewright.tuning.harness import KernelDescription, harness_library
from tilewright.tuning.kernels import Builder, ModelKernel, kernels_of

from .measured import PATH

THREADS = 2
BATCH = 32
FIRST, AGAIN = 4, 24
"""Blocks of every candidate, and of the fastest and the default at the end, whose times decide."""
LEG = 5e-4
"""The least seconds of a leg of a block."""
FASTEST = 0.1
"""The part of the candidates that is measured again."""


@dataclass(frozen=True)
class Kernel:
    """A kernel of a known model."""

    name: str
    make: Callable[[], tuple[Callable[..., Any], tuple[np.ndarray, ...]]]
    """Makes a function and its arguments."""
    domains: Mapping[str, tuple[Knob, ...]] = field(default_factory=dict)
    """Values of knobs. None at all: all knobs have all values."""


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def product(rows: int, depth: int, columns: int, after: Callable[[Any], Any] = lambda x: x) -> Any:
    weight, bias = tw.Tensor(numbers(depth, columns)), tw.Tensor(numbers(columns))
    return lambda x: after(x @ weight + bias), (numbers(rows, depth),)


def quantized(rows: int, depth: int, columns: int) -> Any:
    weight = tw.Tensor(np.random.default_rng(0).integers(-127, 128, (depth, columns)).astype(np.int8))
    x = np.random.default_rng(1).integers(-127, 128, (rows, depth)).astype(np.int8)
    return lambda x: x.astype("int32") @ weight.astype("int32"), (x,)


def convolution(size: int, inputs: int, outputs: int, kernel: int, groups: int = 1) -> Any:
    weight = tw.Tensor(numbers(outputs, inputs // groups, kernel, kernel))
    x = numbers(1, inputs, size, size)
    return lambda x: F.relu(F.conv(x, weight, padding=kernel // 2, groups=groups)), (x,)


FLAGS = (False, True)
KERNELS = (
    Kernel(
        "BERT-base, feed-forward",
        lambda: product(128, 768, 3072, F.gelu),
        {"rows": (18, 36, 126), "columns": (0, 192, 384), "rows_lead": FLAGS, "depth": (256,),
         "unroll": (4,), "tile_columns": (32,)},
    ),
    Kernel(
        "BERT-base, projection",
        lambda: product(128, 768, 768),
        {"rows": (18, 36, 126), "columns": (0, 192, 384), "rows_lead": FLAGS, "tile_rows": (3, 5),
         "ahead": (0, 768)},
    ),
    Kernel(
        "BERT-base, attention",
        lambda: (lambda q, k, v: F.attention(q, k, v), tuple(numbers(1, 12, 128, 64) for _ in range(3))),
        {"rows": (6, 12, 48, 96, 126), "attention.unroll": (4,), "attention.tile_columns": (32,),
         "attention5.unroll": (4,), "attention2.lanes": ("attention2_i2_2", "attention2_r0_2")},
    ),
    Kernel(
        "ResNet-50, convolution 3 x 3 of 56 x 56",
        lambda: convolution(56, 64, 64, 3),
        {"rows": (12, 24, 48), "lines": (2, 4, 8), "rows_lead": FLAGS, "depth": (1, 2),
         "cache_resident": FLAGS, "unroll": (4,)},
    ),
    Kernel(
        "ResNet-50, convolution 3 x 3 of 14 x 14",
        lambda: convolution(14, 256, 256, 3),
        {"columns": (0, 128, 192), "lines": (1, 2, 7, 14), "rows_lead": FLAGS, "depth": (1, 2),
         "unroll": (2, 8)},
    ),
    Kernel(
        "ResNet-50, convolution 1 x 1 of 28 x 28",
        lambda: convolution(28, 512, 128, 1),
        {"rows": (60, 96, 192, 384), "columns": (64,), "rows_lead": FLAGS, "depth": (128, 256),
         "tile_columns": (32,), "unroll": (4,)},
    ),
    Kernel(
        "MobileNetV2, convolution 1 x 1 of 28 x 28",
        lambda: convolution(28, 192, 32, 1),
        {"rows": (24, 48, 96, 192, 384), "rows_lead": FLAGS, "depth": (64, 128), "tile_rows": (3, 5),
         "unroll": (4,)},
    ),
    Kernel("MobileNetV2, depthwise convolution of 56 x 56", lambda: convolution(56, 144, 144, 3, 144)),
    Kernel(
        "Llama of 135M, one token's product",
        lambda: product(1, 576, 1536),
        {"columns": (0, 128, 192, 256, 512, 768), "rows_lead": FLAGS, "depth": (128, 256),
         "unroll": (4,), "ahead": (0, 768)},
    ),
    Kernel(
        "Llama of 135M, quantized product of 128 rows",
        lambda: quantized(128, 576, 1536),
        {"rows": (16, 32, 64, 128), "columns": (0, 128, 192, 384), "rows_lead": FLAGS,
         "depth": (128, 256), "unroll": (2, 4)},
    ),
    Kernel("Llama of 135M, gate", lambda: (lambda x, y: F.silu(x) * y, (numbers(128, 1536),) * 2)),
    Kernel(
        "ResNet-50, maximum pooling",
        lambda: (lambda x: F.max_pool(x, 3, 2, 1), (numbers(1, 64, 112, 112),)),
    ),
    Kernel("ResNet-50, mean of the image", lambda: (lambda x: x.mean((2, 3)), (numbers(1, 2048, 7, 7),))),
)  # fmt: skip


def points(kernel: ModelKernel, domains: Mapping[str, tuple[Knob, ...]]) -> Iterator[tuple[Choice, ...]]:
    """All points of a space whose knobs are restricted to `domains` and their defaults, with the choices as
    recorded but for their domains.
    """

    def values(choice: Choice) -> tuple[Knob, ...]:
        given = choice.domain if not domains else domains.get(choice.name, ())
        return tuple(v for v in choice.domain if v in given or v == choice.default)

    def below(chosen: dict[str, Knob]) -> Iterator[tuple[Choice, ...]]:
        try:
            found = kernel.form.choices(chosen)
        except ScheduleError:
            return
        following = next((c for c in found if c.name not in chosen), None)
        if following is None:
            yield tuple(Choice(c.name, c.value, c.default, values(c), c.reorders_sums) for c in found)
            return
        for value in values(following):
            yield from below({**chosen, following.name: value})

    return below({})


def compile_all(folder: Path, names: Sequence[str]) -> None:
    """Compile the candidates of all kernels to libraries, each distinct code once."""
    for number, kernel in enumerate(KERNELS):
        if names and not any(name in kernel.name for name in names):
            continue
        function, arguments = kernel.make()
        compilation: Any = tw.compile(function, arguments, cache=False, threads=THREADS).origin
        key = keys_for(compilation.target, THREADS)
        (found,) = (k for k in kernels_of(compilation, key, {})[0] if k.has_knobs)
        space, every = found.space(), list(points(found, kernel.domains))
        own = folder / str(number)
        own.mkdir(parents=True, exist_ok=True)
        builder = Builder(found, compilation.target, own, THREADS)
        rows: list[dict[str, Any]] = []
        begun = time.monotonic()
        for start in range(0, len(every), BATCH):
            some = [space.point({c.name: c.value for c in point}) for point in every[start : start + BATCH]]
            built = builder([p for p in some if p is not None])
            for choices, one in zip(every[start : start + BATCH], built, strict=True):
                if isinstance(one, TilewrightError):
                    continue  # refused, as by the rule
                rows.append(
                    {
                        "choices": [asdict(c) for c in choices],
                        "digest": one.digest,
                        "kernel": one.kernel.to_json(),
                    }
                )
            done = start + len(some)
            print(f"{kernel.name}: {done} of {len(every)}, {time.monotonic() - begun:.0f} s", flush=True)
        machine = asdict(found.key)
        (own / "points.json").write_text(json.dumps({"name": kernel.name, "key": machine, "points": rows}))


class Bench:
    """The candidates of one kernel in this process, each measured beside the default in A-B-B-A blocks. Their
    code is the compiler's, so none needs a process of its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rows = json.loads((folder / "points.json").read_text())["points"]
        self.kernels: dict[str, KernelDescription] = {}
        for row in rows:
            self.kernels.setdefault(row["digest"], KernelDescription.from_json(row["kernel"]))
        unchanged = (r for r in rows if all(c["value"] == c["default"] for c in r["choices"]))
        self.default = str(next(unchanged)["digest"])
        self.log = folder / "times.jsonl"

    def left(self) -> list[tuple[str, int]]:
        """The codes that are to be measured, with the number of blocks: all once, then the default itself and
        the fastest again.
        """
        known = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        seen = {(k["digest"], k["blocks"]) for k in known}
        first = [(digest, FIRST) for digest in self.kernels if (digest, FIRST) not in seen]
        if first:
            random.Random(0).shuffle(first)
            return first
        speed = {k["digest"]: float(np.median(k["samples"])) for k in known}
        fastest = sorted(speed, key=lambda digest: -speed[digest])[: max(4, int(FASTEST * len(speed)))]
        again = [d for d in dict.fromkeys((self.default, *fastest)) if (d, AGAIN) not in seen]
        return [(digest, AGAIN) for digest in again]

    def measure(self, end: float) -> int:
        """Measure until the time `end` of the monotonic clock; return how many codes are left."""
        todo = self.left()
        if not todo:
            return 0
        harness = child._harness(str(harness_library()))
        harness.tw_harness_destroy.argtypes = [ctypes.c_void_p]
        sets = child._Sets(self.kernels[self.default].arguments, 0)

        def started(digest: str) -> Any:
            code = child._Code(harness, str(self.folder / f"{digest}.so"), self.kernels[digest])
            code.run(sets)
            least = min(code.run(sets) for _ in range(3))
            code.repeats = math.ceil(LEG * 1e9 / max(1, least))
            return code

        default = started(self.default)
        while todo:
            for digest, blocks in todo:
                if time.monotonic() >= end:
                    return len(todo)
                code = started(digest)
                legs = [
                    [child._undisturbed(c, sets) / c.repeats for c in (default, code, code, default)]
                    for _ in range(blocks)
                ]
                harness.tw_harness_destroy(code._pool)
                line = {
                    "digest": digest,
                    "blocks": blocks,
                    "samples": [round(math.log((a + d) / (b + c)), 5) for a, b, c, d in legs],
                    "default": float(np.median([x for leg in legs for x in (leg[0], leg[3])])) * 1e-9,
                }
                with self.log.open("a") as file:
                    file.write(json.dumps(line) + "\n")
            todo = self.left()
        return 0


def measure_all(folder: Path, seconds: float) -> None:
    """Measure until the time is over."""
    end = time.monotonic() + seconds
    for path in sorted(folder.glob("*/points.json"), key=lambda p: int(p.parent.name)):
        left = Bench(path.parent).measure(end)
        print(f"{path.parent.name}: {left} left", flush=True)
        if left:
            return


def pack(folder: Path) -> None:
    """Write the tables: for each knob its values; for each point the numbers of its values and of the rule's
    defaults (-1: the rule does not ask) and of its code; for each code the logarithm of its speedup.
    """
    tables = []
    for path in sorted(folder.glob("*/points.json"), key=lambda p: int(p.parent.name)):
        found = json.loads(path.read_text())
        rows = found["points"]
        known = [json.loads(line) for line in path.with_name("times.jsonl").read_text().splitlines()]
        known.sort(key=lambda k: k["blocks"])
        speed = {k["digest"]: float(np.median(k["samples"])) for k in known}
        rows = [row for row in rows if row["digest"] in speed]
        codes = list(dict.fromkeys(row["digest"] for row in rows))
        asked = max((row["choices"] for row in rows), key=len)
        knobs = [c["name"] for c in asked]
        assert all(
            [n for n in knobs if n in {c["name"] for c in r["choices"]}] == [c["name"] for c in r["choices"]]
            for r in rows
        )
        texts: dict[str, dict[str, None]] = {name: {} for name in knobs}
        for row in rows:
            for choice in row["choices"]:
                texts[choice["name"]] |= dict.fromkeys(map(json.dumps, choice["domain"]))
        values = {name: list(map(json.loads, found)) for name, found in texts.items()}
        values = {n: sorted(v) if all(type(x) is int for x in v) else v for n, v in values.items()}

        def places(row: Any, what: str, knobs: list[str] = knobs, values: Any = values) -> list[int]:
            by_name = {c["name"]: c[what] for c in row["choices"]}
            return [values[n].index(by_name[n]) if n in by_name else -1 for n in knobs]

        repeated = [k for k in known if k["blocks"] == FIRST]
        noise = float(np.median([np.std(k["samples"], ddof=1) for k in repeated]))
        tables.append(
            {
                "name": found["name"],
                "default_seconds": float(np.median([k["default"] for k in repeated])),
                "values": values,
                "points": [
                    [*places(r, "value"), *places(r, "default"), codes.index(r["digest"])] for r in rows
                ],
                "log_speedup": [round(speed[code], 4) for code in codes],
                "noise": round(noise, 4),
            }
        )
        key = found["key"]
    contents = {
        "date": date.today().isoformat(),
        "machine": {name: key[name] for name in ("triple", "features", "caches", "threads")},
        "tables": tables,
    }
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_bytes(gzip.compress(json.dumps(contents, separators=(",", ":")).encode(), mtime=0))
    print(f"{PATH}: {PATH.stat().st_size} bytes, {sum(len(t['points']) for t in tables)} points")


def main() -> None:
    """Run one of the steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["compile", "measure", "pack"])
    parser.add_argument("folder", type=Path, help="Folder of the libraries and times.")
    parser.add_argument("--kernel", action="append", default=[], help="Part of a kernel's name to compile.")
    parser.add_argument("--seconds", type=float, default=70.0, help="Time to measure for.")
    given = parser.parse_args()
    if given.step == "compile":
        compile_all(given.folder, given.kernel)
    elif given.step == "measure":
        measure_all(given.folder, given.seconds)
    else:
        pack(given.folder)


if __name__ == "__main__":
    main()
