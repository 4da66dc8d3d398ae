"""Host programs with handwritten LLVM kernels, compiled to shared libraries and run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.artifact import link, package
from tilewright.artifact.sources import COMPILE_FLAGS, INCLUDE_DIR, runtime_sources
from tilewright.dialects import func, host, loop
from tilewright.driver.metadata import interface
from tilewright.errors import CompileError, InternalError, ShapeError
from tilewright.ir.builder import Builder
from tilewright.ir.core import Constant, Module
from tilewright.ir.symbolic import Dim, Expr, smax, symbol
from tilewright.ir.types import BufferType, f32
from tilewright.lowering.memory_plan import MemoryPlan, plan_memory
from tilewright.runtime.library import Library
from tilewright.targets.cpu.target import BuiltCpuLibrary
from tilewright.targets.llvm.build import BuiltLibrary, build
from tilewright.targets.llvm.host import host_inputs, host_outputs
from tilewright.targets.llvm.host_calls import CpuCalls
from tilewright.targets.llvm.isa import Isa
from tilewright.targets.llvm.kernel_modules import kernel_modules
from tilewright.targets.llvm.toolchain import assembly, compile_object, compile_objects


@dataclass(frozen=True)
class Code:
    text: str
    symbol: str
    helpers: dict[str, str] = field(default_factory=dict)
    extent: Dim = 1
    grain: int = 1
    scratch: Dim = 0


def host_isa() -> Isa:
    import llvmlite.binding as llvm

    return Isa("test", llvm.get_default_triple(), "", (), 128, 16, False, False)


def kernel(
    module: Module, name: str, shapes: list[tuple[Dim, ...]], dims: tuple[Expr, ...], outputs: int = 1
) -> None:
    made = module.body.append(loop.Kernel(sym_name=name, dims=dims, num_outputs=outputs))
    for shape in shapes:
        made.body.add_arg(BufferType(f32, shape))


def begin(
    inputs: dict[str, tuple[Dim, ...]], outputs: dict[str, tuple[Dim, ...]]
) -> tuple[Module, Builder, list]:
    module = Module()
    main = func.Func(sym_name="main", arg_names=(*inputs, *outputs), result_names=tuple(outputs))
    module.body.append(main)
    args = [main.body.add_arg(BufferType(f32, shape)) for shape in (*inputs.values(), *outputs.values())]
    return module, Builder(main.body), args


ADD = """
define void @k_add(i64 %begin, i64 %end, ptr %buffers, ptr %dims, ptr %scratch) {
entry:
  %n = load i64, ptr %dims
  %x = load ptr, ptr %buffers
  %py = getelementptr ptr, ptr %buffers, i64 1
  %y = load ptr, ptr %py
  %pz = getelementptr ptr, ptr %buffers, i64 2
  %z = load ptr, ptr %pz
  br label %rows
rows:
  %i = phi i64 [ %begin, %entry ], [ %i2, %next ]
  %row = mul i64 %i, %n
  br label %cols
cols:
  %j = phi i64 [ 0, %rows ], [ %j2, %cols ]
  %at = add i64 %row, %j
  %ax = getelementptr float, ptr %x, i64 %at
  %ay = getelementptr float, ptr %y, i64 %j
  %az = getelementptr float, ptr %z, i64 %at
  %vx = load float, ptr %ax
  %vy = load float, ptr %ay
  %s = call float @helper(float %vx, float %vy)
  store float %s, ptr %az
  %j2 = add i64 %j, 1
  %more = icmp slt i64 %j2, %n
  br i1 %more, label %cols, label %next
next:
  %i2 = add i64 %i, 1
  %again = icmp slt i64 %i2, %end
  br i1 %again, label %rows, label %done
done:
  ret void
}
"""
HELPER = "define internal float @helper(float %a, float %b) {\n  %c = fadd float %a, %b\n  ret float %c\n}\n"

m = symbol("m", 1, 64)
n = symbol("n", 1, 512)


def affine() -> tuple[Module, dict[str, Code]]:
    """Return a program of out = (x + y) + y, flattened through a view, and last = a copy of x. The kernel for
    the additions is handwritten.
    """
    inputs: dict[str, tuple[Dim, ...]] = {"x": (m, n), "y": (n,), "wide": (2 * n + 1,)}
    module, b, (x, y, _, out, last) = begin(inputs, {"out": (m * n,), "last": (m, n)})
    kernel(module, "add", [(m, n), (n,), (m, n)], (n,))
    first = b(host.Alloc(buffer=BufferType(f32, (m, n))))
    b.insert(host.Launch([x, y, first], kernel="add"))
    b.insert(host.Launch([first, y, b(host.View(out, shape=(m, n)))], kernel="add"))
    b.insert(host.Copy(x, last))
    b.insert(func.Return(()))
    return module, {"add": Code(ADD, "k_add", {"helper": HELPER}, extent=m, grain=2, scratch=8 * n)}


def linked(module: Module, codes: Any, isa: Isa, plan: MemoryPlan | None = None) -> BuiltLibrary:
    main = module.symbol("main")
    assert isinstance(main, func.Func)
    return build(
        module,
        CpuCalls(codes),
        isa,
        {"name": "test", **interface(host_inputs(main), host_outputs(main))},
        plan=plan,
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    module, codes = affine()
    plan = plan_memory(module)
    built = linked(module, codes, host_isa(), plan)
    assert plan.largest.arena_bytes == 64 * 512 * 4
    return Library(built.save(tmp_path_factory.mktemp("affine") / "affine.so"))


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (64, 512)])
def test_numbers(library: Library, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random(shape, np.float32), rng.random(shape[1], np.float32)
    out, last = library(x, y, np.zeros(2 * shape[1] + 1, np.float32))
    np.testing.assert_allclose(out, (x + 2 * y).reshape(-1), rtol=1e-6)
    np.testing.assert_array_equal(last, x)


@pytest.mark.parametrize(
    ("x", "y", "wide", "sentence"),
    [
        ((3, 5), (4,), 11, "input 'y' has size 4 in dimension 0, but 'n' is 5 from dimension 1 of 'x'"),
        ((65, 5), (5,), 11, "input 'x' has size 65 in dimension 0: 'm' must be between 1 and 64"),
        ((0, 5), (5,), 11, "input 'x' has size 0 in dimension 0: 'm' must be between 1 and 64"),
        ((3, 5), (5,), 12, "input 'wide' has size 12 in dimension 0, expected 11"),
        ((3,), (5,), 11, "input 'x': expected 2 dimensions, got 1"),
    ],
)
def test_wrong_shapes_say_so(
    library: Library, x: tuple[int, ...], y: tuple[int, ...], wide: int, sentence: str
) -> None:
    with pytest.raises(ShapeError) as error:
        library(np.zeros(x, np.float32), np.zeros(y, np.float32), np.zeros(wide, np.float32))
    assert str(error.value) == sentence


def test_metadata(library: Library) -> None:
    assert library.metadata["name"] == "test"
    assert library.metadata["outputs"] == [
        {"name": "out", "dtype": "float32", "shape": ["m*n"]},
        {"name": "last", "dtype": "float32", "shape": ["m", "n"]},
    ]
    assert library.metadata["symbols"] == {"m": [1, 64], "n": [1, 512]}
    assert [
        t.calls for t in library.profile_raw(*map(np.float32, (np.ones((2, 2)), np.ones(2), np.ones(5))))
    ] == [2]


def test_interpreter_agrees() -> None:
    """The interpreter runs host operations with the results of the compiled program, here copies and views
    without kernels.
    """
    from tilewright.ir.interpreter import Interpreter

    module, b, (x, out, again) = begin({"x": (m, n)}, {"out": (n, m), "again": (m, n)})
    between = b(host.Alloc(buffer=BufferType(f32, (m * n,))))
    b.insert(host.Copy(x, between))
    b.insert(host.Copy(b(host.View(between, shape=(n, m))), out))
    b.insert(host.Copy(between, again))
    b.insert(func.Return(()))
    built = linked(module, {}, host_isa())
    data = np.random.default_rng(1).random((3, 4), np.float32)
    results = [np.zeros((4, 3), np.float32), np.zeros((3, 4), np.float32)]
    Interpreter(module).run("main", [data, *results])
    for ours, theirs in zip(results, BuiltCpuLibrary(built, None)(data), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(results[1], data)


def test_weights_are_passed_or_embedded(tmp_path: Path) -> None:
    row = np.arange(8, dtype=np.float32)
    module, b, (x, out) = begin({"x": (m, 8)}, {"out": (m, 8)})
    kernel(module, "add", [(m, 8), (8,), (m, 8)], (m,))
    # The kernel's first size is its number of columns. Here it gets the number of rows, so x is square.
    weights = [b(host.Constant(value=Constant(row * k))) for k in (1, 2)]
    middle = b(host.Alloc(buffer=BufferType(f32, (m, 8))))
    b.insert(host.Launch([x, weights[0], middle], kernel="add"))
    b.insert(host.Launch([middle, weights[1], out], kernel="add"))
    b.insert(func.Return(()))
    built = linked(module, {"add": Code(ADD, "k_add", {"helper": HELPER}, extent=m)}, host_isa())
    assert built.weights_size == 128
    data = np.random.default_rng(2).random((8, 8), np.float32)
    for library in (BuiltCpuLibrary(built, None), Library(built.save(tmp_path / "weights.so"))):
        np.testing.assert_allclose(library(data), data + 3 * row, rtol=1e-6)
    with pytest.raises(Exception, match="weights are not embedded"):
        Library(built.path)


def test_divisible_dimensions() -> None:
    """Symbols may occur with a factor, or have a known divisor; sizes that do not match are errors."""
    half, block = symbol("half", 1, 100), symbol("block", 8, 512, 8)
    module, b, (x, y, out) = begin({"x": (2 * half,), "y": (block,)}, {"out": (2 * half,)})
    b.insert(host.Copy(x, out))
    b.insert(func.Return(()))
    del y
    library = BuiltCpuLibrary(linked(module, {}, host_isa()), None)
    zeros = [np.zeros(k, np.float32) for k in (6, 16, 7, 12)]
    assert library(zeros[0], zeros[1]).shape == (6,)
    with pytest.raises(ShapeError, match="'x' has size 7 in dimension 0, which no value of 'half' allows"):
        library(zeros[2], zeros[1])
    with pytest.raises(ShapeError, match="'y' has size 12 in dimension 0, which must be a multiple of 8"):
        library(zeros[0], zeros[3])


def test_formulas() -> None:
    """Shapes may contain floor division, remainder, minimum and maximum."""
    a, c = symbol("a", 0, 1000), symbol("c", 1, 1000)
    sizes = (a // 3, smax(a, c) - c % 7, (a * c + 5) % 11, smax(0, (a - c) // 4))
    module, b, (_, _, out) = begin({"x": (a,), "y": (c,)}, {"out": tuple(sizes)})
    b.insert(func.Return(()))
    del out
    library = BuiltCpuLibrary(linked(module, {}, host_isa()), None)
    for i, j in ((0, 1), (7, 3), (3, 7), (100, 13), (5, 999)):
        wanted = (i // 3, max(i, j) - j % 7, (i * j + 5) % 11, max(0, (i - j) // 4))
        assert library(np.zeros(i, np.float32), np.zeros(j, np.float32)).shape == wanted


def test_unknown_output_dimension() -> None:
    free = symbol("count", 0, 10)
    module, b, _ = begin({"x": (m,)}, {"found": (free,)})
    b.insert(func.Return(()))
    with pytest.raises(
        CompileError, match="output 'found' has the shape \\(count\\), but no input's shape determines count"
    ):
        linked(module, {}, host_isa())


def test_bad_ir_is_an_internal_error() -> None:
    with pytest.raises(InternalError, match="not valid"):
        compile_object("define i32 @f() { ret i64 0 }", host_isa())


def test_helper_processes_give_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "one"))
    texts = [f"define i64 @f{k}(i64 %x) {{\n  %y = mul i64 %x, {k + 3}\n  ret i64 %y\n}}\n" for k in range(4)]
    texts = [text + "; " + "x" * 120_000 + "\n" for text in texts]
    alone = compile_objects(texts, host_isa(), 1)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "two"))
    assert compile_objects(texts, host_isa(), 2) == alone
    assert "f0" in assembly(texts[0], host_isa())


def test_modules_of_kernels() -> None:
    """Inlined helpers are in each kernel's module, and others have modules of their own. Unused helpers are
    left out.
    """
    helpers = {
        "h": HELPER.replace("@helper", "@h"),
        "tile": (
            "declare void @llvm.trap()\ndefine internal void @tile(ptr %a) "
            "noinline nounwind {\n  call float @h()\n  ret void\n}\n"
        ),
        "unused": HELPER.replace("@helper", "@unused"),
    }
    text = (
        "declare float @llvm.fabs.f32(float)\ndefine void @k%d() "
        "{\n  call void @tile(ptr null)\n  ret void\n}\n"
    )
    tile, *kernels = kernel_modules([Code(text % k, f"k{k}", helpers) for k in range(3)])
    assert tile.count("define") == 2
    assert "define hidden void @tile(ptr %a) noinline" in tile
    assert "define internal float @h" in tile
    assert len(kernels) == 3
    for module in kernels:
        assert module.count("define") == 1
        assert module.count("declare hidden void @tile(ptr %a) noinline nounwind\n") == 1
        assert module.count("declare") == 2


def test_webassembly() -> None:
    """The same program runs under wasmtime, where every struct has pointers of four bytes."""
    pytest.importorskip("wasmtime")
    from tilewright.targets.wasm.isa import WASM32
    from tilewright.targets.wasm.target import BuiltWasmLibrary

    module, codes = affine()
    library = BuiltWasmLibrary(linked(module, codes, WASM32))
    x, y = np.random.default_rng(0).random((3, 5), np.float32), np.arange(5, dtype=np.float32)
    out, last = library(x, y, np.zeros(11, np.float32))
    np.testing.assert_allclose(out, (x + 2 * y).reshape(-1), rtol=1e-6)
    np.testing.assert_array_equal(last, x)
    with pytest.raises(ShapeError, match="'n' is 5 from dimension 1 of 'x'"):
        library(x, y[:4], np.zeros(11, np.float32))


@pytest.mark.slow  # zig first builds a C library.
def test_aarch64(tmp_path: Path) -> None:
    """The same program is linked into a C program for another processor, which runs where an emulator is
    installed.
    """
    from tilewright.targets.cpu.isa import AARCH64

    isa = replace(AARCH64, triple="aarch64-unknown-linux-musl")
    module, codes = affine()
    built = build(module, CpuCalls(codes), isa, {}, path=tmp_path / "model.so")
    assert built.save(tmp_path / "libmodel.so").read_bytes()[18:20] == (183).to_bytes(2, "little")
    source = tmp_path / "main.c"
    source.write_text(AARCH64_MAIN)
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        "aarch64-linux-musl",
        "-static",
        "-O1",
        f"-I{INCLUDE_DIR}",
    ]
    objects = [*built.objects, *link.compile_c(runtime_sources(), [INCLUDE_DIR], isa, list(COMPILE_FLAGS))]
    objects += [
        link.blob_object(bytes(package.blob(b"")), f"tw_blob_{k}", isa.triple)
        for k in ("weights", "metadata")
    ]
    files = []
    for k, data in enumerate(objects):
        files.append(tmp_path / f"{k}.o")
        files[-1].write_bytes(data)
    subprocess.run([*command, source, *files, "-o", tmp_path / "main"], check=True)
    qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if qemu is None:
        pytest.skip("qemu is not installed; the program was only linked")
    done = subprocess.run([qemu, tmp_path / "main"], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["1.0", "4.0", "3.0", "6.0"], done.stdout + done.stderr


AARCH64_MAIN = r"""
#include <stdio.h>
#include "tilewright.h"
int main(void) {
  float x[4] = {1, 2, 3, 4}, y[2] = {0, 1}, wide[5], out[4], last[4];
  int64_t xs[] = {2, 2}, ys[] = {2}, ws[] = {5}, os[] = {4};
  DLDataType f32 = {kDLFloat, 32, 1};
  DLTensor in[] = {{x, {1, 0}, 2, f32, xs, 0, 0}, {y, {1, 0}, 1, f32, ys, 0, 0}, {wide, {1, 0}, 1, f32, ws,
      0, 0}};
  DLTensor results[] = {{out, {1, 0}, 1, f32, os, 0, 0}, {last, {1, 0}, 2, f32, xs, 0, 0}};
  tw_context* context;
  if (tw_create(0, &context) || tw_run(context, in, 3, results, 2)) return puts(tw_last_error());
  for (int i = 0; i < 4; ++i) printf("%.1f ", out[i]);
  tw_destroy(context);
  return 0;
}
"""
