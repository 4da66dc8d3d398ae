"""A worker's part of distributed tuning: tell what the machine is, and measure one task.

Both functions run in the process of a Dask worker, which needs this package but no compiler: libraries arrive
as bytes.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from ..artifact import temporary
from ..artifact.files import written_whole
from ..artifact.version import __version__
from ..driver.cores import usable_cores
from ..driver.tuned import keys_for
from ..driver.tuning_database import KernelKey
from ..targets.registry import resolve
from .harness import KernelDescription
from .measure import Built, MeasureError, Measurement, Measurer

Payload = Mapping[str, Any]
"""A task as values that pickle without classes of this package; libraries are bytes."""


@cache
def describe() -> dict[str, Any]:
    """This machine: the LLVM triple, the features of its instruction set, the bytes of its caches from the
    first level on, the cores of the process, and this package's version.
    """
    key = keys_for(resolve("cpu"), usable_cores())("")
    return {
        "triple": key.triple,
        "features": list(key.features),
        "caches": list(key.caches),
        "cores": key.threads,
        "version": __version__,
    }


def why_not(machine: Mapping[str, Any], key: KernelKey) -> str:
    """Why a described machine cannot measure a kernel with this key; "" if it can.

    The caches have to be equal, since times depend on them. Further features do no harm.
    """
    if machine["version"] != __version__:
        return f"it has Tilewright {machine['version']}, this is {__version__}"
    if machine["triple"] != key.triple:
        return f"it is {machine['triple']}, not {key.triple}"
    if missing := sorted(set(key.features) - set(machine["features"])):
        more = f" and {len(missing) - 3} more features" if len(missing) > 3 else ""
        return f"it lacks {', '.join(missing[:3])}{more}"
    if tuple(machine["caches"]) != key.caches:
        sizes = ["/".join(map(str, caches)) or "unknown" for caches in (machine["caches"], key.caches)]
        return f"its caches have {sizes[0]} bytes, not {sizes[1]}"
    if machine["cores"] < key.threads:
        return f"it has {machine['cores']} cores, not {key.threads}"
    return ""


def payload_of(
    default: Built, candidate: Built, key: KernelKey, blocks: int, harness: Path
) -> dict[str, Any]:
    """A task for `measure`."""
    return {
        "default": _packed(default),
        "candidate": _packed(candidate),
        "harness": harness.read_bytes(),
        "suffix": harness.suffix,
        "cache_bytes": max(key.caches, default=0),
        "blocks": blocks,
    }


def measure(payload: Payload) -> dict[str, Any]:
    """Measure a task of `payload_of` while no other worker of this machine measures; return the fields of
    the `Measurement`, or "error", why measuring is impossible.
    """
    with tempfile.TemporaryDirectory(dir=temporary.folder(), prefix="measure-") as name, _alone():
        folder, suffix = Path(name), str(payload["suffix"])
        # The harness stays loaded in the process that forks the measuring ones.
        digest = hashlib.blake2b(payload["harness"], digest_size=16).hexdigest()
        harness = temporary.folder() / f"harness-{digest}{suffix}"
        if not harness.exists():
            with written_whole(harness, len(payload["harness"])) as partial:
                partial.write_bytes(payload["harness"])
        built = [_unpacked(payload[side], folder / f"{side}{suffix}") for side in ("default", "candidate")]
        measurer = Measurer(harness, cache_bytes=payload["cache_bytes"])
        try:
            return asdict(measurer.measure(built[0], built[1], payload["blocks"]))
        except MeasureError as error:
            return {"error": str(error)}


def measurement_of(fields: Mapping[str, Any]) -> Measurement:
    """The measurement that `measure` returned."""
    return Measurement(**{**fields, "samples": tuple(fields.get("samples", ()))})


def _packed(built: Built) -> dict[str, Any]:
    return {
        "library": built.library.read_bytes(),
        "kernel": built.kernel.to_json(),
        "digest": built.digest,
    }


def _unpacked(packed: Mapping[str, Any], path: Path) -> Built:
    path.write_bytes(packed["library"])
    return Built(path, KernelDescription.from_json(packed["kernel"]), packed["digest"])


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock of this machine: workers that share it take turns."""
    try:
        import fcntl
    except ImportError:  # Windows, where nothing is measured
        yield
        return
    path = Path(tempfile.gettempdir()) / "tilewright-measuring.lock"
    with path.open("a") as file:
        with suppress(PermissionError):
            path.chmod(0o666)
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


__all__ = ["describe", "measure", "measurement_of", "payload_of", "why_not"]
