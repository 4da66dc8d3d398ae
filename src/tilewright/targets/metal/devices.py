"""Apple's GPUs.

Limits: the "Metal Feature Set Tables" (families Apple7 and later). Rates and bandwidths: Apple's
announcements of the chips. Apple publishes neither register files nor occupancy.
"""

from __future__ import annotations

from ...ir.matrix_atom import SIMDGROUP
from ...ir.target_info import Gpu
from ..gpu.device import Device


def _gpu(cores: int) -> Gpu:
    return Gpu(
        warp=32,
        max_threads=1024,
        shared_bytes=32 * 1024,
        registers=128,
        multiprocessors=cores,
        atoms=tuple(SIMDGROUP.values()),
    )


M1 = Device("Apple M1", "apple7", _gpu(8), None, 1.278e9, 68.25e9, 8 << 20, (("f32", 2.6e12),))
M1_MAX = Device("Apple M1 Max", "apple7", _gpu(32), None, 1.296e9, 400e9, 48 << 20, (("f32", 10.4e12),))
M2_MAX = Device("Apple M2 Max", "apple8", _gpu(38), None, 1.398e9, 400e9, 48 << 20, (("f32", 13.6e12),))

DEVICES = (M1, M1_MAX, M2_MAX)

__all__ = ["DEVICES", "M1", "M1_MAX", "M2_MAX"]
