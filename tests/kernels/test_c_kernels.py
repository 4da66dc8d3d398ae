"""Kernels in C and C++: descriptions, check, compiled models, targets, threads, artifacts, the cache."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp
from tilewright import nn
from tilewright.errors import KernelError, ShapeError, UnsupportedOperatorError
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_op

from .sources import RMS, moments_kernel, rms_kernel, rms_reference

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def test_the_header_declares_the_function() -> None:
    header = rms_kernel().header
    assert "in  x: float32 [n, d]" in header and "out y: float32 [n, d]" in header
    declaration = " ".join(header[header.index("void") :].split())
    assert declaration == (
        "void rms( int64_t begin, int64_t end, int64_t n, int64_t d, const float *__restrict x, "
        "const float *__restrict w, float *__restrict y, double eps);"
    )


def test_check_compares_with_the_reference() -> None:
    rms_kernel().check(4)
    rms_kernel().check([{"n": 3, "d": 7}, {"n": 129, "d": 1}], eps=0.5)
    moments_kernel().check(4)


def test_a_model_with_a_kernel(tmp_path: Path) -> None:
    rms = rms_kernel()

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(33, 33)
            self.weight = tw.Tensor(normal(33))

        def forward(self, x: tw.Tensor) -> tw.Tensor:
            return tnp.tanh(rms(self.linear(x), self.weight, eps=1e-3))

    block = Block()
    x = normal(3, 5, 33)
    library = tw.compile(block, (x,), dims={"x": {0: "batch", 1: "seq"}})
    (kernel,) = (k for k in library.metadata["kernels"] if k["kind"] == "call")
    assert kernel["operators"] == ["rms"]
    for shape in ((3, 5), (1, 1), (4, 17)):
        y = normal(*shape, 33)
        np.testing.assert_allclose(library(y), np.asarray(block(tw.Tensor(y))), rtol=1e-5, atol=1e-5)
    path = library.save(tmp_path / "block.so")
    np.testing.assert_array_equal(tw.load(path)(x), library(x))
    archive = library.save(tmp_path / "block.tar")
    assert archive.stat().st_size > 0


def test_a_saved_artifact_needs_no_definition(tmp_path: Path) -> None:
    rms = rms_kernel()
    x, w = normal(8, 16), normal(16)
    path = tw.compile(lambda x, w: rms(x, w), (x, w)).save(tmp_path / "rms.so")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "w.npy", w)
    program = f"""
import numpy as np, tilewright as tw
x, w = np.load({str(tmp_path / "x.npy")!r}), np.load({str(tmp_path / "w.npy")!r})
np.save({str(tmp_path / "y.npy")!r}, tw.load({str(path)!r})(x, w))
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), rms_reference(x, w, 1e-5), rtol=1e-5, atol=1e-5)


def test_check_mode_runs_the_reference() -> None:
    rms = rms_kernel()
    x, w = normal(6, 12), normal(12)
    library = tw.compile(lambda x, w: rms(x * 2, w) + 1, (x, w), check=True)
    np.testing.assert_allclose(library(x, w), rms_reference(2 * x, w, 1e-5) + 1, rtol=1e-5, atol=1e-5)


def test_several_outputs() -> None:
    moments = moments_kernel()
    x = rng.standard_normal((9, 21))
    mean, place = tw.compile(lambda x: moments(x * 3.0), (x,), dims={"x": {0: "n"}})(x)
    np.testing.assert_allclose(mean, 3 * x.mean(1))
    np.testing.assert_array_equal(place, x.argmax(1))
    # one of the outputs alone
    np.testing.assert_array_equal(tw.compile(lambda x: moments(x)[1], (x,))(x), x.argmax(1))
    eager = moments(tw.Tensor(x))
    np.testing.assert_allclose(np.asarray(eager[0]), x.mean(1))


def test_kernels_between_other_operators() -> None:
    """Slices, transpositions, concatenations and loops around a kernel."""
    rms = rms_kernel()
    x, w = normal(10, 24), normal(12)

    def model(x: tw.Tensor, w: tw.Tensor) -> tw.Tensor:
        a, b = rms(x[:, 12:], w), rms(x[:, ::2], w)
        return tnp.concatenate([a, b, a.T.reshape(10, 12)], axis=1)

    def scanned(x: tw.Tensor, w: tw.Tensor) -> tw.Tensor:
        state, _ = tw.scan(lambda s, row: (rms(s + row, w), row.sum()), tnp.zeros(12), x[:, :12])
        return state

    for function in (model, scanned):
        got = tw.compile(function, (x, w), check=True)(x, w)
        np.testing.assert_allclose(
            got, np.asarray(function(tw.Tensor(x), tw.Tensor(w))), rtol=1e-4, atol=1e-4
        )


def test_constant_inputs_are_folded() -> None:
    rms = rms_kernel()
    x, w = normal(4, 8), normal(8)
    library = tw.compile(lambda z: z + rms(tnp.asarray(x), tnp.asarray(w)), (x,))
    assert "kernel.call" not in library.ir("loop")
    np.testing.assert_allclose(library(x), x + rms_reference(x, w, 1e-5), rtol=1e-5, atol=1e-5)


def test_threads_share_the_range() -> None:
    rms = rms_kernel(grain=1)
    x, w = normal(257, 64), normal(64)
    for threads in (1, 2, 3):
        library = tw.compile(lambda x, w: rms(x, w), (x, w), threads=threads)
        np.testing.assert_allclose(library(x, w), rms_reference(x, w, 1e-5), rtol=1e-4, atol=1e-5)
    assert "tw.grain = 1" in library.ir("loop")


@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "cpu:x86-64-v3"])
def test_instruction_sets(target: str) -> None:
    if sys.platform != "linux":
        pytest.skip("the compiler's options are those of x86-64")
    rms = rms_kernel()
    x, w = normal(7, 9), normal(9)
    library = tw.compile(lambda x, w: rms(x, w), (x, w), target=target)
    np.testing.assert_allclose(library(x, w), rms_reference(x, w, 1e-5), rtol=1e-5, atol=1e-5)


def test_webassembly() -> None:
    pytest.importorskip("wasmtime")
    rms = rms_kernel()
    x, w = normal(7, 9), normal(9)
    library = tw.compile(lambda x, w: rms(x, w), (x, w), target="wasm32")
    np.testing.assert_allclose(library(x, w), rms_reference(x, w, 1e-5), rtol=1e-5, atol=1e-5)


def test_another_system() -> None:
    rms = rms_kernel()
    library = tw.compile(lambda x, w: rms(x, w), (normal(7, 9), normal(9)), target="aarch64-linux")
    with pytest.raises(tw.ArtifactError, match="aarch64-linux"):
        library(normal(7, 9), normal(9))


def test_a_target_without_code_compiles_the_pattern() -> None:
    x, w = normal(7, 9), normal(9)
    library = tw.compile(lambda x, w: rms_kernel()(x, w), (x, w), target="webgpu")
    assert "kernel." not in library.ir("graph")
    with pytest.raises(
        UnsupportedOperatorError, match=r"(?s)kernel 'rms'.*none for webgpu.*give it a pattern="
    ):
        tw.compile(lambda x, w: rms_kernel(pattern=None)(x, w), (x, w), target="webgpu")


def test_zig_compiles_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CC", "zig")
    rms_kernel().check(2)
    twice("c++").check(2)


def twice(language: str, source: str = "") -> tw.Kernel:
    text = (
        source
        or """
    #include <cstddef>
    template <typename T> static T doubled(T x) { return x + x; }
    void twice(int64_t n, const int32_t *x, int32_t *y) {
        for (std::size_t i = 0; i < std::size_t(n); i++) y[i] = doubled(x[i]);
    }"""
    )
    return tw.c_kernel(
        "twice", source=text, language=language, inputs=[tw.i32["n"]], outputs=[tw.i32["n"]],
        reference=lambda x: x + x,
    )  # fmt: skip


def test_cpp(tmp_path: Path) -> None:
    kernel = twice("c++")
    kernel.check(3)
    x = np.arange(11, dtype=np.int32)
    np.testing.assert_array_equal(tw.compile(lambda x: kernel(x), (x,))(x), x + x)


def test_a_source_in_a_file_with_a_header(tmp_path: Path) -> None:
    (tmp_path / "factor.h").write_text("#define FACTOR 3.0f\n")
    source = tmp_path / "scale.c"
    source.write_text(
        '#include "factor.h"\n#include <math.h>\nvoid scale(int64_t n, const float *x, float *y) {\n'
        "    for (int64_t i = 0; i < n; i++) y[i] = FACTOR * expf(x[i]);\n}\n"
    )

    def make() -> tw.Kernel:
        return tw.c_kernel(
            "scale", source=source, inputs=[tw.f32["n"]], outputs=[tw.f32["n"]],
            reference=lambda x: 3 * np.exp(x),
        )  # fmt: skip

    first = make()
    first.check(3)
    (tmp_path / "factor.h").write_text("#define FACTOR 4.0f\n")
    assert make().digest != first.digest
    with pytest.raises(KernelError, match="differs from its reference"):
        make().check(3)


def test_formulas_of_sizes_and_narrow_types() -> None:
    pairs = tw.c_kernel(
        "pairs",
        source="""void pairs(int64_t begin, int64_t end, int64_t n, int64_t k, const uint16_t *x, uint8_t *y,
                              int64_t bit) {
            for (int64_t i = begin; i < end; i++)
                for (int64_t j = 0; j < k - 1; j++) y[i * (k - 1) + j] = (x[2 * i * k + j] >> bit) & 1;
        }""",
        inputs={"x": tw.bf16["2*n", "k"]},
        outputs={"y": tw.boolean["n", "k - 1"]},
        scalars={"bit": 15},
        split="n",
        reference=lambda x, bit: (x.view(np.uint16)[::2, :-1] >> bit & 1).astype(bool),
    )
    pairs.check([{"n": 3, "k": 5}, {"n": 1, "k": 1}])
    x = normal(6, 5).astype(tw.bf16.numpy)
    library = tw.compile(lambda x: pairs(x), (x,), dims={"x": {0: "2*rows"}})
    np.testing.assert_array_equal(library(x), np.signbit(x.astype(np.float32))[::2, :-1])
    with pytest.raises(
        ShapeError, match=re.escape("input 'x' is bfloat16 (3, 5); bf16['2*n', 'k'] is expected")
    ):
        pairs(tw.Tensor(x[:3]))


def test_kernels_of_one_name_in_one_model() -> None:
    three = twice("c", "void twice(int64_t n, const int32_t *x, int32_t *y) {"
                  "for (int64_t i = 0; i < n; i++) y[i] = 3 * x[i]; }")  # fmt: skip
    two = twice("c++")
    x = np.arange(5, dtype=np.int32)
    np.testing.assert_array_equal(tw.compile(lambda x: three(two(x)), (x,))(x), 6 * x)


def test_the_cache_knows_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = normal(4, 8), normal(8)

    def compiled(kernel: tw.Kernel) -> bool:
        return tw.compile(lambda x, w: kernel(x, w), (x, w)).report.cached

    source = RMS + f"/* {uuid.uuid4()} */"
    assert not compiled(rms_kernel(source))
    assert compiled(rms_kernel(source))
    assert not compiled(rms_kernel(source, flags=["-O1"]))
    assert not compiled(rms_kernel(source, reference=lambda x, w, eps: rms_reference(x, w, eps)))
    monkeypatch.setenv("TILEWRIGHT_CC", "zig")
    assert not compiled(rms_kernel(source)), "another compiler"


def test_copies_are_the_kernel_itself() -> None:
    rms = rms_kernel()
    assert copy.deepcopy(rms) is rms and pickle.loads(pickle.dumps(rms)) is rms
    text = pickle.dumps(rms).replace(rms.digest.encode(), b"0" * len(rms.digest))
    with pytest.raises(KernelError, match="kernel 'rms' .* is not defined in this process"):
        pickle.loads(text)


def test_jit_and_libraries_of_several_functions() -> None:
    rms = rms_kernel()
    x, w = normal(6, 12), normal(12)
    expected = rms_reference(x, w, 1e-5)
    np.testing.assert_allclose(tw.jit(lambda x, w: rms(x, w))(x, w), expected, rtol=1e-5, atol=1e-5)
    library = tw.compile(
        {"once": (lambda x, w: rms(x, w), (x, w)), "twice": (lambda x, w: rms(rms(x, w), w), (x, w))}
    )
    np.testing.assert_allclose(library.functions["once"](x, w), expected, rtol=1e-5, atol=1e-5)
    twice_ = rms_reference(expected, w, 1e-5)
    np.testing.assert_allclose(library.functions["twice"](x, w), twice_, rtol=1e-5, atol=1e-5)


def test_lower_precision_leaves_kernels_as_they_are() -> None:
    rms = rms_kernel()
    x, m, w = normal(6, 16), normal(16, 12), normal(12)
    library = tw.compile(lambda x, m, w: rms(x @ m, w), (x, m, w), precision="bf16")
    np.testing.assert_allclose(library(x, m, w), rms_reference(x @ m, w, 1e-5), rtol=0.1, atol=0.1)


def test_empty_tensors() -> None:
    rms = rms_kernel()
    rms.check([{"n": 0, "d": 3}])
    library = tw.compile(lambda x, w: rms(x, w), (normal(2, 3), normal(3)), dims={"x": {0: "0<=n"}})
    assert library(normal(0, 3), normal(3)).shape == (0, 3)


def test_text_of_a_module() -> None:
    rms = rms_kernel()
    library = tw.compile(lambda x, w: rms(x, w), (normal(4, 8), normal(8)))
    for level in ("graph", "tensor", "loop"):
        text = library.ir(level)
        assert 'kernel = "rms"' in text and print_op(parse(text)) == text
    unknown = re.sub(r'digest = "\w+"', 'digest = "0123"', library.ir("graph"))
    with pytest.raises(tw.TilewrightError, match=r"kernel 'rms' .* is not defined in this process"):
        tw.compile(parse(unknown))


# -- Errors -----------------------------------------------------------------------------------------------


def test_wrong_inputs() -> None:
    rms = rms_kernel()
    x, w = tw.Tensor(normal(4, 8)), tw.Tensor(normal(8))
    with pytest.raises(
        ShapeError, match=re.escape("input 'w' is float32 (7,); f32['d'] is expected (its size 0 is 7")
    ):
        rms(x, w[:7])
    with pytest.raises(ShapeError, match="input 'x' is float64"):
        rms(x.astype("float64"), w)
    with pytest.raises(ShapeError, match=re.escape("takes 2 tensors (x, w), got 1")):
        rms(x)
    with pytest.raises(TypeError, match="has no number 'epsilon'; it has eps"):
        rms(x, w, epsilon=1.0)
    with pytest.raises(ShapeError, match="test_c_kernels.py"):
        tw.compile(lambda x, w: rms(x, w[:7]), (normal(4, 8), normal(8)))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (RMS.replace("restrict y", "restrict y, int extra"), r"rms.c:4:6: error: conflicting types"),
        (RMS.replace("float total = 0;", "flaot total = 0;"), r"(?s)void rms\(.*rms.c:7.*flaot"),
        (RMS.replace("void rms(", "void norm("), "does not define the function 'rms'; it defines: norm"),
    ],
)  # fmt: skip
def test_sources_that_do_not_compile(source: str, message: str) -> None:
    rms = rms_kernel(source)
    with pytest.raises(KernelError, match=message):
        rms.check()
    with pytest.raises(KernelError, match=message):
        tw.compile(lambda x, w: rms(x, w), (normal(4, 8), normal(8)))


def test_cpp_without_its_library() -> None:
    source = """
    #include <string>
    void twice(int64_t n, const int32_t *x, int32_t *y) {
        std::string text; for (int64_t i = 0; i < n; i++) text += std::to_string(x[i]);
        for (int64_t i = 0; i < n; i++) y[i] = text[i];
    }"""
    with pytest.raises(KernelError, match=r"needs the C\+\+ run-time library"):
        twice("c++", source).check()


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CC", "no-such-compiler")
    with pytest.raises(KernelError, match="TILEWRIGHT_CC names 'no-such-compiler'"):
        rms_kernel().check()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (RMS.replace("* scale * w[j]", "* scale"), r"(?s)differs from its reference in .* the first is y\["),
        (RMS.replace("i < end", "i <= end"), "writes outside of its output 'y'"),
        (RMS.replace("i = begin; i < end", "i = 0; i < (end == n ? n : 0)"), None),
        (RMS.replace("i = begin", "i = begin + (begin > 0)"), "in the parts"),
        (RMS.replace("float total = 0;", "float total = 0; ((float *)x)[0] = 1;"), "changes its input 'x'"),
    ],
)  # fmt: skip
def test_sources_that_are_wrong(source: str, message: str | None) -> None:
    kernel = rms_kernel(source)
    if message is None:
        kernel.check(3)  # computes every element, if more than its range
        return
    with pytest.raises(KernelError, match=message):
        kernel.check(6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"inputs": [tw.f32["n + m", "d"], tw.f32["d"]]}, "no input determines m, n"),
        ({"outputs": [tw.f32["n", "k"]]}, "no input has the size 'k'"),
        ({"split": "d", "outputs": [tw.f32["n"]]}, "the output 'y' does not have this size"),
        ({"split": "k"}, "split='k' is none of its sizes: n, d"),
        ({"inputs": ["float32", tw.f32["d"]]}, r"the type of input 'x' is 'float32'; write it as tw.f32\["),
        ({"scalars": {"x": 1.0}}, "the number 'x' has the name of another parameter"),
        ({"scalars": {"eps": "small"}}, "the default of 'eps' is 'small', not a number"),
        ({"language": "fortran"}, "language is 'fortran'"),
        ({"outputs": {"for": tw.f32["*n", "d"]}}, "'for' cannot be the name of output"),
        ({"source": "missing.c"}, "cannot read missing.c"),
        ({"inputs": [tw.f32["*n", "d"], tw.f32["*m", "d"]]}, "only one name may have a"),
    ],
)  # fmt: skip
def test_wrong_descriptions(changed: dict[str, object], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        rms_kernel(**changed)


def test_element_types_are_no_sequences() -> None:
    assert str(tw.f32["*n", 3]) == "f32['*n', 3]" and str(tw.i64[()]) == "i64[()]"
    with pytest.raises(TypeError):
        list(tw.f32)  # type: ignore[call-overload]


def test_wrong_types_of_tensors() -> None:
    for sizes, message in [
        (("n", -1), "negative"),
        (("n", 1.5), "size 1 is 1.5"),
        (("n", "*d"), "only be the first"),
    ]:
        with pytest.raises(ValueError, match=message):
            tw.f32[sizes]  # type: ignore[index]
    with pytest.raises(KernelError, match=r"'n \+' is not a size"):
        rms_kernel(inputs=[tw.f32["n +", "d"], tw.f32["d"]])


def test_a_wrong_reference() -> None:
    x, w = tw.Tensor(normal(4, 8)), tw.Tensor(normal(8))
    with pytest.raises(KernelError, match=re.escape("its reference returns the shapes (4,)")):
        rms_kernel(reference=lambda x, w, eps: x.sum(-1))(x, w)
    with pytest.raises(KernelError, match="its reference raises ZeroDivisionError"):
        rms_kernel(reference=lambda x, w, eps: 1 // 0)(x, w)
