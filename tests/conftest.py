"""What holds for all tests: a kernel that takes a slower form than its kind's is a mistake of a schedule rule, to be seen."""

from __future__ import annotations

import os

from tilewright.lowering.groups_to_kernels import STRICT

os.environ.setdefault(STRICT, "1")
