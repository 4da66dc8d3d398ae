"""Models on Hexagon, in QEMU: programs with musl that the static libraries are linked into."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.targets.llvm.test_weight_forms import made, product
from tilewright.ir.types import i8

from .emulators import GUARDED, NoEmulator, command_of, run_model, run_static
from .models import difference

TARGET = "hexagon-linux"
VECTORS = f"{TARGET}:hvx"


def needs_emulator() -> None:
    try:
        command_of(TARGET)
    except NoEmulator as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "name",
    ["mlp", "int8-cnn", *(pytest.param(n, marks=pytest.mark.slow) for n in ("cnn", "lstm", "transformer"))],
)
def test_models_have_the_results_of_cpu(name: str) -> None:
    needs_emulator()
    assert difference(name, TARGET).startswith("ok")


@pytest.mark.parametrize("name", ["int8-cnn", pytest.param("int8-mlp", marks=pytest.mark.slow)])
def test_models_in_vectors_have_the_results_of_cpu(name: str) -> None:
    """Nothing beyond the ends of weights, workspace, inputs and outputs is accessed."""
    needs_emulator()
    assert difference(name, VECTORS, guarded=True).startswith("ok")


@pytest.mark.parametrize("size", [127, 128, 300])
def test_integers_in_vectors_have_the_results_of_cpu(size: int) -> None:
    """Bytes alone, and bytes with wider integers; the last vectors lie at the ends of memory."""
    needs_emulator()
    rng = np.random.default_rng(size)
    given = [
        rng.integers(np.iinfo(t).min, np.iinfo(t).max, size, t, endpoint=True)
        for t in (np.int8, np.int8, np.int16)
    ]

    def model(a: Any, b: Any, c: Any) -> Any:
        products = a.astype("int32") * b.astype("int32") + c.astype("int32")
        return a + b, tw.numpy.maximum(a, b), products, c >> 2

    library = tw.compile(model, tuple(given), target=VECTORS, cache=False)
    assert ("<128 x i8>" in library.ir("llvm")) == (size >= 128)
    (found,) = run_model(library, VECTORS, [given], guarded=True)
    for actual, wanted in zip(found, tw.compile(model, tuple(given), target="cpu")(*given), strict=True):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tq1_0", "q6_k"])
def test_quantized_weights(name: str) -> None:
    """Digits of base 3 have no assembly here, which LLVM has no register for."""
    needs_emulator()
    weights = made(name, 5)
    library = tw.compile(product(weights, i8), target=VECTORS, cache=False)
    assert "simd.quantized_gemm" in library.ir("loop")
    x = np.random.default_rng(0).standard_normal((3, 512)).astype(np.float32)
    ((y,),) = run_model(library, VECTORS, [[x]])
    wanted = x @ weights.matrix.T
    assert np.linalg.norm(y - wanted) < 1.2e-2 * np.linalg.norm(wanted)


def test_conversions_round_to_even_and_saturate() -> None:
    """Ties, numbers beside them, numbers beyond 8, 16 and 32 bits, infinities and NaN."""
    needs_emulator()
    ties = np.array([0.5, 1.5, 2.5, 126.5, 127.5, 128.5, 254.5, 255.5, 32767.5, 65534.5], np.float32)
    beside = [np.nextafter(ties, np.float32(end)) for end in (0, np.inf)]
    large = np.array([0, 1e3, 1e5, 2.0**23 + 1, 2.0**31 - 128, 2.0**31, 3e9, 3e38, np.inf], np.float32)
    positive = np.concatenate([ties, *beside, large])
    x = np.concatenate([positive, -positive, [np.float32(np.nan), np.float32(-np.nan)]])
    cases = [
        (zero, np.dtype(t))
        for zero in (-5, 0, 3)
        for t in ("int8", "uint8", "int16", "uint16")
        if zero >= np.iinfo(t).min
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", f"z{k}"], [f"y{k}"]) for k in range(len(cases))
    ]
    types = [helper.np_dtype_to_tensor_dtype(t) for _, t in cases]
    graph = helper.make_graph(
        nodes, "conversions", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(f"y{k}", t, x.shape) for k, t in enumerate(types)],
        [numpy_helper.from_array(np.float32(1), "scale"),
         *(numpy_helper.from_array(np.array(zero, t), f"z{k}") for k, (zero, t) in enumerate(cases))],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    library = tw.compile(model, target=TARGET, cache=False)
    assert library.ir("llvm").count("F2.conv.sf2w") > len(cases)
    (found,) = run_model(library, TARGET, [[x]])
    for (zero, dtype), actual in zip(cases, found, strict=True):
        wanted = np.clip(np.round(x.astype(np.float64)) + zero, np.iinfo(dtype).min, np.iinfo(dtype).max)
        np.testing.assert_array_equal(
            actual, np.where(np.isnan(x), 0, wanted).astype(dtype), str((zero, dtype))
        )


def test_memory_ends_where_a_block_ends(tmp_path: Path) -> None:
    """The allocator of the tests above lets no access beyond an end pass."""
    needs_emulator()
    source = tmp_path / "main.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        "int main(int argc, char** argv) {\n"
        "  volatile char* block = malloc(10);\n"
        "  block[8 + argc] = 1;\n"
        "  puts(argv[argc - 1]);\n"
        "  return 0;\n}\n"
    )
    assert run_static(TARGET, [source, GUARDED], []).endswith("program\n")
    with pytest.raises(subprocess.CalledProcessError):
        run_static(TARGET, [source, GUARDED], ["beyond"])


def test_errors_have_the_text_of_the_runtime() -> None:
    """The text is in memory of the thread that has no thread-local variable."""
    needs_emulator()
    x = np.ones((2, 8), np.float32)
    library = tw.compile(lambda x: x * 2, (x,), target=TARGET, cache=False)
    with pytest.raises(RuntimeError, match="input 'x' has size 3 in dimension 0, expected 2"):
        run_model(library, TARGET, [[np.ones((3, 8), np.float32)]])


def test_shared_libraries_have_no_thread_local_variables(tmp_path: Path) -> None:
    """Accesses to them call a function through an entry of the table of procedures that the linker leaves
    empty.
    """
    lief = pytest.importorskip("lief")
    x = np.ones((2, 8), np.float32)
    with tw.compile(lambda x: x * 2, (x,), target=TARGET, cache=False) as library:
        binary = lief.ELF.parse(str(library.save(tmp_path / "model.so")))
    assert binary.libraries == ["libc.so"]
    assert "__tls_get_addr" not in {symbol.name for symbol in binary.imported_symbols}
    assert "TLS" not in {segment.type.name for segment in binary.segments}
