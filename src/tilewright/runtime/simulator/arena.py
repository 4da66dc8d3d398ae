"""Memory of a launch: arrays at their own addresses, or copies of them at a distance from each other.

Checked launches work on copies, so that an access a little outside of an array is outside of all arrays.
Arrays that overlap stay together. Unchecked launches copy only arrays at addresses that a device's driver
never gives.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

_ALIGNMENT = 256  # bytes, that of allocations by the drivers of devices
_NEEDED = 16  # bytes, the largest alignment of a type
_DISTANCE = 4096  # bytes, the least between arrays of a checked launch


class Allocation(ctypes.Structure):
    """tw_sim_allocation of tw_simulator.h."""

    _fields_ = [
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("defined", ctypes.c_void_p),
        ("item_size", ctypes.c_uint32),
        ("read_only", ctypes.c_uint32),
    ]


@dataclass
class _Region:
    """Memory that kernels may access, of one array or of several that overlap."""

    name: str
    begin: int
    size: int
    item_size: int
    read_only: bool
    defined: np.ndarray | None
    memory: np.ndarray
    """The object that keeps it alive."""


class Arena:
    """The memory of one launch."""

    def __init__(self, checked: bool) -> None:
        self.checked = checked
        self.regions: list[_Region] = []
        self._copies: list[tuple[np.ndarray, np.ndarray]] = []  # an array and its bytes in a region

    def place(self, arrays: Mapping[int, np.ndarray], uninitialized: Collection[int]) -> dict[int, int]:
        """The address of each array of a launch by its number."""
        addresses: dict[int, int] = {}
        for numbers in _overlapping(arrays):
            begin = min(arrays[n].ctypes.data for n in numbers)
            end = max(arrays[n].ctypes.data + arrays[n].nbytes for n in numbers)
            if not self.checked and begin % _NEEDED == 0:
                addresses |= {n: arrays[n].ctypes.data for n in numbers}
                continue
            copy = _aligned(end - begin)
            for n in numbers:
                array = arrays[n]
                start = array.ctypes.data - begin
                addresses[n] = copy.ctypes.data + start
                part = copy[start : start + array.nbytes]
                part[...] = array.reshape(-1).view(np.uint8)
                if array.flags.writeable:
                    self._copies.append((array, part))
            fresh = self.checked and any(n in uninitialized for n in numbers)
            self.regions.append(
                _Region(
                    f"argument {numbers[0]}",
                    copy.ctypes.data,
                    end - begin,
                    min(arrays[n].itemsize for n in numbers),
                    not any(arrays[n].flags.writeable for n in numbers),
                    np.zeros(end - begin, np.uint8) if fresh else None,
                    copy,
                )
            )
        return addresses

    def register(self, name: str, array: np.ndarray) -> None:
        """Add an array at its own address."""
        read_only = not array.flags.writeable
        region = _Region(name, array.ctypes.data, array.nbytes, array.itemsize, read_only, None, array)
        self.regions.append(region)

    def allocations(self) -> ctypes.Array[Allocation]:
        """The regions for C, sorted by address. The arena has to live while the array is used."""
        self.regions.sort(key=lambda region: region.begin)
        rows = [
            Allocation(
                region.begin,
                region.size,
                region.name.encode(),
                None if region.defined is None else region.defined.ctypes.data,
                region.item_size,
                region.read_only,
            )
            for region in self.regions
        ]
        return (Allocation * max(1, len(rows)))(*rows)

    def copy_back(self) -> None:
        """Write the kernel's results into the arrays that were copied."""
        for array, part in self._copies:
            array.reshape(-1).view(np.uint8)[...] = part


def _aligned(size: int) -> np.ndarray:
    """Bytes at an aligned address, with a distance before and behind them."""
    memory = np.empty(size + 2 * _DISTANCE + _ALIGNMENT, np.uint8)
    start = _DISTANCE + -(memory.ctypes.data + _DISTANCE) % _ALIGNMENT
    return memory[start : start + size]


def _overlapping(arrays: Mapping[int, np.ndarray]) -> list[list[int]]:
    """The numbers of the arrays in groups that share memory."""
    groups: list[list[int]] = []
    end = -1
    for number in sorted(arrays, key=lambda n: arrays[n].ctypes.data):
        array = arrays[number]
        if groups and array.ctypes.data < end:
            groups[-1].append(number)
        else:
            groups.append([number])
        end = max(end, array.ctypes.data + array.nbytes)
    return [sorted(group) for group in groups]
