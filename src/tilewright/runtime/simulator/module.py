"""`SimulatedModule`: a unit of kernels that is loaded into this process and launched on NumPy arrays."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.artifact import temporary
from tilewright.runtime.simulator.arena import Arena
from tilewright.runtime.simulator.build import LANGUAGES, build
from tilewright.runtime.simulator.faults import KINDS, Fault, FaultRecord, SimulationError
from tilewright.runtime.simulator.image import Lines


class _Options(ctypes.Structure):
    """tw_sim_options of tw_simulator.h."""

    _fields_ = [
        ("threads", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("allocations", ctypes.c_void_p),
        ("architecture", ctypes.c_uint32),
        ("stacks", ctypes.c_void_p),
    ]


_STACKS = (ctypes.c_uint64 * 16)()
"""tw_sim_stacks of tw_simulator.h, which has 13 numbers of 8 bytes, for all units of this process."""


class SimulatedModule:
    """The kernels of one translation unit, compiled for the CPU.

    Example::

        module = SimulatedModule('''
            extern "C" __global__ void scale(float* x, float factor, int n) {
                int i = blockIdx.x * blockDim.x + threadIdx.x;
                if (i < n) x[i] *= factor;
            }''')
        module.launch("scale", 4, 256, [x, 2.0, x.size])
    """

    def __init__(
        self,
        source: str,
        language: str = "cuda",
        checked: bool = False,
        warp: int = 32,
        *,
        name: str = "kernel",
        entries: Sequence[str] = (),
    ) -> None:
        """Compile and load a unit; a unit compiled before comes from the cache on disk.

        Args:
            source: The text of the kernels and of the device functions they call, without host code.
            language: ``cuda``, ``hip`` or ``metal``.
            checked: Whether launches find faults: accesses out of bounds, races and others. Such launches
                take about twenty times as long.
            warp: Lanes of a warp: 32, or 64 for AMD's gfx9.
            name: A name or path of the text, for messages.
            entries: Kernels that are instances of templates, such as ``scale<float>``.

        Raises:
            SimulationError: The compiler refuses the text.
            ArtifactError: The simulator does not run on this machine.
        """
        if language not in LANGUAGES:
            raise SimulationError(f"language {language!r} is unknown; known are {', '.join(LANGUAGES)}")
        if warp not in (32, 64):
            raise SimulationError(f"warp is {warp}; it has to be 32 or 64")
        self.source, self.name, self.language, self.checked = source, name, language, checked
        data = build(source, name, language, checked, warp, tuple(entries))
        handle, path = tempfile.mkstemp(suffix=".so", dir=temporary.folder())
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        self.path = Path(path)
        """The shared library, with the interface of ``tw_simulator.h``; it exists while the process runs."""
        self._library = ctypes.CDLL(path)
        self._launch = self._library.tw_sim_launch
        self._last = self._library.tw_sim_last_fault
        self._last.restype = ctypes.POINTER(FaultRecord)
        entry_name = self._library.tw_sim_entry_name
        entry_name.restype = ctypes.c_char_p
        self.entries: tuple[str, ...] = tuple(iter(_counted(entry_name), None))
        """The names of the kernels."""

    def parameters(self, entry: str) -> list[tuple[str, int]]:
        """The kind and bytes of each parameter of a kernel; kinds are ``p``, ``i``, ``f`` and ``s``: pointer,
        integer, floating point, structure.

        Args:
            entry: The kernel's name.

        Raises:
            SimulationError: There is no such kernel.
        """
        if not self.entries:
            raise SimulationError(
                f"{self.name} defines no kernel: a function with __global__ (in Metal: kernel)"
            )
        if entry not in self.entries:
            known = ", ".join(self.entries)
            raise SimulationError(f"{self.name} has no kernel {entry!r}; its kernels are {known}")
        values = (ctypes.c_uint32 * 4096)()
        count = self._library.tw_sim_parameters(entry.encode(), values, len(values))
        return [(chr(value >> 16), value & 0xFFFF) for value in values[:count]]

    def variable(self, name: str, dtype: Any, shape: Sequence[int] = ()) -> np.ndarray:
        """A ``__device__`` or ``__constant__`` variable of the unit as an array of type `dtype` and any
        shape, for reading and writing.

        Args:
            name: The variable's name in the text.
            dtype: Its element type.
            shape: Its shape; () for a single value.

        Raises:
            SimulationError: The unit has no such variable, or it is static.
        """
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        try:
            place = (ctypes.c_char * size).in_dll(self._library, name)
        except ValueError:
            raise SimulationError(f"{self.name} has no variable {name!r} that is visible outside") from None
        return np.frombuffer(place, dtype).reshape(tuple(shape))

    def launch(
        self,
        entry: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Any],
        shared_bytes: int = 0,
        seed: int = 0,
        *,
        threads: int = 1,
        uninitialized: Collection[int] = (),
        memory: Mapping[str, np.ndarray] | None = None,
        architecture: str = "",
    ) -> None:
        """Run a kernel and wait for its end. Arrays are changed in place.

        Args:
            entry: The kernel's name.
            grid: Numbers of blocks along x, y, z.
            block: Numbers of threads of a block along x, y, z.
            arguments: For each parameter a contiguous array or an address (pointers), an int, a float, or an
                object with the bytes of a structure, such as a NumPy scalar. An array that cannot be written
                is read-only for a checked kernel, too.
            shared_bytes: Bytes of dynamic shared memory.
            seed: 0 for ascending order of blocks and threads; any other number selects a random order.
            threads: Threads of the operating system that run blocks. Checked modules use one.
            uninitialized: Numbers of array arguments whose contents are undefined before the launch: in a
                checked module reading an element before it is written is a fault.
            memory: Further arrays that the kernel may access, by names for messages; their addresses are in
                other arguments. Only checked modules need them.
            architecture: The device whose matrix instructions are computed, as its compiler spells it:
                ``sm_80`` (what "" means in CUDA C++), ``sm_90``; ``gfx942`` (in HIP), ``gfx90a``.

        Raises:
            SimulationError: An argument does not fit, or the kernel has a fault; its attribute `fault` has
                the details.
        """
        number = architecture_number(architecture)
        arena = Arena(self.checked)
        values = self._pack(entry, arguments, arena, uninitialized)
        for name, array in (memory or {}).items():
            arena.register(name, array)
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(v) for v in values))
        allocations = arena.allocations()
        options = _Options(
            threads,
            len(arena.regions),
            seed & (2**64 - 1),
            ctypes.addressof(allocations),
            number,
            ctypes.addressof(_STACKS),
        )
        shape = _triple(grid, "grid"), _triple(block, "block")
        status = self._launch(entry.encode(), *shape, shared_bytes, pointers, ctypes.byref(options))
        arena.copy_back()
        if status:
            raise self._error(entry)

    def _pack(
        self, entry: str, arguments: Sequence[Any], arena: Arena, uninitialized: Collection[int]
    ) -> list[Any]:
        """The values of a launch's arguments as C objects."""
        parameters = self.parameters(entry)
        if len(arguments) != len(parameters):
            raise SimulationError(
                f"kernel {entry} has {len(parameters)} parameters, but {len(arguments)} arguments are given"
            )
        arrays: dict[int, np.ndarray] = {}
        for number, ((kind, _), value) in enumerate(zip(parameters, arguments, strict=True)):
            if isinstance(value, np.ndarray) and value.ndim:
                where = f"kernel {entry}, argument {number}"
                if kind != "p":
                    raise SimulationError(f"{where}: an array is given, but the parameter is not a pointer")
                if not value.flags.c_contiguous:
                    raise SimulationError(f"{where}: the array is not contiguous; copy it first")
                arrays[number] = value
        addresses = arena.place(arrays, uninitialized)
        return [
            ctypes.c_uint64(addresses[number])
            if number in addresses
            else _scalar(value, kind, size, f"kernel {entry}, argument {number}")
            for number, ((kind, size), value) in enumerate(zip(parameters, arguments, strict=True))
        ]

    def _error(self, entry: str) -> SimulationError:
        fault = self.last_fault
        assert fault is not None
        fault = replace(fault, kernel=entry)
        return SimulationError("\n  ".join([fault.text, *self.places(fault)]), fault)

    @property
    def last_fault(self) -> Fault | None:
        """The fault of the last launch that had one; its kernel is not named. None: there was none yet."""
        record = self._last().contents
        if not record.kind:
            return None
        line, other = (
            given or (self._lines.line(code) if code else 0)
            for given, code in ((record.line, record.code), (record.other_line, record.other_code))
        )
        thread = tuple(record.thread) if record.has_thread else None
        text = record.text.decode(errors="replace")
        return Fault(KINDS[record.kind], "", tuple(record.block), thread, line, other, text)

    def forget_fault(self) -> None:
        """Let `last_fault` be None until the next one."""
        self._last().contents.kind = 0

    def places(self, fault: Fault) -> list[str]:
        """The lines of the source that a fault of this unit names, one text each."""
        lines = _numbered(self.source, self.name)
        return [
            f"{what}{self.name}:{number}: {lines[number].strip()}"
            for number, what in ((fault.line, ""), (fault.other_line, "the other access: "))
            if number in lines
        ]

    @cached_property
    def _lines(self) -> Lines:
        return Lines(self.path.read_bytes(), self.name)


def _numbered(source: str, name: str) -> dict[int, str]:
    """The lines of the file `name` by their numbers, in a text with line directives."""
    lines: dict[int, str] = {}
    file, number = name, 1
    for text in source.splitlines():
        directive = re.match(r'#line (\d+) "([^"]*)"', text)
        if directive is not None:
            file, number = directive[2], int(directive[1])
            continue
        if file == name:
            lines[number] = text
        number += 1
    return lines


def _counted(function: Any) -> Any:
    numbers = iter(range(1 << 30))

    def following() -> str | None:
        name = function(next(numbers))
        return None if name is None else name.decode()

    return following


def architecture_number(name: str) -> int:
    """The number by which ``tw_simulator.h`` knows a device's architecture; 0 for "".

    Raises:
        SimulationError: The name is not like ``sm_90`` or ``gfx942``.
    """
    if not name:
        return 0
    match = re.fullmatch(r"sm_(?P<capability>\d+)a?|gfx(?P<version>[0-9a-f]+)", name)
    if match is None:
        raise SimulationError(f"architecture {name!r} is not known; examples are sm_90 and gfx942")
    return int(match["capability"]) if match["capability"] else int(match["version"], 16)


def _triple(sizes: int | Sequence[int], what: str) -> Any:
    """Three sizes for C; missing ones are 1."""
    given = [int(sizes)] if isinstance(sizes, (int, np.integer)) else [int(size) for size in sizes]
    if not 1 <= len(given) <= 3 or any(not 0 <= size < 2**32 for size in given):
        raise SimulationError(f"{what} is {sizes!r}; give one to three sizes")
    return (ctypes.c_uint32 * 3)(*given, *[1] * (3 - len(given)))


_FLOATS = {4: ctypes.c_float, 8: ctypes.c_double}


def _scalar(value: Any, kind: str, size: int, where: str) -> Any:
    """A number, an address or the bytes of a structure as a C object of `size` bytes."""
    if kind == "f" and isinstance(value, (int, float, np.integer, np.floating)):
        return _FLOATS[size](float(value))
    if kind in "ip" and isinstance(value, (int, np.integer, np.bool_)):
        if not -(1 << (8 * size - 1)) <= int(value) < 1 << (8 * size):
            raise SimulationError(f"{where}: {value} does not fit into {size} bytes")
        return (ctypes.c_uint8 * size)(*(int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little"))
    if kind == "p" and value is None:
        return ctypes.c_uint64(0)
    if kind == "s":
        data = value if isinstance(value, bytes) else np.asarray(value).tobytes()
        if len(data) == size:
            return (ctypes.c_uint8 * size)(*data)
        raise SimulationError(f"{where}: the structure has {size} bytes, the argument has {len(data)}")
    expected = {"p": "an array or an address", "i": "an integer", "f": "a number"}[kind]
    raise SimulationError(f"{where}: {expected} is needed, got {type(value).__name__}")
