"""Archives of libraries for GPUs hold all parts of a library, which any compiler links."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.artifact import link
from tilewright.errors import ArtifactError
from tilewright.runtime.device_library import DeviceLibrary
from tilewright.runtime.simulated_device import simulated_driver
from tilewright.targets.gpu.target import host_isa


@pytest.mark.parametrize("target", ["cuda", "metal"])
def test_an_archive_is_linked_by_a_compiler(target: str, tmp_path: Path) -> None:
    weight = tw.Tensor(np.random.default_rng(0).random((8, 3), np.float32))

    def model(x: Any) -> Any:
        return tw.numpy.exp(x @ weight)

    x = np.random.default_rng(1).random((4, 8), np.float32)
    library = tw.compile(model, (x,), target=target, cache=False)
    path = library.save(tmp_path / "model.tar")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    blobs = []
    for name in ("tw_blob_weights", "tw_blob_metadata"):
        data = (tmp_path / f"{name}.bin").read_bytes()
        blobs.append(tmp_path / f"{name}.o")
        blobs[-1].write_bytes(link.blob_object(data, name, host_isa().triple))
    objects = [*(tmp_path / "objects").glob("*.o"), *blobs]
    sources = sorted((tmp_path / "runtime").glob("*.c"))
    command = ["cc", "-std=c11", "-O1", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-pthread", "-o", "model.so"]
    done = subprocess.run(
        [*command, *map(str, sources), *map(str, objects), "-lm", "-ldl"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    try:
        driver = simulated_driver(target)
    except ArtifactError as error:
        pytest.skip(str(error))
    for text in library.sources:  # type: ignore[attr-defined]
        driver.add(text)
    linked = DeviceLibrary(tmp_path / "model.so", driver=str(driver.path), verify=False)
    np.testing.assert_allclose(linked(x), np.exp(x @ weight.numpy()), rtol=1e-5)
