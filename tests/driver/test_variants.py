"""Variants of kernels, which the host program chooses by sizes at run time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.caches import new_cache
from tests.devices import need

import tilewright as tw
from tilewright import nn
from tilewright.cli import main
from tilewright.dialects import host
from tilewright.errors import CompileError
from tilewright.ir.interpreter import Frame, Interpreter
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_op
from tilewright.lowering.pipeline import lower
from tilewright.schedule import Schedule

RNG = np.random.default_rng(0)
W, V = (RNG.standard_normal(shape, dtype=np.float32) / 16 for shape in ((96, 160), (160, 48)))
DIMS = {"x": {0: "0<=b<=8", 1: "0<=n<=64"}}


def model(x: tw.Tensor) -> tw.Tensor:
    return nn.functional.softmax(nn.functional.relu(x @ W) @ V, axis=-1)


def expected(x: Any) -> Any:
    y = np.maximum(x @ W, 0) @ V
    e = np.exp(y - y.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def data(b: int, n: int) -> Any:
    return RNG.standard_normal((b, n, 96), dtype=np.float32)


def compiled(schedules: Any = (), dims: Any = DIMS, **options: Any) -> Any:
    return tw.compile(model, (data(2, 5),), dims=dims, schedules=schedules, **options)


@tw.schedule_kernel("softmax", when="b*n < 3")
def serial(s: Schedule) -> None:
    for name in {block.sym_name for block in s.blocks()}:
        s.vectorize(s.loops(name)[-1])


OWN = [
    tw.pin("matmul_relu", when="b*n <= 6", rows=0, columns=0),
    tw.pin("matmul*", when="6 < b*n <= 64 and n % 2 == 0", rows=120),
    serial,
    tw.pin("matmul", rows=240),
]
SIZES = {
    "the first condition's last": (2, 3, "matmul_relu.1", "matmul", "softmax"),
    "the smallest": (1, 1, "matmul_relu.1", "matmul", "softmax.1"),
    "after the first": (1, 7, "matmul_relu", "matmul", "softmax"),
    "an even size": (1, 8, "matmul_relu.2", "matmul.1", "softmax"),
    "the second condition's last": (1, 64, "matmul_relu.2", "matmul.1", "softmax"),
    "after the second": (3, 22, "matmul_relu", "matmul", "softmax"),
    "odd": (7, 9, "matmul_relu", "matmul", "softmax"),
    "the largest": (8, 64, "matmul_relu", "matmul", "softmax"),
    "no rows": (0, 3, "matmul_relu.1", "matmul", "softmax.1"),
    "no columns": (3, 0, "matmul_relu.1", "matmul", "softmax.1"),
}


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64-v4", "wasm32"])
def test_the_first_condition_that_holds_chooses_the_kernel(target: str) -> None:
    need(target)
    if target == "wasm32":
        pytest.importorskip("wasmtime")
    library = compiled(OWN, target=target)
    for b, n, *names in SIZES.values():
        x = data(b, n)
        np.testing.assert_allclose(library(x), expected(x), rtol=2e-5, atol=1e-6)
        if target != "wasm32":
            assert sorted(row.name for row in library.profile(x, repeat=1)) == sorted(names)


def test_the_interpreter_chooses_as_the_host_program() -> None:
    origin = compiled(OWN, cache=False).origin
    lowered = lower(origin.graph.clone(), origin.target.lowering, lambda step, m: step(m), None, OWN)
    module = parse(print_op(lowered.module, resources=True))
    for b, n, *names in SIZES.values():
        x = data(b, n)
        out = np.empty((b, n, 48), np.float32)
        launched = []
        for op in module.symbol("main").walk():
            if isinstance(op, host.Launch):
                launched.append(op.chosen(Frame(module, {"b": b, "n": n}, {})))
        assert launched == names
        if b * n <= 16:
            Interpreter(module).run("main", [x, out])
            np.testing.assert_allclose(out, expected(x), rtol=2e-5, atol=1e-6)


def test_descriptions_and_profiles_name_variants(tmp_path: Path) -> None:
    library = compiled(OWN)
    assert list(library.kernels) == ["matmul_relu", "matmul", "softmax"]
    relu = library.kernels["matmul_relu"]
    assert [(v.name, v.when) for v in relu.variants] == [
        ("matmul_relu.1", "b*n <= 6"),
        ("matmul_relu.2", "6 < b*n <= 64 and n % 2 == 0"),
    ]
    rows = [next(c.value for c in k.choices if c.name == "rows") for k in (*relu.variants, relu)]
    assert rows[:2] == [0, 120] and rows[2] not in rows[:2]
    assert "@tw.schedule_kernel('matmul_relu', when='b*n <= 6')" in relu.variants[0].schedule
    row = next(r for r in library.profile(data(1, 2), repeat=1) if r.name.startswith("matmul_relu"))
    assert (row.name, row.when, row.calls) == ("matmul_relu.1", "b*n <= 6", 1)
    library.save(tmp_path / "model.so")
    assert tw.load(tmp_path / "model.so").kernels == library.kernels


def command(*arguments: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    assert exit_.value.code in (None, 0)


def test_commands_show_variants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(compiled(OWN).save(tmp_path / "model.so"))
    command("inspect", path)
    out = capsys.readouterr().out
    assert "kernels (3 and 4 variants)" in out and "matmul_relu.1 (b*n <= 6)" in out
    command("profile", path, "--dim", "b=2", "--dim", "n=3")
    assert "matmul_relu.1 (b*n <= 6)" in capsys.readouterr().out


def test_the_printed_schedules_are_code_that_makes_the_same_variants(tmp_path: Path) -> None:
    library = compiled(OWN)
    names: dict[str, Any] = {"tw": tw}
    again = []
    for kernel in library.kernels.values():
        for variant in (*kernel.variants, kernel):
            exec(variant.schedule, names)
            again.append(names["own"])
    assert compiled(again).ir("llvm") == library.ir("llvm")
    tw.save_schedules(library, tmp_path / "schedules.json")
    read = tw.load_schedules(tmp_path / "schedules.json")
    assert compiled(read).ir("llvm") == library.ir("llvm")
    tw.save_schedules(OWN[:2], tmp_path / "pins.json")
    assert tw.load_schedules(tmp_path / "pins.json") == OWN[:2]


def test_the_cache_knows_conditions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    new_cache(monkeypatch, tmp_path)
    for when in ("n <= 4", "n <= 5", "n <= 4"):
        library = compiled([tw.pin("matmul", when=when, rows=48)])
        assert library.kernels["matmul"].variants[0].when == when
    assert library.report.cached


def test_scratch_memory_serves_the_variant_that_needs_most() -> None:
    library = tw.compile(
        lambda x: nn.functional.relu(x.astype("float64") @ W.astype(np.float64)).astype("float32"),
        (data(2, 5),),
        dims=DIMS,
        schedules=[tw.pin("*matmul*", when="n >= 32", rows=0, columns=0), tw.pin("*matmul*", rows=60)],
    )
    for b, n in ((1, 31), (1, 32), (8, 64), (8, 31), (3, 64)):
        x = data(b, n)
        np.testing.assert_allclose(library(x), np.maximum(x @ W, 0), rtol=2e-5, atol=1e-5)


def test_variants_in_a_loop_may_depend_on_its_step() -> None:
    def loop(x: tw.Tensor) -> tw.Tensor:
        return tw.scan(lambda h, t: (tw.where(h @ W[:, :96] > 0, h, t), h), x[0], x)[1]

    x = data(4, 5)
    plain = tw.compile(loop, (x,), dims=DIMS)
    name = next(name for name in plain.kernels if "matmul" in name)
    library = tw.compile(loop, (x,), dims=DIMS, schedules=[tw.pin(name, when="n > 3", rows=0)])
    for b, n in ((4, 5), (3, 3), (1, 64)):
        x = data(b, n)
        np.testing.assert_allclose(library(x), plain(x), rtol=2e-5, atol=1e-5)


def test_a_pattern_passes_over_kernels_without_the_size() -> None:
    def two(x: tw.Tensor, y: tw.Tensor) -> tuple[tw.Tensor, tw.Tensor]:
        return x @ W, nn.functional.relu(y @ V)

    dims = {"x": {0: "m<=64"}, "y": {0: "n<=64"}}
    args = (RNG.standard_normal((5, 96), dtype=np.float32), RNG.standard_normal((7, 160), dtype=np.float32))
    library = tw.compile(two, args, dims=dims, schedules=[tw.pin("matmul*", when="n <= 8", rows=0)])
    assert {name: len(k.variants) for name, k in library.kernels.items()} == {"matmul": 0, "matmul_relu": 1}


BAD: dict[str, tuple[Any, str]] = {
    "unknown symbol": (
        [tw.pin("matmul", when="seq <= 4")],
        r"when='seq <= 4' is for no sizes: kernel 'matmul': .*unknown symbol 'seq'.*\(known: b, n\)",
    ),
    "never": ([tw.pin("matmul", when="n > 64")], r"'n > 64' never holds for b in 0..8, n in 0..64"),
    "never both": ([tw.pin("matmul", when="n < 4 and n > 8")], "'n < 4 and n > 8' never holds"),
    "covered": (
        [tw.pin("matmul", when="n <= 8"), tw.pin("matmul", when="n <= 8 and b > 2")],
        "when='n <= 8 and b > 2' is for no sizes: kernel 'matmul' has when='n <= 8' before it in the list",
    ),
    "after a schedule for all sizes": (
        [tw.pin("matmul", rows=48), tw.pin("matmul", when="n <= 8", rows=96)],
        "kernel 'matmul' has a schedule without a condition before it",
    ),
    "no knob": (
        [tw.pin("matmul", when="n <= 8", rowz=1)],
        "the schedule of kernel 'matmul' when 'n <= 8' does not fit: there is no choice 'rowz'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_schedules_that_no_size_gets_are_refused(case: str) -> None:
    with pytest.raises(CompileError, match=BAD[case][1]):
        compiled(BAD[case][0])


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ("n <=", "'n <=' is no condition; write comparisons of sizes"),
        ("n", "'n' is no comparison by <, <=, >, >= or =="),
        ("n <= 4 or n > 8", "'n <= 4 or n > 8' is no comparison"),
        ("n != 4", "'n != 4' is no comparison"),
        ("n <= x.y", "cannot read 'n <= x.y'"),
        ("3 < 4", "has no symbol of a size"),
        (4, "a condition is text"),
    ],
)
def test_wrong_conditions_are_named(when: Any, message: str) -> None:
    with pytest.raises(CompileError, match=f"the schedule of 'matmul': when=.*{re.escape(message)}"):
        tw.pin("matmul", when=when, rows=1)


def test_a_wrong_condition_in_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "schedules.json"
    path.write_text(json.dumps({"version": 1, "schedules": [{"kernel": "a", "when": "n"}]}))
    with pytest.raises(CompileError, match="entry 0 of .* 'n' is no comparison"):
        tw.load_schedules(path)


def test_a_target_without_variants_refuses_conditions() -> None:
    with pytest.raises(CompileError, match="the target webgpu has no variants of kernels; leave"):
        compiled([tw.pin("matmul", when="n <= 4")], target="webgpu")
