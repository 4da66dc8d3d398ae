"""Device code in an artifact: images of the kernels for the devices that it runs on, and their source.

The images are a blob beside the weights and the metadata, with the layout that `runtime/c/device.h` declares.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

DEVICE_TYPES = {"cuda": 2, "opencl": 4, "vulkan": 7, "metal": 8, "hip": 10}
"""DLPack's device types by the name of the API. The runtime in C is compiled for one of them."""

KINDS = {
    "cubin": 1,
    "ptx": 2,
    "hsaco": 3,
    "spirv": 4,
    "source-cuda": 16,
    "source-hip": 17,
    "source-opencl": 18,
    "source-metal": 19,
    "source-glsl": 20,
}
"""The numbers of kinds of images."""

_ALIGNMENT = 64
_COUNT = struct.Struct("<q")
_IMAGE = struct.Struct("<iiqq24s")


@dataclass(frozen=True)
class DeviceImage:
    """One form of all kernels of an artifact."""

    kind: str
    """One of `KINDS`."""
    data: bytes
    arch: str = ""
    """The architecture that it is for, in the vendor's spelling: ``sm_90a``, ``compute_80``, ``gfx942``.
    Empty where any device takes it.
    """
    module: int = 0
    """Images of one module are forms of the same kernels: 0 for those of the compiler, others for a kernel of
    the user's each.
    """

    @property
    def is_source(self) -> bool:
        """Whether it is text, which the runtime gets with a final zero byte."""
        return self.kind.startswith("source-")


def device_code(images: Sequence[DeviceImage]) -> bytes:
    """The content of the blob: the number of images, the table of images, and their data, each aligned to 64
    bytes.
    """
    rows, data = [], b""
    start = _COUNT.size + _IMAGE.size * len(images)
    start += -start % _ALIGNMENT
    for image in images:
        content = image.data + (b"\0" if image.is_source else b"")
        rows.append(
            _IMAGE.pack(
                KINDS[image.kind], image.module, start + len(data), len(content), image.arch.encode("ascii")
            )
        )
        data += content + bytes(-len(content) % _ALIGNMENT)
    head = _COUNT.pack(len(images)) + b"".join(rows)
    return head + bytes(start - len(head)) + data


def images_of(blob: bytes) -> list[DeviceImage]:
    """The images that `device_code` wrote."""
    names = {number: kind for kind, number in KINDS.items()}
    images = []
    for k in range(_COUNT.unpack_from(blob)[0]):
        kind, module, offset, size, arch = _IMAGE.unpack_from(blob, _COUNT.size + k * _IMAGE.size)
        image = DeviceImage(
            names[kind], blob[offset : offset + size], arch.rstrip(b"\0").decode("ascii"), module
        )
        images.append(replace(image, data=image.data[:-1]) if image.is_source else image)
    return images


__all__ = ["DEVICE_TYPES", "KINDS", "DeviceImage", "device_code", "images_of"]
