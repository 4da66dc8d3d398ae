"""MLPerf Tiny's networks in 8-bit integers, with weights of 8 and of 4 bits, on Cortex-M: exactly as on the
target `cpu`.

A softmax at the end, of floats, adds in another order and is left out.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from bench.mcu.networks import NETWORKS
from tests.targets.mcu.boards import QEMU, run_on

import tilewright as tw
from tilewright import nn

pytest.importorskip("ziglang")
needs_qemu = pytest.mark.skipif(QEMU is None, reason="qemu-system-arm is not installed")

MAIN = """
#include <stddef.h>
#include "model.h"
void say(const char*);
void say_bytes(const void*, size_t);
static const _Alignas(8) unsigned char x[] = {{{data}}};
static _Alignas(8) float y[{size}];
int main(void) {{
  if (model_run((const float*)x, y)) return say(model_error()), 1;
  say_bytes(y, sizeof y);
  return 0;
}}
"""


def outputs(quantized: object, x: np.ndarray, processor: str, place: Path) -> tuple[np.ndarray, np.ndarray]:
    """The results of a model on a processor, and on the target `cpu`."""
    want = np.asarray(tw.compile(quantized, target="cpu")(x))
    path = tw.compile(quantized, target=processor).save(place / "model.tar")
    main = MAIN.format(data=", ".join(map(str, x.tobytes())), size=want.size)
    found = bytes.fromhex(run_on(processor, [path], main, place))
    return np.frombuffer(found, np.float32).reshape(want.shape), want


@needs_qemu
@pytest.mark.parametrize(
    ("name", "processor", "bits"),
    [
        ("keyword-spotting", "cortex-m4", 8),
        ("anomaly-detection", "cortex-m4", 4),
        ("anomaly-detection", "cortex-m7", 8),
        ("keyword-spotting", "cortex-m55", 8),
        ("keyword-spotting", "cortex-m55", 4),
        *[
            pytest.param(name, processor, bits, marks=pytest.mark.slow)
            for name in NETWORKS
            for processor in ("cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55")
            for bits in (8, 4)
        ],
    ],
)
def test_networks_equal_cpu(name: str, processor: str, bits: int, tmp_path: Path) -> None:
    network = NETWORKS[name]
    quantized = network.quantized(softmax=False, weight_bits=bits)
    found, want = outputs(quantized, network.samples()[0], processor, tmp_path)
    assert np.array_equal(found, want)


@needs_qemu
@pytest.mark.parametrize("processor", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize(("depth", "bits"), [(9, 8), (3001, 8), (9, 4), (259, 4), (3001, 4)])
def test_rows_and_columns_that_fill_no_pair(processor: str, depth: int, bits: int, tmp_path: Path) -> None:
    """Three rows, seven columns, and odd sums, of which the longest do not fit the stack: odd numbers of all
    that is taken in pairs.
    """
    nn.seed(1)
    model = nn.Sequential(nn.Linear(depth, 7), nn.ReLU(), nn.Linear(7, 5))
    x = np.random.default_rng(1).standard_normal((3, depth)).astype(np.float32)
    found, want = outputs(tw.quantize(model, [x], weight_bits=bits), x, processor, tmp_path)
    assert np.array_equal(found, want)


@needs_qemu
@pytest.mark.parametrize("processor", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("bits", [8, 4])
def test_windows_that_are_copied_in_parts(processor: str, bits: int, tmp_path: Path) -> None:
    """A window of nine times 300 channels is longer than the rows that are copied at once."""
    nn.seed(2)
    x = np.random.default_rng(2).standard_normal((1, 300, 4, 5)).astype(np.float32)
    quantized = tw.quantize(nn.Conv2d(300, 3, 3, padding=1), [x], weight_bits=bits)
    found, want = outputs(quantized, x, processor, tmp_path)
    assert np.array_equal(found, want)


@needs_qemu
@pytest.mark.parametrize("processor", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("a_type", [np.int8, np.uint8])
@pytest.mark.parametrize("b_type", [np.int8, np.uint8])
def test_products_of_all_signs(processor: str, a_type: type, b_type: type, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    rng = np.random.default_rng(3)
    a, b = (
        rng.integers(*((-128, 128) if t is np.int8 else (0, 256)), shape).astype(t)
        for t, shape in ((a_type, (3, 40)), (b_type, (40, 5)))
    )
    node = onnx.helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(a_type))
    graph = onnx.helper.make_graph(
        [node],
        "product",
        [onnx.helper.make_tensor_value_info("x", kind, a.shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT32, (3, 5))],
        [onnx.numpy_helper.from_array(b, "w")],
    )
    path = tw.compile(onnx.helper.make_model(graph), target=processor).save(tmp_path / "model.tar")
    main = MAIN.replace("const float*", "const void*").replace("float y", "int32_t y")
    main = main.format(data=", ".join(map(str, a.tobytes())), size=15)
    found = np.frombuffer(bytes.fromhex(run_on(processor, [path], main, tmp_path)), np.int32)
    assert np.array_equal(found.reshape(3, 5), a.astype(np.int32) @ b.astype(np.int32))


class Beside(nn.Module):
    """Two convolutions of which the first one's image is added to the second one's result, and one whose
    windows are two apart.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(5, 5, 3, padding=1), nn.Conv2d(5, 5, 3, padding=1)
        self.entry, self.last = nn.Conv2d(2, 5, 1), nn.Conv2d(5, 6, (3, 5), stride=2, padding=(1, 2))

    def forward(self, x: tw.Tensor) -> tw.Tensor:
        x = nn.functional.tanh(self.entry(x))
        y = self.second(nn.functional.relu(self.first(x))) + x
        return self.last(y)[:, :5] + y[:, :, ::2, ::2]


@needs_qemu
@pytest.mark.parametrize("processor", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("bits", [8, 4])
def test_borders_are_filled_in_where_rows_are_copied(processor: str, bits: int, tmp_path: Path) -> None:
    """An image that others read, too, is not copied: guards limit what products read of it. Behind a tanh,
    the zero point at the borders is not 0.
    """
    nn.seed(5)
    x = np.random.default_rng(5).standard_normal((1, 2, 7, 9)).astype(np.float32)
    quantized = tw.quantize(Beside(), [x], weight_bits=bits)
    library = tw.compile(quantized, target=processor)
    assert len(re.findall(r"brgemm.*guards = ", library.ir("loop"))) >= 2
    assert not re.search(r"fill = 0\D", library.ir("loop")) and "fill = " in library.ir("loop")
    found, want = outputs(quantized, x, processor, tmp_path)
    assert np.array_equal(found, want)


@needs_qemu
@pytest.mark.parametrize("processor", ["cortex-m4", "cortex-m55"])
def test_nan_is_quantized_to_zero(processor: str, tmp_path: Path) -> None:
    """A quantized NaN is the number 0, not the zero point, which is 128 or so here."""
    nn.seed(4)
    x = np.random.default_rng(4).standard_normal((1, 23)).astype(np.float32)
    quantized = tw.quantize(nn.Linear(23, 5), [x])
    broken = np.where(np.arange(23) % 3 == 0, np.float32(np.nan), x)
    found, want = outputs(quantized, broken, processor, tmp_path)
    other, _ = outputs(quantized, np.nan_to_num(broken), processor, tmp_path)
    assert np.array_equal(found, want) and not np.array_equal(found, other)


def test_products_of_bytes_are_pairs_of_halfwords() -> None:
    """The loop of a layer has four multiply-adds of pairs to each two words of weights, and no soft float."""
    network = NETWORKS["anomaly-detection"]
    assembly = tw.compile(network.quantized(), target="cortex-m4").ir("asm")
    assert len(re.findall(r"\bsmlad\b", assembly)) >= 8 and "sxtb16" in assembly
    assert "vcvtr.s32.f32" in assembly and "roundeven" not in assembly and "__aeabi_f" not in assembly


def inner_loop(assembly: str, function: str, last: str) -> list[str]:
    """The instructions of the first loop in a function that ends in the instruction `last`."""
    loop = re.search(rf"\n{function}:.*?\n(\.LBB\w+):\n((?:(?!\n\.L).)*?\b{last}\b[^\n]*\1)", assembly, re.S)
    assert loop is not None
    return [line.split()[0] for line in loop[2].split("\n") if line.strip() and "@" not in line.split()[0]]


def test_products_of_two_columns_in_a_byte() -> None:
    """Short sums take masks in place of loads and extensions, vectors two further instructions."""
    network = NETWORKS["anomaly-detection"]
    model = network.quantized(weight_bits=4)
    assembly = tw.compile(model, target="cortex-m4").ir("asm")
    lines = inner_loop(assembly, "pairs_of_1_int8_uint8_12_halves_in_place", "bne")
    assert lines.count("smlad") == 8 and "sxtb16" not in lines and sum(x[:3] == "and" for x in lines) == 8
    longest = inner_loop(assembly, "pairs_of_1_int8_uint8_4_halves_in_place", "bne")
    assert longest.count("smlad") == 8 and longest.count("sxtb16") == 8
    assembly = tw.compile(model, target="cortex-m55").ir("asm")
    lines = inner_loop(assembly, "vectors_of_1_uint8_int8_halves_in_place", "le")
    assert lines.count("vmlava.s8") == 2 and lines.count("vldrw.u32") == 1 and len(lines) <= 10


def test_products_of_bytes_are_vectors() -> None:
    """On M55 an iteration of a low-overhead loop multiplies two rows by two columns of 16 bytes."""
    network = NETWORKS["image-classification"]
    assembly = tw.compile(network.quantized(), target="cortex-m55").ir("asm")
    loop = re.search(
        r"vectors_of_2_uint8_int8:.*?\n(\.LBB\w+):((?:(?!\n\.L).)*?vmlava\.s8.*?le\tlr, \1)", assembly, re.S
    )
    assert loop is not None
    lines = [line.split()[0] for line in loop[2].strip().split("\n")]
    assert lines.count("vmlava.s8") == 4 and lines.count("vaddva.s8") == 2 and len(lines) == 11
