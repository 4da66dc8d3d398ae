"""Exhaustive tables of synthetic kernels, on which a search is replayed without a machine.

Each is an analytic model of a kernel family: arithmetic, traffic of caches that overflow gradually, address
translation, start-up of inner loops, tails, balance of threads; with terms that depend on two knobs at once,
cliffs, points that a rule refuses, and luck that no formula explains. `prior` is what a compiler would
predict: the same family without most of these terms, with other constants.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from tilewright.artifact.choices import Choice as Knob
from tilewright.schedule.core import ScheduleError
from tilewright.tuning.space import Space, Value, Values

Grid = dict[str, np.ndarray]


@dataclass
class Table:
    """The time of every point of a space, in seconds; infinite where the rule refuses it."""

    name: str
    domains: dict[str, tuple[Value, ...]]
    defaults: dict[str, Value]
    seconds: np.ndarray
    prior: Callable[[Values], float]
    only_with: dict[str, tuple[str, Value]] = field(default_factory=dict)
    """Knobs that exist only where another knob has a value."""

    def rule(self, choices: Values) -> list[Knob]:
        """The schedule rule: record the knobs; refuse what is infeasible."""
        recorded: list[Knob] = []
        values: dict[str, Value] = {}
        for name, domain in self.domains.items():
            other, needed = self.only_with.get(name, (None, None))
            if other is not None and values[other] != needed:
                continue
            value = choices.get(name, self.defaults[name])
            if value not in domain:
                raise ScheduleError(f"{name} must be one of {domain}")
            values[name] = value
            recorded.append(Knob(name, value, self.defaults[name], domain))
        if not np.isfinite(self.time(values)):
            raise ScheduleError("too many registers")
        return recorded

    def time(self, values: Values) -> float:
        """The time of a point; knobs that it lacks have no effect."""
        index = tuple(d.index(values.get(n, self.defaults[n])) for n, d in self.domains.items())
        return float(self.seconds[index])

    def space(self) -> Space:
        """The space, as a search sees it."""
        return Space(self.rule)

    @property
    def best(self) -> float:
        """The least time of any point."""
        return float(self.seconds.min())

    @property
    def default(self) -> float:
        """The time of the defaults."""
        return self.time(self.defaults)


def _grid(domains: dict[str, tuple[Value, ...]]) -> Grid:
    axes = np.meshgrid(*(np.array(d) for d in domains.values()), indexing="ij")
    return dict(zip(domains, axes, strict=True))


def _luck(
    domains: dict[str, tuple[Value, ...]], seed: int, pair: float = 0.012, each: float = 0.003
) -> np.ndarray:
    """Factors without a reason: for each two values of neighbouring knobs, and for each point."""
    rng = np.random.default_rng(seed)
    shape = tuple(map(len, domains.values()))
    total = rng.normal(0, each, shape)
    for a, b in itertools.pairwise(range(len(shape))):
        part = [shape[i] if i in (a, b) else 1 for i in range(len(shape))]
        total = total + rng.normal(0, pair, part)
    return np.exp(total)


def _spill(size: Any, cache_bytes: float, cost: float, sharpness: float = 4.0) -> Any:
    """The factor by which time grows when `size` bytes overflow a cache: 1 to 1 + cost, at a cliff."""
    ratio = size / cache_bytes
    return 1 + cost * ratio**sharpness / (1 + ratio**sharpness)


def _balance(items: Any, cores: int) -> Any:
    return np.ceil(items / cores) * cores / items


def _tail(n: int, tile: Any, unit: int) -> Any:
    """Work of a last part that is rounded up to `unit`."""
    whole, rest = n // tile, n % tile
    return (whole * np.ceil(tile / unit) * unit + np.ceil(rest / unit) * unit) / n


def matmul(name: str, m: int, n: int, k: int, cores: int, l1: int, l2: int, seed: int) -> Table:
    """A matrix product in tiles."""
    domains: dict[str, tuple[Value, ...]] = {
        "rows": tuple(range(32, 385, 32)),
        "columns": (16, 32, 48, 64, 96, 128, 192, 256, 384),
        "depth": (64, 128, 256, 512, 1024, 2048),
        "lead": ("rows", "columns"),
        "unroll": (1, 2, 4),
        "ahead": (0, 128, 256, 512),
        "grain": (1, 2, 4, 8),
    }
    defaults: dict[str, Value] = {
        "rows": 64, "columns": 64, "depth": 2048, "lead": "rows", "unroll": 1, "ahead": 0, "grain": 1,
    }  # fmt: skip

    def model(g: Any, exact: bool) -> Any:
        rows, columns = np.minimum(g["rows"], m), np.minimum(g["columns"], n)
        depth = np.minimum(g["depth"], k)
        flops = 2.0 * m * n * k / (60e9 * cores)
        panel, block = 4.0 * depth * 16, 4.0 * depth * (rows + columns) + 4.0 * rows * columns
        parts = np.ceil(k / depth)
        traffic = 4.0 * (m * k * np.ceil(n / columns) + n * k * np.ceil(m / rows) + 2.0 * m * n * parts)
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        time = flops * _tail(m, rows, 12) * _tail(n, columns, 16)
        if not exact:
            return time * _spill(block, 0.7 * l2, 0.3, 2) * _balance(tiles, cores) + traffic / (40e9 * cores)
        time = time * _spill(panel, 0.5 * l1, 0.25) * _spill(block, 0.8 * l2, 0.45)
        time = time * (1 + 0.10 / g["unroll"] + 0.04 * (g["unroll"] == 4) * (depth < 256))
        time = time * (
            1 + 0.06 * (g["ahead"] == 0) * (block > 0.3 * l2) + 0.03 * (g["ahead"] > 256) * (depth < 512)
        )
        lead = np.where(g["lead"] == "rows", rows * m / 512, columns * n / 512)
        time = time * (1 + 0.08 * lead / (lead + 64)) * (1 + 0.15 * (4.0 * depth * columns > 1.2 * l2))
        launches = np.ceil(tiles / g["grain"])
        return (time + traffic / (55e9 * cores)) * _balance(launches, cores) + launches * 0.4e-6 + 3e-6

    g = _grid(domains)
    seconds = model(g, True) * _luck(domains, seed)
    registers = (g["unroll"] == 4) & (g["ahead"] == 512)
    scratch = 4.0 * g["rows"] * g["depth"] > 2 * l2
    seconds = np.where(registers | scratch, np.inf, seconds)
    return Table(name, domains, defaults, seconds, lambda v: float(model(v, False)))


def convolution(name: str, image: int, channels: int, taps: int, cores: int, l2: int, seed: int) -> Table:
    """A convolution in image lines; packing the image is a choice, with a knob of its own."""
    domains: dict[str, tuple[Value, ...]] = {
        "lines": (1, 2, 3, 4, 6, 8, 12, 16, 28),
        "columns": (16, 32, 48, 64, 128, 256),
        "chunk": (16, 32, 64, 128, 256),
        "pack": (False, True),
        "pad_to": (1, 4, 8, 16),
        "order": ("taps", "channels", "lines"),
        "unroll": (1, 2, 4),
    }
    defaults: dict[str, Value] = {
        "lines": 2, "columns": 64, "chunk": 256, "pack": False, "pad_to": 1, "order": "taps", "unroll": 1,
    }  # fmt: skip

    def model(g: Any, exact: bool) -> Any:
        lines, columns = np.minimum(g["lines"], image), np.minimum(g["columns"], channels)
        chunk = np.minimum(g["chunk"], channels)
        flops = 2.0 * image * image * channels * channels * taps / (55e9 * cores)
        inputs = 4.0 * (lines + 2) * (image + 2) * chunk
        weights = 4.0 * taps * chunk * columns
        tiles = np.ceil(image / lines) * np.ceil(channels / columns)
        time = flops * _balance(tiles, cores) * _tail(image, lines, 1) * _tail(channels, columns, 16)
        if not exact:
            return time * _spill(inputs + weights, l2, 0.4, 2)
        time = (
            time
            * _spill(inputs + weights, 0.6 * l2, 0.5)
            * (1 + 0.5 * (lines * image % 12) / (lines * image))
        )
        packed = np.asarray(g["pack"], bool)
        pad = np.where(packed, 0.02 + 0.05 * (g.get("pad_to", 1) % 8 != 0), 0.09 * (columns < 128) + 0.05)
        copy = np.where(packed, 4.0 * image * image * channels / 12e9 / cores, 0.0)
        order = {"taps": 0.05 * (chunk > 64), "channels": 0.06 * (columns > 64), "lines": 0.08 * (lines < 6)}
        slow = sum((g["order"] == name) * value for name, value in order.items())
        return time * (1 + pad + slow + 0.07 / g["unroll"]) + copy + 4e-6 + tiles * 0.3e-6

    g = _grid(domains)
    seconds = model(g, True) * _luck(domains, seed)
    seconds = np.where((g["unroll"] == 4) & (g["order"] == "lines"), np.inf, seconds)
    off = list(domains["pack"]).index(False)  # without packing, the padding has no effect
    for i in range(1, 4):
        seconds[:, :, :, off, i] = seconds[:, :, :, off, 0]
    return Table(
        name, domains, defaults, seconds, lambda v: float(model(v, False)), {"pad_to": ("pack", True)}
    )


def rows(name: str, count: int, length: int, cores: int, l1: int, seed: int) -> Table:
    """A normalization of rows: bound by memory, with a cliff at the end of the first cache."""
    domains: dict[str, tuple[Value, ...]] = {
        "beside": (1, 2, 3, 4, 6, 8, 12, 16),
        "parts": (1, 2, 3, 4, 6, 8),
        "chunk": (64, 128, 256, 512, 1024, 2048, 4096),
        "passes": ("two", "three", "online"),
        "together": (1, 2, 4),
        "grain": (1, 2, 4, 8, 16, 32),
    }
    defaults: dict[str, Value] = {
        "beside": 1, "parts": 4, "chunk": 4096, "passes": "three", "together": 1, "grain": 1,
    }  # fmt: skip

    def model(g: Any, exact: bool) -> Any:
        beside, chunk = g["beside"], np.minimum(g["chunk"], length)
        size = 4.0 * beside * chunk
        base = 4.0 * count * length / (25e9 * cores)
        passes = (
            1.0 * (g["passes"] == "two") + 1.5 * (g["passes"] == "three") + 0.8 * (g["passes"] == "online")
        )
        if not exact:
            return base * (1 + passes * 0.4) * _spill(size, l1, 0.3, 2)
        latency = 0.5 / (beside * g["parts"] * np.sqrt(g["together"]))
        spill = 0.25 * np.maximum(0, beside * g["parts"] - 24) / 24
        time = base * (1 + passes * (0.2 + 0.3 * (size > 0.75 * l1))) * (1 + latency + spill)
        time = time * (
            1 + 0.12 * (g["passes"] == "online") * (chunk < 512) + 0.1 * (g["together"] == 4) * (beside > 4)
        )
        time = time * (1 + 0.5 * (length % chunk) / length + 0.02 * length / chunk)
        items = np.ceil(count / beside / g["grain"])
        return time * _balance(items, cores) + items * 0.25e-6 / cores + 2e-6

    g = _grid(domains)
    seconds = model(g, True) * _luck(domains, seed)
    seconds = np.where(g["beside"] * g["parts"] > 64, np.inf, seconds)
    return Table(name, domains, defaults, seconds, lambda v: float(model(v, False)))


def chain(name: str, length: int, width: int, heads: int, cores: int, l2: int, seed: int) -> Table:
    """Attention: two products and the softmax between them; an online softmax has a block of its own."""
    domains: dict[str, tuple[Value, ...]] = {
        "height": (4, 8, 12, 16, 24, 32, 48, 64, 96, 128),
        "online": (False, True),
        "block": (64, 128, 256, 512, 1024),
        "columns": (64, 128, 256, 512, 1024),
        "pack_keys": (False, True),
        "unroll": (1, 2, 4),
        "grain": (1, 2, 4, 8),
    }
    defaults: dict[str, Value] = {
        "height": 32, "online": False, "block": 512, "columns": 512, "pack_keys": False,
        "unroll": 1, "grain": 1,
    }  # fmt: skip

    def model(g: Any, exact: bool) -> Any:
        height, online = np.minimum(g["height"], length), np.asarray(g["online"], bool)
        block = np.where(online, np.minimum(g.get("block", 512), length), length)
        columns = np.minimum(g["columns"], length)
        flops = 4.0 * heads * length * length * width / (50e9 * cores)
        scores = 4.0 * height * block + 4.0 * width * block * 2
        items = heads * np.ceil(length / height)
        if not exact:
            return flops * _spill(scores, l2, 0.4, 2) * _balance(items, cores) * (1 + 4 / height)
        time = flops * (1 + 1.5 / height + 0.12 * (height % 12 != 0)) * _spill(scores, 0.5 * l2, 0.6)
        time = time * (1 + np.where(online, 8.0 / np.sqrt(block * 8), 0.05))
        time = time * (1 + 0.1 * (columns > block) + 6 / columns + 0.08 / g["unroll"])
        keys = np.where(np.asarray(g["pack_keys"], bool), 4.0 * heads * length * width / 10e9 / cores, 0.0)
        time = time * np.where(np.asarray(g["pack_keys"], bool), 1.0, 1 + 0.1 * (height > 16)) + keys
        launches = np.ceil(items / g["grain"])
        return time * _balance(launches, cores) + launches * 0.5e-6 + 3e-6

    g = _grid(domains)
    seconds = model(g, True) * _luck(domains, seed)
    seconds = np.where((g["unroll"] == 4) & (g["height"] > 64), np.inf, seconds)
    for i in range(len(domains["block"])):
        seconds[:, 0, i] = seconds[:, 0, 0]
    return Table(
        name, domains, defaults, seconds, lambda v: float(model(v, False)), {"block": ("online", True)}
    )


@cache
def tables() -> tuple[Table, ...]:
    """The twelve tables."""
    k = 1 << 10
    return (
        matmul("matmul 128", 128, 768, 768, 2, 48 * k, 1024 * k, 1),
        matmul("matmul 1024", 1024, 1024, 1024, 2, 32 * k, 512 * k, 2),
        matmul("matmul tall", 3136, 64, 576, 16, 32 * k, 2048 * k, 3),
        matmul("matmul 8 rows", 8, 4096, 1024, 4, 48 * k, 2048 * k, 4),
        convolution("conv 56", 56, 64, 9, 2, 1024 * k, 5),
        convolution("conv 28", 28, 128, 9, 4, 512 * k, 6),
        convolution("conv 14", 14, 256, 9, 2, 2048 * k, 7),
        rows("softmax", 1536, 128, 2, 32 * k, 8),
        rows("layer norm", 128, 768, 4, 48 * k, 9),
        rows("long rows", 64, 8192, 2, 32 * k, 10),
        chain("attention 128", 128, 64, 12, 2, 1024 * k, 11),
        chain("attention 1024", 1024, 64, 16, 8, 512 * k, 12),
    )
