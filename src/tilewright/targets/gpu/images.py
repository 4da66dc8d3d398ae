"""The device code of an artifact, as a toolchain makes it from the printed text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...artifact.device_code import DeviceImage
from .performance import KernelResources, Launched, kernel_metadata


class _Kernel(Launched, Protocol):
    @property
    def name(self) -> str:
        """The kernel's name in the module."""

    @property
    def entry(self) -> str:
        """The name of its function in the device code."""


@dataclass(frozen=True)
class DeviceCode:
    """Images of all kernels of an artifact, and what is known about their machine code."""

    images: tuple[DeviceImage, ...]
    """The images for the artifact; the text itself is the last. It is the only one where no compiler is
    installed.
    """

    resources: Mapping[str, Mapping[str, KernelResources]]
    """The resources of the kernels by architecture and entry point."""

    def metadata(self, kernels: Sequence[_Kernel]) -> dict[str, dict[str, Any]]:
        """Return the entry ``device`` of each kernel in the artifact's metadata, by the kernel's name."""
        return {
            kernel.name: {"entry": kernel.entry}
            | kernel_metadata(
                kernel,
                {
                    arch: found[kernel.entry]
                    for arch, found in self.resources.items()
                    if kernel.entry in found
                },
            )
            for kernel in kernels
        }


__all__ = ["DeviceCode"]
