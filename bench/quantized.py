"""Models in 8-bit integers beside ONNX Runtime's and OpenVINO's quantization, interleaved in one process.

    python -m bench.quantized resnet50 ssdlite --seconds 20

Every engine quantizes the same float model with the same eight random samples, with its own tool and for two
threads: `tilewright.quantize`, `onnxruntime.quantization.quantize_static` (QDQ, unsigned activations, weights
by channel), and NNCF for OpenVINO (transformers with its model type). Operators that stay in floating point
run in bf16 in OpenVINO's default mode; Tilewright computes them in bf16, too, where `--bf16` is given. The
packages are onnx, onnxruntime, openvino and nncf.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.zoo import detector

from .models import BENCH_MODELS, Model

NAMES = ("resnet50", "mobilenet_v2", "ssdlite", "bert", "vit")
DETECTOR = Model("ssdlite", detector.detector, lambda batch: {"pixel_values": detector.images(batch=batch)})
MODELS = BENCH_MODELS | {DETECTOR.name: DETECTOR}
TRANSFORMERS = ("bert", "vit", "minilm", "distilbert")
THREADS, SAMPLES = 2, 8
Inputs = dict[str, np.ndarray]
Run = Callable[[], Any]


def samples(model: Model) -> list[Inputs]:
    """Random inputs for calibration: images, tokens without padding."""
    import torch

    found = []
    for seed in range(SAMPLES):
        generator = torch.Generator().manual_seed(100 + seed)
        one = {}
        for name, x in model.inputs(1).items():
            if x.is_floating_point():
                one[name] = torch.randn(x.shape, generator=generator).numpy()
            elif "mask" in name:
                one[name] = np.ones(x.shape, np.int64)
            else:
                one[name] = torch.randint(5, 100, x.shape, generator=generator).numpy()
        found.append(one)
    return found


def export(model: Model, path: Path) -> None:
    """Write the float model as ONNX."""
    import torch

    inputs = model.inputs(1)
    module = (model.export or model.module)()
    with torch.inference_mode():
        torch.onnx.export(
            module, tuple(inputs.values()), path, input_names=list(inputs), dynamo=True, external_data=False,
            verbose=False,
        )  # fmt: skip


def tilewright(path: Path, model: Model, data: list[Inputs], inputs: Inputs, bf16: bool) -> Run:
    import tilewright as tw

    quantized = tw.quantize(path, data, smooth=0.5 if model.name in TRANSFORMERS else None)
    library = tw.compile(quantized, threads=THREADS, precision="bf16" if bf16 else None, cache=False)
    return library.bind(*inputs.values())


def onnx_runtime(path: Path, model: Model, data: list[Inputs], inputs: Inputs, bf16: bool) -> Run:
    import onnxruntime as ort
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(data)

        def get_next(self) -> Inputs | None:
            return next(self.left, None)

    prepared, written = path.with_suffix(".prepared.onnx"), path.with_suffix(".int8.onnx")
    quant_pre_process(path, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared, written, Reader(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8, per_channel=True,
    )  # fmt: skip
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(str(written), options, providers=["CPUExecutionProvider"])
    bound = session.io_binding()
    for name, x in inputs.items():
        bound.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(x))
    for output in session.get_outputs():
        bound.bind_output(output.name)
    return lambda: session.run_with_iobinding(bound)


def openvino(path: Path, model: Model, data: list[Inputs], inputs: Inputs, bf16: bool) -> Run:
    import nncf
    import openvino as ov

    kind = {"model_type": nncf.ModelType.TRANSFORMER} if model.name in TRANSFORMERS else {}
    quantized = nncf.quantize(ov.convert_model(path), nncf.Dataset(data), subset_size=SAMPLES, **kind)
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": THREADS}
    request = ov.Core().compile_model(quantized, "CPU", settings).create_infer_request()
    for k, x in enumerate(inputs.values()):
        request.set_input_tensor(k, ov.Tensor(x))
    return request.infer


ENGINES = {"tilewright": tilewright, "onnxruntime": onnx_runtime, "openvino": openvino}


def measure(name: str, seconds: float, bf16: bool) -> dict[str, float]:
    """The median milliseconds of each engine on one model at batch 1, interleaved."""
    model = MODELS[name]
    inputs = {key: x.numpy() for key, x in model.inputs(1).items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(model, path)
        data = samples(model)
        runs = {engine: make(path, model, data, inputs, bf16) for engine, make in ENGINES.items()}
        times: dict[str, list[float]] = {engine: [] for engine in runs}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for engine, run in runs.items():
                run()  # the threads of the engine before fall asleep
                run()
                for _ in range(3):
                    start = time.perf_counter()
                    run()
                    times[engine].append(time.perf_counter() - start)
    return {engine: float(np.median(x)) * 1e3 for engine, x in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=NAMES)
    parser.add_argument("--seconds", type=float, default=20, help="time for the runs of a model")
    parser.add_argument("--bf16", action="store_true", help="floating-point products of Tilewright in bf16")
    options = parser.parse_args()
    ratios = []
    for name in options.models:
        found = measure(name, options.seconds, options.bf16)
        ratios.append(min(v for k, v in found.items() if k != "tilewright") / found["tilewright"])
        listed = ", ".join(f"{engine} {ms:.3f} ms" for engine, ms in found.items())
        print(f"{name}: {listed}; best peer / tilewright {ratios[-1]:.2f}", flush=True)
    print(f"geometric mean {np.exp(np.mean(np.log(ratios))):.2f}")


if __name__ == "__main__":
    main()
