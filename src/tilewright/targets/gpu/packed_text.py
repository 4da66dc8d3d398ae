"""Elements that are parts of words as text, for languages without types of their size (`Dialect.packed`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...ir.core import Value
from ...ir.types import DType
from .writer import Writer

WORD = 4
"""Bytes of a word."""


@dataclass(frozen=True)
class Part:
    """An element that is a part of a word."""

    word: str
    place: str
    """The number of the element's lowest bit, a register ``u32``."""
    mask: int
    """The bits of an element, at the lowest place."""
    load: str
    """The form that gives the value of the word."""

    def bits(self) -> str:
        """The bits of the element."""
        return f"(({self.load.format(word=self.word)} >> {self.place}) & {self.mask}u)"

    def replaced(self, form: str, bits: str) -> str:
        """The statement, by `form`, that gives the element other bits."""
        return form.format(
            word=self.word, bits=f"({bits} << {self.place})", mask=f"({self.mask}u << {self.place})"
        )


class PackedText(Writer):
    """Prints accesses to the parts of words, and to whole words."""

    def is_packed(self, buffer: Value) -> bool:
        """Whether an element of a buffer is a part of a word."""
        return buffer in self.buffers and buffer.type.dtype in self.dialect.packed

    def fills_words(self, buffer: Value, count: object) -> bool:
        """Whether so many elements of a buffer are whole words."""
        size = buffer.type.dtype.itemsize
        return self.is_packed(buffer) and isinstance(count, int) and count * size % WORD == 0

    def used(self, text: str) -> str:
        """`text`, whose functions the kernel uses from now on."""
        self.uses |= set(re.findall(r"\btw_\w+(?=\()", text))
        return text

    def at(self, element: str) -> tuple[str, str]:
        """The name of a buffer and that of an element's number in it, from the text of the element."""
        name, _, index = element.partition("[")
        number = self.fresh("at")
        self.emit(
            self.dialect.const.format(
                type=self.dialect.types["i32"], name=number, value=index.removesuffix("]")
            )
        )
        return name, number

    def part(self, buffer: Value, name: str, at: str) -> Part:
        """The part of a word that is the element with the number `at`; emits its place in the word."""
        size, place = buffer.type.dtype.itemsize, self.fresh("place")
        value = f"{self.own(f'tw_place_{8 * size}')}({at})"
        self.emit(self.dialect.const.format(type=self.dialect.types["u32"], name=place, value=value))
        return Part(f"{name}[{at} >> {2 // size}u]", place, 2 ** (8 * size) - 1, self.word_load(buffer))

    def word_load(self, buffer: Value) -> str:
        """The form that gives the value of a word."""
        return self.dialect.word_load if buffer in self.changed else "{word}"

    def unpacked(self, dtype: DType, bits: str) -> str:
        """The register value of an element with these bits."""
        value = self.used(self.dialect.packed[dtype].load.format(bits))
        return self.scalars.wrap(value, dtype) if dtype.is_sub_byte else value

    def packed(self, dtype: DType, value: str) -> str:
        """The bits of the element that holds a register value."""
        return self.used(self.dialect.packed[dtype].store.format(value))

    def load_words(self, buffer: Value, name: str, at: str, lanes: str, count: int) -> None:
        """Load neighbouring elements to the array `lanes`, in words if the first begins one."""
        dtype, each = buffer.type.dtype, WORD // buffer.type.dtype.itemsize
        with self.braces(f"if (({at} & {each - 1}) == 0)"):
            for k in range(0, count, each):
                word = self.fresh("word")
                value = self.word_load(buffer).format(word=f"{name}[({at} >> {each // 2}u) + {k // each}]")
                self.emit(self.dialect.const.format(type=self.dialect.types["u32"], name=word, value=value))
                for j in range(each):
                    bits = f"(({word} >> {j * 32 // each}u) & {2 ** (32 // each) - 1}u)"
                    self.emit(f"{lanes}[{k + j}] = {self.kept(dtype, self.unpacked(dtype, bits))};")
        with self.braces("else"), self.each(count) as lane:
            value = self.unpacked(dtype, self.part(buffer, name, f"({at} + {lane})").bits())
            self.emit(f"{lanes}[{lane}] = {self.kept(dtype, value)};")

    def store_words(self, buffer: Value, name: str, at: str, lanes: str, count: int) -> None:
        """Store the array `lanes` to neighbouring elements, in words if the first begins one."""
        dtype, each = buffer.type.dtype, WORD // buffer.type.dtype.itemsize
        loaded = self.storage(dtype, "").load
        with self.braces(f"if (({at} & {each - 1}) == 0)"):
            for k in range(0, count, each):
                values = [self.packed(dtype, loaded.format(f"{lanes}[{k + j}]")) for j in range(each)]
                bits = " | ".join(f"({value} << {j * 32 // each}u)" for j, value in enumerate(values))
                word = f"{name}[({at} >> {each // 2}u) + {k // each}]"
                self.emit(self.dialect.words_store.format(word=word, bits=bits))
        with self.braces("else"), self.each(count) as lane:
            value = self.packed(dtype, loaded.format(f"{lanes}[{lane}]"))
            self.emit(self.part(buffer, name, f"({at} + {lane})").replaced(self.dialect.word_store, value))

    @contextmanager
    def each(self, count: int) -> Iterator[str]:
        """A loop; yields its variable."""
        k = self.fresh("k")
        start = self.dialect.variable.format(type=self.dialect.types["i32"], name=k, value="0")
        with self.braces(f"for ({start} {k} < {count}; {k}++)"):
            yield k

    def kept(self, dtype: DType, value: str) -> str:
        """A register value in an array of a thread through which words go. It may have more bits than its
        type, since the number is rounded when it becomes a part of a word.
        """
        form = self.storage(dtype, "").store
        return value if form.startswith("tw_round_") else form.format(value)


__all__ = ["Part", "PackedText"]
