"""The printer's knowledge of a language: a table of names and forms, and the texts of its own functions.

Values in registers have one of seven types, called `Register`s: ``bool``, ``i32``, ``u32``, ``i64``, ``u64``,
``f32`` and ``f64``. Narrower integers are kept sign- or zero-extended in 32 bits, narrower floats as float32;
memory holds the real types (`Storage`). A function of the scalar dialect on a register type has a key such as
``exp.f32``. The table `Dialect.functions` maps the key to a function of the language; a key that is not there
stands for a function of the prelude, ``tw_exp_f32``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...ir.symbolic import Dim
from ...ir.types import DType, boolean, f64

Register = Literal["bool", "i32", "u32", "i64", "u64", "f32", "f64"]
BITS: dict[Register, int] = {"bool": 1, "i32": 32, "u32": 32, "i64": 64, "u64": 64, "f32": 32, "f64": 64}
UNSIGNED: dict[Register, Register] = {"i32": "u32", "u32": "u32", "i64": "u64", "u64": "u64"}


@dataclass(frozen=True)
class Storage:
    """How an element lies in memory: its type, and the forms that convert it to a register and back, with
    ``{}`` for the element or the value.
    """

    type: str
    load: str = "{}"
    store: str = "{}"
    feature: str = ""
    """The optional feature of the language that the type needs, if any."""


@dataclass(frozen=True)
class Dialect:
    """A language of the C family as the printer sees it. Forms are templates for `str.format`."""

    name: str
    """The name of the language, for people."""
    comment: str
    """The first line of a module."""
    types: Mapping[Register, str]
    """Types of registers; the language lacks those that are missing."""
    storage: Mapping[DType, Storage]
    """Types of elements; the language lacks those that are missing."""
    functions: Mapping[str, str]
    """Functions of the language by key (``exp.f32``)."""
    prelude: Mapping[str, str]
    """Definitions of ``tw_*`` functions of its own. They come before those of `prelude.SHARED`."""
    entry: str
    """The name of the entry point of the kernel ``{name}``."""
    signature: str
    """The text between the declarations and the body: ``{threads}``, ``{entry}``, ``{parameters}``."""
    buffer: str
    """A buffer, as a parameter or, where `arrays` holds, as a declaration: ``{const}``, ``{type}``,
    ``{restrict}``, ``{name}``, ``{number}``, ``{access}``.
    """
    dim: str
    """A parameter that is a size, or an element offset: ``{name}``."""
    block: tuple[str, str, str]
    """The number of the block in each dimension, as a register ``i32``."""
    thread: str
    """The number of the thread, as a register ``i32``."""
    barrier: str
    """The statement of a barrier for shared and, unless there is a `global_barrier`, global memory."""
    shared: str
    """A declaration in shared memory: ``{type}``, ``{name}``, ``{size}``."""
    function: str = "{result} {name}({parameters}) {{"
    """The head of a function's definition."""
    parameter: str = "{type} {name}"
    """A parameter of a function."""
    global_barrier: str = ""
    """The text after the statement of a barrier where threads read what others wrote to global memory."""
    exact: str = ""
    """The qualifier of variables whose arithmetic must not be rearranged; floats of the prelude get it."""
    readonly: str = "const "
    """``{const}`` of a buffer that is not written."""
    shuffle_bits: int = 64
    """The largest width of values that a shuffle takes."""
    opaque: bool = False
    """Whether compilers rearrange sums, so that ``tw_opaque_f32`` must hide those whose rounding matters."""
    slow_conversions: bool = False
    """Whether instructions that convert integers to floats are slower than an addition and a logical one."""
    fused: bool = True
    """Whether ``fma`` is a function with one rounding."""
    instructions: tuple[str, Mapping[str, str]] = ("", {})
    """A condition of the preprocessor, and the definitions that replace those of the prelude where it holds.
    """
    extra_parameters: tuple[str, ...] = ()
    """Parameters after the buffers and sizes."""
    params: str = ""
    """The declaration of the buffer of sizes and offsets, as a parameter or a declaration: ``{number}``.
    Without it, they are parameters.
    """
    pushed: tuple[int, str] = (0, "")
    """The most sizes and offsets that a launch passes without a buffer, and their declaration:
    ``{count}``.
    """
    param: str = ""
    """The element ``{number}`` of that buffer, as a register ``i32``."""
    wide_param: str = ""
    """The same as a register ``i64``, where `wide` holds."""
    const: str = "const {type} {name} = {value};"
    """The definition of a value."""
    variable: str = "{type} {name} = {value};"
    """The definition of a variable."""
    array: str = "{type} {name}[{size}];"
    """The declaration of an array of a thread."""
    unset: str = ""
    """The declaration of a variable without a value: ``{type}``, ``{name}``."""
    zeros: str = ""
    """The text that sets the elements of such an array to 0, before the semicolon. Where the language has it,
    reading an element that was not written is undefined behaviour, which compilers use.
    """
    certain_barriers: bool = False
    """Whether no condition may stand around a barrier, and loops with barriers test theirs at the end: PoCL
    (3.1) leaves out other statements otherwise. Each statement between barriers has the condition instead.
    """
    cast: str = "({type})({value})"
    select: str = "({condition} ? {a} : {b})"
    wraps: bool = False
    """Whether signed integer arithmetic wraps; else it is done on unsigned integers."""
    suffixes: Mapping[Register, str] = field(default_factory=dict)
    """Suffixes of literals."""
    bound: str = "{value}"
    """An index into an array."""
    arrays: bool = False
    """Whether buffers are arrays at module level, so that offsets are added to indices."""
    offsets: bool = True
    """Whether every buffer has an element offset."""
    pointer: str = ""
    """The type of a pointer to global memory, for a buffer with an offset: ``{const}``, ``{type}``,
    ``{restrict}``.
    """
    vectors: tuple[str, str, str] = ("", "", "")
    """Forms for accesses of several elements: the type of a pointer to global memory (``{const}``,
    ``{type}``), of one to an array of a thread (``{type}``), and the declaration of such an array, aligned to
    16 bytes (``{type}``, ``{name}``, ``{size}``). Empty: each element is accessed alone. The prelude has the
    types ``tw_4``, ``tw_8`` and ``tw_16`` of so many bytes, which may be the memory of any other types.
    """
    vector: str = ""
    """The type of four elements, ``{type}``, where buffers of vectors are arrays of it, and not pointers to
    such in between.
    """
    shared_vector: str = ""
    """The type of a pointer to shared memory for accesses of several elements: ``{const}``, ``{type}``.
    Empty: each element of shared memory is accessed alone.
    """
    matrix_word: str = ""
    """The type of a pointer to the words of a packed factor of a matrix instruction."""
    address: str = ""
    """A pointer as a number: ``{pointer}``."""
    shared_at_top: Literal["kernel", "module"] = "kernel"
    """Where shared memory is declared."""
    unroll: str = ""
    """The line before a loop to unroll."""
    explicit: bool = False
    """Whether the language has compilers that do little: loops to unroll are written out, so that elements
    of a thread's arrays become variables, and parts of addresses have values of their own.
    """
    restrict: str = ""
    shuffle: str = ""
    """A shuffle among the threads of a warp: ``{value}``, ``{distance}``, ``{mask}``. Empty: there is none.
    """
    shuffle_threads: int = 0
    """The threads that a shuffle certainly joins: a power of two. 0: those of a warp, where
    `TargetInfo.gpu` has shuffles.
    """
    wide: bool = True
    """Whether index expressions may have 64 bits."""
    inline_literals: bool = True
    """Whether constants are written where they are used. A language that evaluates constant expressions when
    it compiles, and refuses those that overflow, needs them in values of their own.
    """
    shared_block: str = ""
    """The declaration of shared memory whose size the launch gives, ``tw_memory``."""
    features: Mapping[str, str] = field(default_factory=dict)
    """The line that turns on a feature of the language, by the feature's name."""
    head: str = ""
    """Lines after those of the features."""
    packed: Mapping[DType, Storage] = field(default_factory=dict)
    """Elements of buffers of which several make a word, where the language has no type of their size: the
    forms convert the element's bits, as a register ``u32``, to a register and back. `storage` tells how such
    elements lie in other memory.
    """
    words: str = ""
    """The type of the words of a buffer of such elements that a kernel writes."""
    word_load: str = ""
    """The value of a word of such a buffer: ``{word}``."""
    word_store: str = ""
    """The statement that replaces a part of it, while other threads replace other parts: ``{word}``, the
    ``{bits}`` at their place, and the ``{mask}`` of them.
    """
    words_store: str = ""
    """The statement that replaces a whole word: ``{word}``, ``{bits}``."""
    static_shared: int | None = None
    """The most bytes of shared memory that may be declared; a kernel that needs more gets one block of memory
    at the launch. None where the size is only limited by the device.
    """

    def cast_to(self, register: Register, value: str) -> str:
        """`value` converted as the language does."""
        return self.cast.format(type=self.types[register], value=value)


@dataclass(frozen=True)
class DeviceKernel:
    """A printed kernel."""

    name: str
    """The name of the kernel in the module."""
    entry: str
    """The name of its entry point in `text`."""
    text: str
    """The kernel alone, without the functions that it uses; see `printer.module_text`."""
    grid: tuple[Dim, Dim, Dim]
    """Blocks in the dimensions x, y and z. A launch of an empty grid does nothing."""
    threads: int
    """Threads of a block."""
    shared_bytes: int
    """Bytes of shared memory of a block."""
    dynamic_bytes: int
    """Bytes of shared memory that the launch must give; the text declares the rest."""
    buffers: int
    """The number of buffers."""
    bindings: tuple[int, ...]
    """The number of each buffer's parameter. Buffers that share one begin at offsets of their own."""
    written: tuple[bool, ...]
    """The parameters that the kernel writes."""
    dims: tuple[str, ...]
    """The names of the sizes, in order."""
    uses: frozenset[str]
    """The functions of the prelude and the features of the language that the text uses."""
    matrix: bool = False
    """Whether matrix instructions do its arithmetic."""
    largest: Dim = 0
    """Bytes of the largest buffer; 0 if every device has room for it."""
    arguments: None = None
    """As `targets.llvm.host_calls.DeviceKernel`: buffers, then sizes."""
    module: int = 0
    """The number of the module of device code."""

    @property
    def launch(self) -> tuple[Dim, ...]:
        """As `targets.llvm.host_calls.DeviceKernel`."""
        return (*self.grid, self.threads, 1, 1, self.dynamic_bytes, self.largest)


def type_in_register(dtype: DType, wide: bool = True) -> Register:
    """The register type of a value; without `wide`, 64-bit integers are narrowed."""
    if dtype is boolean:
        return "bool"
    if dtype.is_float:
        return "f64" if dtype is f64 else "f32"
    name: Register = "i32" if dtype.is_signed else "u32"
    if dtype.bits == 64 and wide:
        name = "i64" if dtype.is_signed else "u64"
    return name


def widened(dialect: Dialect, call: Callable[[str, Register], str], value: str) -> str:
    """A number of the register type ``i32`` as one of ``i64``. `call` returns the name of a function."""
    if "tw_i64_of_i32" in dialect.prelude:
        return f"{call('i64_of', 'i32')}({value})"
    return dialect.cast_to("i64", value)


__all__ = [
    "BITS",
    "UNSIGNED",
    "DeviceKernel",
    "Dialect",
    "Register",
    "Storage",
    "type_in_register",
    "widened",
]
