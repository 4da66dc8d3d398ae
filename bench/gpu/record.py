"""Record what a real device computes and how fast, from artifacts that another machine may have compiled."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw

from . import goldens
from .driver import Cuda

ERROR = {"minilm": 2e-2}
"""The largest error of a model where it is not 0.002, relative to the largest magnitude of eager's result:
MiniLM computes in float16.
"""


def prepare(folder: Path, say: Callable[[str], None] = print, names: list[str] | None = None) -> None:
    """Compile all that `record` needs: artifacts, eager's results, machine code of the goldens. The device's
    machine then needs neither torch nor a compiler.
    """
    from tilewright.targets.cuda import toolchain

    from .cases import model_cases, speed_cases

    folder.mkdir(parents=True, exist_ok=True)
    for group in goldens.groups():
        for arch in ("sm_80", "sm_90"):
            path = folder / f"{group.name}.{arch}.cubin"
            if not path.exists():
                path.write_bytes(toolchain.compile_image(group.text, arch).cubin)
    for model in model_cases():
        path = folder / f"{model.name}.npz"
        if path.exists() or (names and not any(n in model.name for n in names)):
            continue
        (module, examples), options, inputs, expected = model.build()
        begun = time.monotonic()
        tw.compile(module, examples, target="cuda", **options).save(path.with_suffix(".so"))
        say(f"{model.name}: compiled in {time.monotonic() - begun:.0f} s")
        arrays: Any = {f"input{k}": x for k, x in enumerate(inputs)}
        np.savez_compressed(path, expected=expected, **arrays)
    for case in speed_cases():
        path = folder / f"{_file(case.name, case.dtype)}.so"
        if path.exists() or (names and not any(n in case.name for n in names)):
            continue
        begun = time.monotonic()
        small = [np.zeros(s, x.dtype) for s, x in zip(case.shapes, case.inputs(), strict=True)]
        tw.compile(case.function, tuple(small), target="cuda").save(path)
        say(f"{case.name}, {case.dtype}: compiled in {time.monotonic() - begun:.0f} s")
    total = sum(p.stat().st_size for p in folder.iterdir())
    say(f"{folder}: {total / 1e6:.0f} MB")


def record(
    folder: Path, results: Path, simulated: bool = False, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Run all that is in `folder` on the device; write goldens and figures to `results`.

    Args:
        folder: The folder that `prepare` has filled.
        results: The folder of the results: gpu-goldens-DEVICE.npz, and gpu-DEVICE.json.
        simulated: Whether a simulated device takes the place of the real one. Its times mean nothing.
        say: Reports progress.

    Raises:
        NoDeviceError: There is no device.
    """
    if simulated:
        from tilewright.runtime.simulated_device import simulated_driver

        driver = simulated_driver("cuda")
        for group in goldens.groups():
            driver.add(group.text)
        cuda = Cuda(str(driver.path))
    else:
        cuda = Cuda()
    device = "simulated" if simulated else cuda.name.removeprefix("NVIDIA ").replace(" ", "-")
    say(f"{cuda.name}, {cuda.arch}")
    image_of = _source_of if simulated else _images(folder, cuda.arch)
    golden = goldens.record(
        lambda text, entry, blocks, threads, arrays: cuda.launch(
            image_of(text), entry, blocks, threads, arrays
        )
    )
    goldens.save(results / f"gpu-goldens-{device}.npz", golden, cuda.arch)
    found: dict[str, Any] = {
        "date": date.today().isoformat(),
        "device": cuda.name,
        "arch": cuda.arch,
        "goldens": len(golden),
        "models": {},
        "speed": {},
    }
    for name, error in _models(folder, simulated):
        found["models"][name] = error
        say(f"{name}: {error}")
    if not simulated:
        found["copy"] = cuda.copy_bandwidth()
        say(f"copy: {found['copy'] / 1e12:.3f} TB/s")
        for name, figures in _speeds(folder, found["copy"]):
            found["speed"][name] = figures
            say(f"{name}: {figures}")
    (results / f"gpu-{device}.json").write_text(json.dumps(found, indent=1) + "\n")
    return found


def _models(folder: Path, simulated: bool) -> Iterator[tuple[str, float | str]]:
    """The largest error of each model, or why it did not run."""
    for path in sorted(p for p in folder.glob("*.npz") if p.with_suffix(".so").exists()):
        with np.load(path) as arrays:
            expected = arrays["expected"]
            inputs = [arrays[f"input{k}"] for k in range(len(arrays.files) - 1)]
        try:
            library: Any = tw.load(path.with_suffix(".so"), simulate=simulated)
            result = np.asarray(library(*inputs))
        except tw.TilewrightError as error:
            yield path.stem, f"{type(error).__name__}: {error}"
            continue
        scale = float(np.abs(expected).max()) or 1.0
        worst = float(np.abs(result.astype(np.float64) - expected).max()) / scale
        yield (
            path.stem,
            worst if worst <= ERROR.get(path.stem.partition("-")[0], 2e-3) else f"wrong: error {worst:.3g}",
        )


def _speeds(folder: Path, copy: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Times of the speed cases by events of the device, the least of some runs."""
    from .cases import speed_cases

    for case in speed_cases():
        path = folder / f"{_file(case.name, case.dtype)}.so"
        if not path.exists():
            continue
        library: Any = tw.load(path)
        inputs = case.inputs()
        result = np.asarray(library(*inputs))
        runs = [sum(k.seconds for k in library.profile(*inputs)) for _ in range(5)]
        seconds, moved = min(runs), sum(x.nbytes for x in inputs) + result.nbytes
        figures: dict[str, Any] = {"microseconds": round(seconds * 1e6, 1)}
        if case.flops:
            figures["tflops"] = round(case.flops / seconds / 1e12, 1)
        else:
            figures["share_of_copy"] = round(moved / seconds / copy, 3)
        yield f"{case.name}, {case.dtype}", figures


def _images(folder: Path, arch: str) -> Callable[[str], bytes]:
    names = {group.text: group.name for group in goldens.groups()}
    built = "sm_90" if arch >= "sm_90" else "sm_80"
    return lambda text: (folder / f"{names[text]}.{built}.cubin").read_bytes()


def _source_of(text: str) -> bytes:
    return text.encode() + b"\0"


def _file(name: str, dtype: str) -> str:
    kept = "".join(c if c.isalnum() else "-" for c in name)
    return f"speed-{kept}-{dtype}"
