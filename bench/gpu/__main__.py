"""`python -m bench.gpu`: record what a GPU computes and how fast; tables of what kernels need.

    python -m bench.gpu --record       # goldens, models against eager, bandwidth and rates: on a CUDA device
    python -m bench.gpu --prepare      # compile for --record, on a machine without a device
    python -m bench.gpu --resources    # registers, spills, shared memory, occupancy of all models' kernels

`--record` takes what it needs from the folder that `--prepare` fills, and compiles what is missing there. The
folder has less than 60 MB; with it, the device's machine needs NumPy and this repository, and neither torch
nor a compiler. Results go to bench/results. Tests replay recorded goldens in the simulator.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from .driver import NoDeviceError  # noqa: E402

RESULTS = ROOT / "bench" / "results"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", action="store_true", help="run on the CUDA device of this machine")
    what.add_argument("--prepare", action="store_true", help="compile what --record runs")
    what.add_argument("--resources", action="store_true", help="what the kernels of all models need")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu", help="compiled artifacts")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--simulate", action="store_true", help="--record on a simulated device, for tests")
    parser.add_argument("--only", help="models and kernels whose names contain one of these, with commas")
    parser.add_argument("--missing", action="store_true", help="--resources of cases that the table lacks")
    given = parser.parse_args(arguments)
    names = given.only.split(",") if given.only else None
    if given.resources:
        from . import resources

        resources.write(given.results, names, given.missing)
        return 0
    from . import record

    if not given.record or not any(given.folder.glob("*.cubin")):
        record.prepare(given.folder, names=names)
    if given.record:
        try:
            found = record.record(given.folder, given.results, given.simulate)
        except NoDeviceError as error:
            print(f"nothing was recorded: {error}", file=sys.stderr)
            return 2
        wrong = [name for name, error in found["models"].items() if isinstance(error, str)]
        print(f"{len(found['models'])} models, {len(wrong)} wrong: {', '.join(wrong) or '-'}")
        return int(bool(wrong))
    return 0


if __name__ == "__main__":
    sys.exit(main())
