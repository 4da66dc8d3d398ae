"""`tw.simulate`, and the steps on the text of a unit."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import KernelError
from tilewright.runtime.simulator import SimulatedModule, SimulationError
from tilewright.runtime.simulator import text as steps
from tilewright.runtime.simulator.image import plain_name

SCALE = """
template <class T> __global__ void scale(T* x, T factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) x[i] *= factor;
}
"""


def test_a_kernel_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "scale.cu"
    path.write_text(SCALE.replace("<= n", "< n"))
    x = np.arange(100, dtype=np.float64)
    tw.simulate(path, "scale<double>", 2, 64, [x, 3.0, 100])
    assert (x == np.arange(100) * 3).all()
    path.write_text(SCALE)
    with pytest.raises(SimulationError, match=r"(?s)index 100 of argument 0.*scale.cu:4: if \(i <= n\)"):
        tw.simulate(path, "scale<double>", 2, 64, [x, 3.0, 100])
    with pytest.raises(KernelError, match="cannot be read"):
        tw.simulate(tmp_path / "absent.cu", "f", 1, 1, [])


def test_the_first_unit_of_a_new_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    x = np.zeros(4, np.int32)
    source = 'extern "C" __global__ void f(int* x) { x[threadIdx.x] = threadIdx.x; }'
    for _ in range(2):
        tw.simulate(source, "f", 1, 4, [x])
        assert list(x) == [0, 1, 2, 3]
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 2  # the unit and the runtime


def test_a_kernel_that_two_threads_of_python_launch() -> None:
    from concurrent.futures import ThreadPoolExecutor

    from tilewright.runtime.simulator import SimulatedModule

    module = SimulatedModule(
        """extern "C" __global__ void f(int* x) {
  __shared__ int s[64];
  for (int i = 0; i < 50; ++i) {
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[63 - threadIdx.x] + 1;
    __syncthreads();
  }
}"""
    )

    def run(start: int) -> bool:
        x = np.full(64, start, np.int32)
        for _ in range(20):
            module.launch("f", 1, 64, [x])
        return bool((x == start + 1000).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(8)))


def test_kernels_are_found_in_preprocessed_text() -> None:
    mark = '__attribute__((annotate("tw_global")))'
    text = f"""
extern "C" {mark} void __attribute__((noinline)) a(const float* x, int (*f)(int));
namespace n {{ namespace m {{ {mark} void b() {{ if (1) {{ }} }} }} {mark} static void c(int x) {{}} }}
template <class T, int N = (3 > 2)> {mark} void d(T x) {{}}
{mark} void e() {{}} // {mark} void in_string
const char* s = "{mark.replace(chr(34), "")} void g() {{}}";
extern "C" {mark} void a(const float* x, int (*f)(int)) {{}}
"""
    text = text.replace(f"// {mark} void in_string", "")
    assert list(steps.find_kernels(text)) == ["a", "n::m::b", "n::c", "e"]


def test_dynamic_shared_arrays_are_bound() -> None:
    text = (
        "extern thread_local float s[]; thread_local float t[4]; extern int u[]; extern void f(int x[]) { }"
    )
    wanted = text.replace(
        "extern thread_local float s[]", 'extern __thread float s[] __asm__("tw_sim_dynamic_shared")'
    )
    assert steps.bind_dynamic_shared(text) == wanted


def test_threadgroup_storage_of_metal() -> None:
    text = "{ threadgroup float s[4]; threadgroup float* p = s; f((threadgroup float4*)p, float4(1)); }"
    wanted = "{ thread_local float s[4];  float* p = s; f(( float4*)p, tw_make<float4>(1)); }"
    assert steps.metal_storage(text) == wanted
    assert steps.metal_storage("[[threadgroup(0)]]") == "[[threadgroup(0)]]"


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZZ6matmulPKfE4tile", "tile"),
        ("_ZZ1fvE1s_0", "s"),
        ("_ZL7weights", "weights"),
        ("counter", "counter"),
    ],
)
def test_names_of_variables(mangled: str, name: str) -> None:
    assert plain_name(mangled) == name


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_units_that_stay_loaded_share_stacks() -> None:
    """A process may have about 65,000 mappings. A launch of 1,024 threads uses 2,048 of them for stacks, and
    keeps these for later launches of all units.
    """

    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    source = 'extern "C" __global__ void one(int* x) {{ x[threadIdx.x] = {}; }}'
    first, *others = (SimulatedModule(source.format(k), "cuda", False) for k in range(1, 4))
    start, x = mappings(), np.zeros(1024, np.int32)
    first.launch("one", 1, 1024, [x])
    before = mappings()
    assert (x == 1).all() and before < start + 2200
    for number, module in enumerate(others, 2):
        for threads in (64, 1024):
            module.launch("one", 1, threads, [x])
        assert (x == number).all()
    assert mappings() < before + 200
