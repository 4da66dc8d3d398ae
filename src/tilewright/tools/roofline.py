"""The measured peaks of this machine, the roofs of the roofline model: arithmetic in float32, bf16 and int8,
and memory bandwidth.

They are measured by small loops in LLVM IR with vectors as wide as the processor's registers, on a given
number of threads. The disk cache keeps the best results so far by processor and threads. Source of the model:
Williams, Waterman and Patterson, "Roofline", 2009.
"""

from __future__ import annotations

import ctypes
import json
import platform
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from tilewright.artifact import disk_cache
from tilewright.driver.cores import usable_cores

_VERSION = 5
_CHAINS = 12  # independent chains of fused multiply-adds: at least latency 4 times 2 units
_DOTS = {
    16: 16,
    8: 12,
}  # independent chains of dot products, by lanes: latency 6 times 2 units, or the registers
_TILES = 4  # products of tile registers a round: four sums of two operands each
_TILE_FLOPS = {
    "bf16": 2.0 * 16 * 16 * 32,
    "int8": 2.0 * 16 * 16 * 64,
}  # terms of each of the 16 x 16 sums of one product
_DOT_FLOPS = {"bf16": 4.0, "int8": 8.0}  # operations of a dot product in each lane: pairs, quads
_SHARES = (
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
)  # bytes that each thread reads repeatedly: sizes that levels of caches hold
_PRIVATE = 1 << 20  # bytes of a thread that the caches of its own core hold
_PARTS = 16  # parts of a large buffer, of which each is read in some milliseconds
LARGE = 256 << 20  # bytes that no known cache holds, read by all threads together


@dataclass(frozen=True)
class Roofline:
    """Peak float32 flop/s (a fused multiply-add counts as two) and bytes/s read from memory, with `threads`
    threads.

    `bf16_flops`: peak of products of bf16 numbers summed in float32, by matrix instructions (AMX) or dot
    products of pairs (AVX512-BF16). `int8_flops`: the same for 8-bit integers summed in int32, by AMX or dot
    products of quads (AVX512-VNNI, AVX-VNNI). Both equal `flops` where there are no such instructions.
    """

    processor: str
    threads: int
    flops: float
    bandwidth: float
    bf16_flops: float = 0.0
    int8_flops: float = 0.0
    cached: tuple[tuple[int, float], ...] = ()
    """Pairs in rising order: bytes that all threads together read repeatedly, and the bytes/s that the caches
    deliver then.
    """

    def __post_init__(self) -> None:
        for peak in ("bf16_flops", "int8_flops"):
            object.__setattr__(self, peak, max(self.flops, getattr(self, peak)))

    def bandwidth_of(self, size: float) -> float:
        """The peak bytes/s for `size` bytes read repeatedly: from the caches that hold them, or from
        memory.
        """
        if size >= LARGE:
            return self.bandwidth
        rates = [rate for measured, rate in self.cached if measured <= size] or [
            rate for _, rate in self.cached[:1]
        ]
        return max([self.bandwidth, *rates[-1:]])

    def peak_of(self, dtypes: Collection[str]) -> float:
        """The peak operations/s of a program whose contractions have operands of these data types, e.g.
        "bf16" or "i8".
        """
        peaks = {"bf16": self.bf16_flops, "i8": self.int8_flops, "u8": self.int8_flops}
        return max([self.flops, *(peaks[dtype] for dtype in dtypes if dtype in peaks)])

    def floor_seconds(
        self, flops: float, num_bytes: float, held: float | None = None, dtypes: Collection[str] = ()
    ) -> float:
        """The lower bound of the seconds of a program that does `flops` operations and moves `num_bytes`
        bytes.

        The bytes come from memory, or from the caches where they are the same `held` bytes each time.
        `dtypes`: see `peak_of`.
        """
        bandwidth = self.bandwidth if held is None else self.bandwidth_of(held)
        return max(flops / self.peak_of(dtypes), num_bytes / bandwidth)


@cache
def machine(threads: int | None = None) -> Roofline:
    """The roofline of this machine with `threads` threads (default: all usable cores), measured now in about
    1 s.

    The load of other programs only lowers a measurement, so the result is the best of this measurement and
    the earlier ones in the disk cache.
    """
    count = threads or usable_cores()
    processor = processor_name()
    key = disk_cache.digest(f"{_VERSION}|{processor}|{count}")
    measured = measure(count, processor)
    known = disk_cache.read("machine", key)
    if known is not None:
        try:
            before = Roofline(**json.loads(known))
            names = ("flops", "bandwidth", "bf16_flops", "int8_flops")
            roofs = ((getattr(m, f) for m in (measured, before)) for f in names)
            rates = {size: rate for size, rate in before.cached}
            cached = tuple((size, max(rate, rates.get(size, 0.0))) for size, rate in measured.cached)
            best = dict(zip(names, map(max, roofs), strict=True))
            measured = replace(measured, cached=cached, **best)
        except (ValueError, TypeError):
            pass  # an older or damaged entry
    disk_cache.write("machine", key, json.dumps(asdict(measured)).encode())
    return measured


def measure(threads: int, processor: str = "") -> Roofline:
    """Measure now: the best of several short runs of each loop."""
    loops = _Loops()
    best = {
        name: operations / _best([work] * 40, shared=False)
        for name, (work, operations) in _products(threads, loops).items()
    }
    flops = best.pop("float32")
    products = {f"{name}_flops": peak for name, peak in best.items()}
    bandwidth = _bandwidth(threads, loops)
    cached = tuple((share * threads, share * threads / _again(threads, share, loops)) for share in _SHARES)
    return Roofline(processor or processor_name(), threads, flops, bandwidth, cached=cached, **products)


def _again(threads: int, share: int, loops: _Loops) -> float:
    """The seconds of one pass of many over `share` bytes for each thread."""
    passes = max(4, LARGE // 8 // share)
    buffers = _buffers(threads, share)
    # A call for each pass would take longer than to read a small buffer.
    work = [partial(loops.read, _start(buffer), share * passes, share - 1) for buffer in buffers]
    return _best([work] * 12, shared=share > _PRIVATE) / passes


def _bandwidth(threads: int, loops: _Loops) -> float:
    """Bytes/s from memory: the best of the parts of a large buffer."""
    part = LARGE // threads // _PARTS // 4096 * 4096
    buffers = _buffers(threads, part * _PARTS)
    runs = [
        [partial(loops.read, _start(buffer) + k * part, part, -1) for buffer in buffers]
        for k in (*range(_PARTS), *range(_PARTS), *range(_PARTS))
    ]
    return part * threads / _best(runs, shared=True)


def reader(threads: int, size: int) -> Callable[[], float]:
    """A function that reads `size` bytes of memory, a share on each thread, and returns the seconds."""
    loops = _Loops()
    share = -(-size // threads // 4096) * 4096
    buffers = _buffers(threads, share)

    def once() -> float:
        work = [partial(loops.read, _start(buffer), share, -1) for buffer in buffers]
        return _timed(work, shared=True)[0]

    return once


def _buffers(threads: int, share: int) -> list[ctypes.Array[ctypes.c_char]]:
    """Memory for each thread, its pages allocated."""
    buffers = [ctypes.create_string_buffer(share + 64) for _ in range(threads)]
    for buffer in buffers:
        ctypes.memset(_start(buffer), 0, share)
    return buffers


def _start(buffer: ctypes.Array[ctypes.c_char]) -> int:
    return ctypes.addressof(buffer) + -ctypes.addressof(buffer) % 64


def peaks(threads: int) -> dict[str, Callable[[], float]]:
    """For "float32", and for "bf16" and "int8" where the processor has products of them: a function that
    multiplies for some 3 ms on each thread and returns the operations/s.
    """

    def rate(work: list[Callable[[], Any]], operations: float) -> Callable[[], float]:
        return lambda: operations / _timed(work, shared=False)[0]

    return {name: rate(*found) for name, found in _products(threads, _Loops()).items()}


def _products(threads: int, loops: _Loops) -> dict[str, tuple[list[Callable[[], Any]], float]]:
    """For each type of factors, work of some 3 ms for each thread, and the operations of all threads."""
    found: dict[str, tuple[list[Callable[[], Any]], float]] = {}
    for name, (loop, operations) in loops.products.items():
        work: list[Callable[[], Any]] = []
        rounds, seconds = 100_000, 0.0
        while seconds < 0.003:  # long beside the start of threads, short beside the time slices of the system
            rounds *= 2
            work = [partial(loop, rounds)] * threads
            seconds, _ = _timed(work, shared=False)
        found[name] = work, operations * rounds * threads
    return found


def _timed(work: Sequence[Callable[[], Any]], shared: bool) -> tuple[float, bool]:
    """The seconds of all of `work`, each on a thread of its own, and whether each thread had its core for
    itself all the time. Threads that share memory are timed from the first begin to the last end, others by
    the slowest of them, as a thread may have to wait for a core.
    """
    gate = threading.Barrier(len(work))
    spans: list[tuple[float, float, float]] = []

    def body(function: Callable[[], Any]) -> None:
        gate.wait()
        begin, ran = time.perf_counter(), time.thread_time()
        function()
        spans.append((begin, time.perf_counter(), time.thread_time() - ran))

    threads = [threading.Thread(target=body, args=(function,)) for function in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = all(ran > 0.97 * (end - begin) - 20e-6 for begin, end, ran in spans)
    if shared:
        return max(end for _, end, _ in spans) - min(begin for begin, *_ in spans), alone
    return max(end - begin for begin, end, _ in spans), alone


def _best(runs: Iterable[Sequence[Callable[[], Any]]], shared: bool) -> float:
    """The seconds of the fastest of several runs. Runs that other programs interrupted count only where all
    are.
    """
    timed = [_timed(work, shared) for work in runs]
    return min([seconds for seconds, alone in timed if alone] or [seconds for seconds, _ in timed])


def processor_name() -> str:
    """The name of this machine's processor, as Linux has it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _tiles_allowed(features: dict[str, bool]) -> bool:
    """Whether the processor has instructions on tiles of bf16 and of bytes and Linux allows them to this
    process, which asks here.
    """
    if not all(features.get(f"amx-{name}") for name in ("tile", *_TILE_FLOPS)):
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)


def _dot_lanes(features: dict[str, bool]) -> dict[str, int]:
    """The lanes of the widest dot products of the processor, by the operands' type."""
    wide = bool(features.get("avx512f"))
    lanes = {"bf16": 16} if wide and features.get("avx512bf16") else {}
    if wide and features.get("avx512vnni"):
        return lanes | {"int8": 16}
    return lanes | ({"int8": 8} if features.get("avxvnni") else {})


class _Loops:
    """The loops as machine code of this process; `products`: the loops of multiply-adds, matrix instructions
    or dot products, which take a number of rounds, and the operations of one round, by the operands' type.
    """

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.lanes = 16 if features.get("avx512f") else 8 if features.get("avx2") else 4
        tiles = tuple(_TILE_FLOPS) if _tiles_allowed(features) else ()
        dots = {} if tiles else _dot_lanes(features)
        module = llvm.parse_assembly(
            self._text()
            + (_TILE_SETUP if tiles else "")
            + "".join(map(_tile_loop, tiles))
            + "".join(_dot_loop(name, lanes) for name, lanes in dots.items())
        )
        target = llvm.Target.from_default_triple()
        self._machine = target.create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=2, jit=True
        )
        self._engine = llvm.create_mcjit_compiler(module, self._machine)
        self._engine.finalize_object()
        operations = {name: _TILES * _TILE_FLOPS[name] for name in tiles}
        operations |= {name: _DOTS[n] * _DOT_FLOPS[name] * n for name, n in dots.items()}
        multiply_add = self._function("multiply_add", ctypes.c_float, ctypes.c_int64)
        self.products = {"float32": (multiply_add, 2.0 * self.lanes * _CHAINS)}
        self.products |= {
            name: (self._function(f"multiply_{name}", None, ctypes.c_int64), count)
            for name, count in operations.items()
        }
        self.read = self._function("read", ctypes.c_float, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        """The function of the machine code, which it keeps."""
        function: Any = ctypes.CFUNCTYPE(result, *arguments)(self._engine.get_function_address(name))
        function.owner = self
        return function

    def _text(self) -> str:
        """`multiply_add(n)`: n rounds of one FMA on each chain. `read(p, bytes, mask)`: adds up bytes,
        four vectors a round; `mask` is -1, or the size of a buffer that is read again and again, less 1.
        """
        vector = f"<{self.lanes} x float>"
        size = self.lanes * 4
        ways = 4

        def loop(count: int, body: list[str]) -> list[str]:
            # Every chain starts from another value, so that LLVM cannot merge them.
            first = [f"<{', '.join([f'float {float(k)}'] * self.lanes)}>" for k in range(count)]
            start = [f"  %a{k} = phi {vector} [ {first[k]}, %entry ], [ %b{k}, %loop ]" for k in range(count)]
            return ["  br label %loop", "loop:", "  %i = phi i64 [ 0, %entry ], [ %j, %loop ]", *start, *body]

        def finish(count: int) -> list[str]:
            sums = ["exit:"]
            last = "%b0"
            for k in range(1, count):
                sums.append(f"  %s{k} = fadd fast {vector} {last}, %b{k}")
                last = f"%s{k}"
            name = f"@llvm.vector.reduce.fadd.v{self.lanes}f32"
            reduce = f"  %r = call fast float {name}(float 0.0, {vector} {last})"
            return [*sums, reduce, "  ret float %r"]

        fma = f"@llvm.fma.v{self.lanes}f32"
        multiply = [
            f"  %b{k} = call {vector} {fma}({vector} %a{k}, {vector} %x, {vector} %y)" for k in range(_CHAINS)
        ]
        loads = ["  %m = and i64 %i, %mask"]
        for k in range(ways):
            loads += [
                f"  %o{k} = add i64 %m, {k * size}",
                f"  %p{k} = getelementptr i8, ptr %p, i64 %o{k}",
                f"  %v{k} = load {vector}, ptr %p{k}, align 64"
                if size == 64
                else f"  %v{k} = load {vector}, ptr %p{k}",
                f"  %b{k} = fadd {vector} %a{k}, %v{k}",
            ]
        attributes = f'attributes #0 = {{ "prefer-vector-width"="{self.lanes * 32}" }}'
        return "\n".join(
            [
                f"declare {vector} {fma}({vector}, {vector}, {vector})",
                f"declare float @llvm.vector.reduce.fadd.v{self.lanes}f32(float, {vector})",
                "define float @multiply_add(i64 %n) #0 {",
                "entry:",
                "  %f = sitofp i64 %n to float",
                f"  %one = insertelement {vector} undef, float %f, i32 0",
                f"  %x = shufflevector {vector} %one, {vector} undef, <{self.lanes} x i32> zeroinitializer",
                f"  %y = fadd {vector} %x, %x",
                *loop(_CHAINS, multiply),
                "  %j = add i64 %i, 1",
                "  %c = icmp slt i64 %j, %n",
                "  br i1 %c, label %loop, label %exit",
                *finish(_CHAINS),
                "}",
                "define float @read(ptr %p, i64 %n, i64 %mask) #0 {",
                "entry:",
                *loop(ways, loads),
                f"  %j = add i64 %i, {ways * size}",
                "  %c = icmp slt i64 %j, %n",
                "  br i1 %c, label %loop, label %exit",
                *finish(ways),
                "}",
                attributes,
            ]
        )


_SHAPES = "\\01\\00" + "\\00" * 14 + "\\40\\00" * 8 + "\\00" * 16 + "\\10" * 8 + "\\00" * 8
"""The tile configuration: palette 1, eight registers of 16 rows of 64 bytes."""
_TILE_SETUP = f"""
@shapes = private constant [64 x i8] c"{_SHAPES}", align 64
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilezero(i8)
declare void @llvm.x86.tilerelease()
"""


def _tile_loop(name: str) -> str:
    """``multiply_bf16(n)``, ``multiply_int8(n)``: n rounds of four products of tile registers."""
    product = f"@llvm.x86.{'tdpbf16ps' if name == 'bf16' else 'tdpbusd'}"
    return f"""
declare void {product}(i8, i8, i8)
define void @multiply_{name}(i64 %n) {{
entry:
  call void @llvm.x86.ldtilecfg(ptr @shapes)
{"".join(f"  call void @llvm.x86.tilezero(i8 {k})" + chr(10) for k in range(8))}  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  call void {product}(i8 0, i8 4, i8 6)
  call void {product}(i8 1, i8 4, i8 7)
  call void {product}(i8 2, i8 5, i8 6)
  call void {product}(i8 3, i8 5, i8 7)
  %j = add i64 %i, 1
  %c = icmp slt i64 %j, %n
  br i1 %c, label %loop, label %exit
exit:
  call void @llvm.x86.tilerelease()
  ret void
}}
"""


def _dot_loop(name: str, lanes: int) -> str:
    """``multiply_bf16(n)``, ``multiply_int8(n)``: n rounds of one dot product on each chain."""
    bits, chains = 32 * lanes, _DOTS[lanes]
    bf16 = name == "bf16"
    sums = f"<{lanes} x {'float' if bf16 else 'i32'}>"
    factors = f"<{2 * lanes} x bfloat>" if bf16 else f"<{4 * lanes} x i8>"
    product = f"@llvm.x86.avx512{'bf16.dpbf16ps' if bf16 else '.vpdpbusd'}.{bits}"
    # Every chain starts from another value, so that LLVM cannot merge them.
    first = [", ".join([f"float {k}.0" if bf16 else f"i32 {k}"] * lanes) for k in range(chains)]
    starts = [f"  %a{k} = phi {sums} [ <{first[k]}>, %entry ], [ %b{k}, %loop ]" for k in range(chains)]
    products = [
        f"  %b{k} = call {sums} {product}({sums} %a{k}, {factors} %x, {factors} %y)" for k in range(chains)
    ]
    stores = [f"  store volatile {sums} %b{k}, ptr %result" for k in range(chains)]
    return "\n".join(
        [
            "",
            f"declare {sums} {product}({sums}, {factors}, {factors})",
            f'define void @multiply_{name}(i64 %n) "prefer-vector-width"="{bits}" {{',
            "entry:",
            f"  %result = alloca {sums}, align 64",
            f"  store volatile {sums} zeroinitializer, ptr %result",
            f"  %x = load volatile {factors}, ptr %result",
            f"  %y = load volatile {factors}, ptr %result",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [ 0, %entry ], [ %j, %loop ]",
            *starts,
            *products,
            "  %j = add i64 %i, 1",
            "  %c = icmp slt i64 %j, %n",
            "  br i1 %c, label %loop, label %exit",
            "exit:",
            *stores,
            "  ret void",
            "}",
            "",
        ]
    )
