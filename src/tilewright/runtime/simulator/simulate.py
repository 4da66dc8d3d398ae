"""`tw.simulate`: one call that compiles a GPU kernel for the CPU, runs it and checks it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import KernelError
from tilewright.runtime.simulator.module import SimulatedModule


def simulate(
    source: str | Path,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: Sequence[Any],
    *,
    language: str = "cuda",
    shared_bytes: int = 0,
    warp: int = 32,
    checked: bool = True,
    seed: int = 0,
    threads: int = 1,
    uninitialized: Collection[int] = (),
    architecture: str = "",
) -> None:
    """Run a GPU kernel on the CPU, without a GPU, and check what it does. Arrays are changed in place.

    Example::

        x = np.arange(1000, dtype=np.float32)
        tw.simulate(
            '''
            extern "C" __global__ void scale(float* x, float factor, int n) {
                int i = blockIdx.x * blockDim.x + threadIdx.x;
                if (i < n) x[i] *= factor;
            }
            ''',
            "scale", 4, 256, [x, 2.0, x.size],
        )

    A checked run ends with an error at the first access out of bounds, race between threads or between
    blocks, read of uninitialized shared memory, divergent barrier, wrong mask or inactive lane of a warp
    function, misaligned vector access, early use of an asynchronous copy, division by zero, or failed
    assertion. The message names the block, the thread and the lines of the source. Programs whose threads
    synchronize by locks instead of barriers need `checked=False`.

    The compiled kernel is kept in the cache on disk. To launch kernels of a source many times, make a
    `tilewright.runtime.simulator.SimulatedModule`.

    Args:
        source: The text of the kernel and of the functions that it calls, without host code, or the path of a
            file with it. Inline assembly is not supported, and ``__CUDA_ARCH__`` is not defined.
        entry: The kernel's name; of a template an instance, such as ``scale<float>``.
        grid: Numbers of blocks along x, y, z.
        block: Numbers of threads of a block along x, y, z; at most 1024 in all.
        arguments: For each parameter a contiguous array (pointers), an int, a float, or an object with the
            bytes of a structure. In Metal all are arrays, in the order of their buffers.
        language: ``cuda``, ``hip`` or ``metal``.
        shared_bytes: Bytes of dynamic shared memory.
        warp: Lanes of a warp: 32, or 64 for AMD's gfx9.
        checked: Whether to find faults. Otherwise the kernel runs about twenty times as fast.
        seed: 0 for ascending order of blocks and threads; any other number selects a random order.
        threads: Threads of the operating system that run blocks. Checked runs use one.
        uninitialized: Numbers of array arguments whose contents are undefined before the launch: reading an
            element before it is written is then a fault.
        architecture: The device whose matrix instructions are computed, as its compiler spells it: ``sm_80``
            (what "" means in CUDA C++), ``sm_90``; ``gfx942`` (in HIP), ``gfx90a``.

    Raises:
        SimulationError: The source does not compile, an argument does not fit, or the kernel has a fault.
        KernelError: The file cannot be read.
        ArtifactError: The simulator does not run on this machine.
    """
    text, name = source, "kernel"
    if isinstance(source, Path):
        try:
            text, name = source.read_text(), str(source)
        except OSError as error:
            raise KernelError(f"{source}: cannot be read: {error.strerror or error}") from error
    entries = [entry] if "<" in entry else []
    module = SimulatedModule(str(text), language, checked, warp, name=name, entries=entries)
    module.launch(
        entry,
        grid,
        block,
        arguments,
        shared_bytes,
        seed,
        threads=threads,
        uninitialized=uninitialized,
        architecture=architecture,
    )
