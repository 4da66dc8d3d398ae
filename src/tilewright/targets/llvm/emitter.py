"""Writing the body of one LLVM IR function as text: fresh names, blocks, structured loops with carried
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Carried = list[tuple[str, str]]
"""(type, value) pairs that one iteration of a loop passes to the next."""
REDUCED = '"tilewright-reduced"'
"""The attribute of a function whose instructions are emitted in their final form. On x86, LLVM's code
generator makes as good code of them after one pass as after the whole pipeline, which takes as long as the
code generator itself.
"""


class Emitter:
    """Appends instructions to a function's body. Integer helpers take and return ``i64`` operands and fold
    constants. Loops count in the type `counter`, which holds their bounds.
    """

    def __init__(self, counter: str = "i64") -> None:
        self.counter = counter
        self._entry: list[str] = []
        self._lines: list[Any] = []  # Instructions, and slots for instructions that are added later.
        self._count = 0
        self._block = "entry"

    def text(self, result: str = "void") -> str:
        """The body, from the entry label to the final ``ret`` of `result` (for example ``i64 %v3``)."""
        lines = [line for part in self._lines for line in (part if isinstance(part, list) else (part,))]
        return "\n".join(["entry:", *self._entry, *lines, f"  ret {result}", ""])

    def slot(self) -> list[str]:
        """Reserve a slot at this position of the text; `into` may fill it later with instructions that do not
        branch.
        """
        instructions: list[str] = []
        self._lines.append(instructions)
        return instructions

    @contextmanager
    def into(self, slot: list[str]) -> Iterator[None]:
        """Append the instructions that the ``with`` block emits to a slot."""
        saved, self._lines = self._lines, slot
        try:
            yield
        finally:
            self._lines = saved

    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def line(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def op(self, text: str) -> str:
        """Append the instruction `text` and return its value."""
        name = f"%{self.fresh()}"
        self.line(f"{name} = {text}")
        return name

    def label(self, name: str) -> None:
        self._lines.append(f"{name}:")
        self._block = name

    def alloca(self, kind: str, align: int) -> str:
        """Stack memory, reserved once per call of the function."""
        name = f"%{self.fresh('stack')}"
        self._entry.append(f"  {name} = alloca {kind}, align {align}")
        return name

    # -- Integers and addresses --

    def add(self, a: str, b: str) -> str:
        if _known(a, b):
            return str(int(a) + int(b))
        if a == "0" or b == "0":
            return b if a == "0" else a
        return self.op(f"add nsw i64 {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        if _known(a, b):
            return str(int(a) - int(b))
        return a if b == "0" else self.op(f"sub nsw i64 {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        if _known(a, b):
            return str(int(a) * int(b))
        if a == "0" or b == "0":
            return "0"
        if a == "1" or b == "1":
            return b if a == "1" else a
        return self.op(f"mul nsw i64 {a}, {b}")

    def divide(self, a: str, by: int) -> str:
        """``a // by`` for ``a >= 0``."""
        if _known(a):
            return str(int(a) // by)
        return a if by == 1 else self.op(f"udiv i64 {a}, {by}")

    def remainder(self, a: str, by: int) -> str:
        """``a % by`` for ``a >= 0``."""
        if _known(a):
            return str(int(a) % by)
        return "0" if by == 1 else self.op(f"urem i64 {a}, {by}")

    def at(self, pointer: str, index: str, itemsize: int) -> str:
        """The address `index` elements of `itemsize` bytes after `pointer`."""
        if index == "0":
            return pointer
        if _known(index):
            # Without `nuw`, WebAssembly's loads cannot contain the constant.
            flag = "nuw " if int(index) > 0 else ""
            return self.op(f"getelementptr {flag}i8, ptr {pointer}, i64 {int(index) * itemsize}")
        return self.op(f"getelementptr [{itemsize} x i8], ptr {pointer}, i64 {index}")

    def completed(self, kind: str, value: str) -> str:
        """`value` of a type, computed before anything that is written later is loaded.

        LLVM would first load the operands of all products of a tile. The engine that compiles WebAssembly
        keeps this order: it would spill most of them. An address that advances in a loop is computed once:
        LLVM would advance one for each load from it, and WebAssembly's loads can add constants.
        """
        return self.op(f'call {kind} asm sideeffect "", "=r,0"({kind} {value})')

    # -- Vectors --

    def load(self, kind: str, pointer: str, align: int) -> str:
        return self.op(f"load {kind}, ptr {pointer}, align {align}")

    def splat(self, vector: str, scalar: str, value: str) -> str:
        one = self.op(f"insertelement {vector} poison, {scalar} {value}, i64 0")
        lanes = vector[1:].split(" ")[0]
        return self.op(f"shufflevector {vector} {one}, {vector} poison, <{lanes} x i32> zeroinitializer")

    def shuffle(self, kind: str, a: str, b: str, order: list[int]) -> str:
        """A vector of the lanes `order` of the concatenation of `a` and `b`, which have type `kind`."""
        text = ", ".join(f"i32 {k}" for k in order)
        return self.op(f"shufflevector {kind} {a}, {kind} {b}, <{len(order)} x i32> <{text}>")

    def fma(self, kind: str, a: str, b: str, c: str, fused: bool) -> str:
        """``a * b + c``: with one rounding if `fused`, otherwise with one or two, as is faster."""
        if fused:
            return self.op(f"call {kind} @llvm.fma.{mangled(kind)}({kind} {a}, {kind} {b}, {kind} {c})")
        return self.op(f"fadd contract {kind} {self.op(f'fmul contract {kind} {a}, {b}')}, {c}")

    def add_numbers(self, kind: str, a: str, b: str) -> str:
        """``a + b`` of floating-point numbers, or of integers, which wrap around."""
        is_integer = (
            kind[1:-1].split(" x ")[-1].startswith("i") if kind.startswith("<") else kind.startswith("i")
        )
        return self.op(f"{'add' if is_integer else 'fadd'} {kind} {a}, {b}")

    def first_lanes(self, lanes: int, count: str) -> str:
        """The mask (``<lanes x i1>``) of the first `count` lanes, a number of 32 bits."""
        numbers = f"<{lanes} x i32>"
        each = ", ".join(f"i32 {i}" for i in range(lanes))
        narrow = count if _known(count) else self.op(f"trunc i64 {count} to i32")
        return self.op(f"icmp slt {numbers} <{each}>, {self.splat(numbers, 'i32', narrow)}")

    def masked_load(self, kind: str, pointer: str, align: int, mask: str) -> str:
        """Load the lanes of `kind` where `mask` holds, zero elsewhere; memory of masked lanes is not
        accessed.
        """
        lanes = kind[1:].split(" ")[0]
        return self.op(
            f"call {kind} @llvm.masked.load.{mangled(kind)}.p0(ptr align {align} {pointer}, <{lanes} x i1> "
            f"{mask}, {kind} zeroinitializer)"
        )

    def masked_store(self, kind: str, value: str, pointer: str, align: int, mask: str) -> None:
        lanes = kind[1:].split(" ")[0]
        self.line(
            f"call void @llvm.masked.store.{mangled(kind)}.p0({kind} {value}, ptr align {align} {pointer}, "
            f"<{lanes} x i1> {mask})"
        )

    # -- Control flow --

    def loop(
        self, start: str, stop: str, step: str, carried: Carried, body: Callable[[str, Carried], list[str]]
    ) -> list[str]:
        """``for i in range(start, stop, step)``; returns the final values of `carried`.

        A single constant iteration is emitted without a loop.
        """
        values = [v for _, v in carried]
        if _known(start, stop, step):
            trips = max(0, -(-(int(stop) - int(start)) // int(step)))
            if trips == 0:
                return values
            if trips == 1:
                return body(start, carried)
        at_least_once = _known(start, stop)
        narrow = self.counter != "i64"
        first, last = (self._counted(x) if narrow else x for x in (start, stop))
        name = self.fresh("for")
        before = self._block
        if at_least_once:
            self.line(f"br label %{name}")
        else:
            enter = self.op(f"icmp slt {self.counter} {first}, {last}")
            self.line(f"br i1 {enter}, label %{name}, label %{name}.end")
        self.label(name)
        i = n = f"%{name}.i"
        inside = [(kind, f"%{name}.c{j}") for j, (kind, _) in enumerate(carried)]
        # The incoming value of the back edge is known only after the body, so the phi lines are inserted
        # afterwards.
        header = len(self._lines)
        if narrow:
            i = self.op(f"zext nneg {self.counter} {n} to i64")
        results = body(i, inside)
        following = self.op(f"add nuw nsw {self.counter} {n}, {step}")
        # LLVM's code generator counts down to zero, which saves an instruction, only if the test is for `ne`.
        meets = _known(start, stop, step) and (int(stop) - int(start)) % int(step) == 0
        again = self.op(f"icmp {'ne' if meets else 'slt'} {self.counter} {following}, {last}")
        after = self._block
        self.line(f"br i1 {again}, label %{name}, label %{name}.end")
        phis = [f"  {n} = phi {self.counter} [ {first}, %{before} ], [ {following}, %{after} ]"]
        phis += [
            f"  {v} = phi {kind} [ {value}, %{before} ], [ {result}, %{after} ]"
            for (kind, v), value, result in zip(inside, values, results, strict=True)
        ]
        self._lines[header:header] = phis
        self.label(f"{name}.end")
        if at_least_once:
            return results
        return [
            self.op(f"phi {kind} [ {first}, %{before} ], [ {last}, %{after} ]")
            for (kind, first), last in zip(carried, results, strict=True)
        ]

    def _counted(self, value: str) -> str:
        """An i64 operand as a loop counts."""
        return value if _known(value) else self.op(f"trunc i64 {value} to {self.counter}")

    def loop_while(
        self,
        condition: str,
        limit: str,
        carried: Carried,
        body: Callable[[str, Carried], tuple[str, list[str]]],
        read: Callable[[str], str],
    ) -> tuple[str, list[str]]:
        """``while *condition and i < limit``; returns the number of iterations and the final values of
        `carried`.

        `condition` is the address of a byte in memory; the body returns the address for the next iteration.
        `read` returns the byte (i8) at an address.
        """
        name = self.fresh("while")
        before = self._block
        self.line(f"br label %{name}")
        self.label(name)
        i, byte = f"%{name}.i", f"%{name}.p"
        inside = [(kind, f"%{name}.c{j}") for j, (kind, _) in enumerate(carried)]
        header = len(self._lines)
        holds = self.op(f"icmp ne i8 {read(byte)}, 0")
        below = self.op(f"icmp slt i64 {i}, {limit}")
        self.line(f"br i1 {self.op(f'and i1 {holds}, {below}')}, label %{name}.body, label %{name}.end")
        self.label(f"{name}.body")
        again, results = body(i, inside)
        following = self.op(f"add nuw nsw i64 {i}, 1")
        after = self._block
        self.line(f"br label %{name}")
        phis = [
            f"  {v} = phi {kind} [ {first}, %{before} ], [ {last}, %{after} ]"
            for (kind, v), first, last in zip(
                [("i64", i), ("ptr", byte), *inside],
                ["0", condition, *(v for _, v in carried)],
                [following, again, *results],
                strict=True,
            )
        ]
        self._lines[header:header] = phis
        self.label(f"{name}.end")
        return i, [v for _, v in inside]

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Execute the instructions of the ``with`` block only if `condition` (i1) holds."""
        name = self.fresh("if")
        self.line(f"br i1 {condition}, label %{name}, label %{name}.end")
        self.label(name)
        yield
        self.line(f"br label %{name}.end")
        self.label(f"{name}.end")

    def switch(self, value: str, cases: Mapping[int, Callable[[], object]]) -> None:
        """Execute the case of `value` (i64), which must be one of `cases`."""
        name = self.fresh("switch")
        table = " ".join(f"i64 {n}, label %{name}.{n}" for n in cases)
        self.line(f"switch i64 {value}, label %{name}.none [ {table} ]")
        for n, write in cases.items():
            self.label(f"{name}.{n}")
            write()
            self.line(f"br label %{name}.end")
        self.label(f"{name}.none")
        self.line("unreachable")
        self.label(f"{name}.end")


def mangled(kind: str) -> str:
    """A type as it appears in the name of an intrinsic: ``<8 x float>`` is ``v8f32``."""
    names = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}
    if kind.startswith("<"):
        lanes, element = kind[1:-1].split(" x ")
        return f"v{lanes}{names.get(element, element)}"
    return names.get(kind, kind)


def _known(*values: str) -> bool:
    return all(v.lstrip("-").isdigit() for v in values)


__all__ = ["Carried", "Emitter", "mangled"]
