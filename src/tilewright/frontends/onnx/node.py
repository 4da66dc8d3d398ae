"""One node of an ONNX graph: its inputs, its attributes, and the building of what it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dialects import graph as g
from ...dialects.graph.checks import division_message, index_message
from ...errors import CompileError
from ...ir.constant import Constant
from ...ir.core import Operation, Value
from ...ir.location import Location
from ...ir.symbolic import Dim, Expr
from ...ir.types import DType, i64
from .model import dtype_of
from .ops import Unsupported
from .values import Tensor, TensorList

if TYPE_CHECKING:
    from .importer import Importer

_WITHOUT_EFFECT = (
    "stash_type",
    "saturate",
    "storage_order",
    "momentum",
    "softmax_precision",
    "precision",
    "sorted",
    "qk_matmul_output_mode",
)
"""Attributes that an importer may leave unread: they concern outputs, training or rounding that do not arise here."""


class Node:
    """One ONNX node as an operator importer sees it: inputs, attributes, and building of graph operators."""

    def __init__(
        self,
        importer: Importer,
        proto: Any,
        inputs: list[Any],
        attributes: dict[str, Any],
        opset: int,
        location: Location,
    ) -> None:
        self.importer = importer
        self.proto = proto
        self.op_type: str = proto.op_type
        self.inputs = inputs
        self.attributes = attributes
        self.opset = opset
        self.location = location
        self.read: set[str] = set(_WITHOUT_EFFECT)
        self._names = {id(x): name for x, name in zip(inputs, proto.input, strict=False)}

    # -- Inputs ------------------------------------------------------------------------------------------------------------------

    def has(self, index: int) -> bool:
        """Whether an optional input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def called(self, index: int) -> str:
        """An input for messages, by its place and its name in the model, if it has one."""
        name = self._names.get(id(self.inputs[index]))
        return f"input {index} ('{name}')" if name else f"input {index}"

    def remedy(self, index: int) -> str:
        """Advice for messages about an input whose elements are not known."""
        name = self.importer.open_inputs.get(self.inputs[index])
        return f"; it is an input of the model: an example of '{name}' (args) is compiled in" if name else ""

    def is_data(self, index: int, counted: bool = False) -> bool:
        """Whether the run knows an input's elements. `counted`: where it knows their number only, an example is compiled in, if there is one."""
        found = self.tensor(index)
        if counted and found.content is None and not isinstance(found.type.size, int):
            self.importer.specialize(found)
        return found.content is None

    def tensor(self, index: int) -> Tensor:
        """A required input."""
        if not self.has(index):
            raise CompileError(f"node {self.location} ({self.op_type}) needs input {index}, which is missing")
        found = self.inputs[index]
        if not isinstance(found, Tensor):
            raise Unsupported(f"input {index} is {'a sequence' if isinstance(found, TensorList) else 'absent'}")
        return found

    def sequence(self, index: int) -> list[Tensor]:
        """A required input that is a sequence."""
        found = self.inputs[index]
        if not isinstance(found, TensorList):
            raise Unsupported(f"input {index} is not a sequence of known length")
        return found.items

    def value(self, index: int) -> Value:
        """A required input as an SSA value."""
        return self.tensor(index).value

    def optional(self, index: int) -> Value | None:
        """An optional input as an SSA value."""
        return self.inputs[index].value if self.has(index) else None

    def dims(self, index: int) -> list[Dim]:
        """The elements of an input that must be known when the model is compiled, up to symbols."""
        content = self.specialize(index).content
        if content is None:
            raise Unsupported(
                f"{self.called(index)} depends on data; it must follow from shapes and constants{self.remedy(index)}"
            )
        return list(content.reshape(-1))

    def sizes(self, index: int, lower: int | None = 0) -> list[Dim]:
        """The elements of an input, of known number, as sizes: those that depend on data are read in the run, and are at least `lower`."""
        found = self.tensor(index)
        if found.content is not None:
            return list(found.content.reshape(-1))
        count = found.type.size
        if not isinstance(count, int):
            raise Unsupported(f"{self.called(index)} has an unknown number of elements{self.remedy(index)}")
        return [self.importer.computed_size(self.element(found.value, k), self.op_type, lower) for k in range(count)]

    def element(self, x: Value, k: int) -> Value:
        """Element `k` of a tensor of known size, as a scalar."""
        flat = self.emit(g.Reshape(x, shape=(x.type.size,)))
        return self.emit(g.Gather(flat, self.constant(k, i64), axis=0))  # type: ignore[no-any-return]

    def numbers(self, index: int) -> list[int]:
        """The elements of an input that must be plain integers when the model is compiled."""
        found = self.dims(index)
        if any(isinstance(e, Expr) for e in found):
            raise Unsupported(f"{self.called(index)} depends on dynamic dimensions: {found}")
        return [e for e in found if isinstance(e, int)]

    def array(self, index: int) -> np.ndarray[Any, Any]:
        """The elements of an input that must be constant."""
        found = self.specialize(index).array
        if found is None:
            raise Unsupported(f"{self.called(index)} must be constant{self.remedy(index)}")
        return found

    def specialize(self, index: int) -> Tensor:
        """A required input whose elements are needed now: for an input of the model those of its example, if there is one."""
        found = self.tensor(index)
        if found.array is None and found.content is None:
            self.importer.specialize(found)
        return found

    # -- Attributes --------------------------------------------------------------------------------------------------------------

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as int, float, str, list, ``TensorProto`` or ``GraphProto``."""
        self.read.add(name)
        return self.attributes.get(name, default)

    def dtype_attr(self, name: str) -> DType:
        """An attribute that is a ``TensorProto.DataType``."""
        return dtype_of(self.attr(name), f"attribute '{name}' of node {self.location}")

    def tensor_attr(self, name: str) -> np.ndarray[Any, Any] | None:
        """A tensor attribute as an array."""
        proto = self.attr(name)
        return None if proto is None else self.importer.file.array(proto, f"attribute '{name}' of node {self.location}")

    def split_sizes(self, total: Dim) -> list[Dim]:
        """The lengths of the parts that a Split node makes of `total` elements."""
        if self.has(1):
            return self.sizes(1)
        parts = self.attr("num_outputs", len(self.proto.output))
        size = -((-total) // parts)
        last = total - size * (parts - 1)
        return [size] * (parts - 1) + [last]

    def irrelevant(self, *names: str) -> None:
        """Attributes that say nothing here, by the standard: other attributes choose a mode that does not look at them."""
        self.read.update(names)

    # -- Building ----------------------------------------------------------------------------------------------------------------

    def expect_index(self, indices: Value, size: Dim) -> None:
        """Have the run end where an element of `indices` is outside of a dimension of `size` elements; negative ones count from its end."""
        message = index_message(f"node {self.location}", size)
        self.importer.builder.insert(g.CheckIndex(indices, message=message, size=size))

    def expect_divisor(self, x: Value) -> None:
        """Have the run end where integers are divided by zero."""
        if x.type.dtype.is_integer:
            message = division_message(f"node {self.location}")
            self.importer.builder.insert(g.CheckDivisor(x, message=message))

    def emit(self, op: Operation) -> Any:
        """Insert an operator; its result (a tuple when there are several). Small constant results are computed at once."""
        return self.importer.emit(op)

    def constant(self, value: Any, dtype: DType) -> Value:
        """A constant of any shape."""
        return self.importer.emit(g.Constant(value=Constant(np.asarray(value, dtype.numpy))))  # type: ignore[no-any-return]

    def dims_value(self, dims: Sequence[Dim] | Dim, dtype: DType = i64) -> Value:
        """Symbolic dimensions as data: rank 1 for a sequence, else a scalar."""
        content = np.empty(len(dims) if isinstance(dims, Sequence) else (), object)
        content[...] = dims
        return self.importer.content_tensor(dtype, content).value

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs; an empty name is an output that nobody wants."""
        return list(self.proto.output)

    def wants(self, index: int) -> bool:
        """Whether an output is used."""
        return index < len(self.proto.output) and bool(self.proto.output[index])


def unheeded(node: Node, domain: str) -> list[str]:
    """Attributes that the node's importer has not read and that say something else than the operator does without them."""
    import onnx

    unread = sorted(set(node.attributes) - node.read)
    if not unread or not onnx.defs.has(node.op_type, node.opset, domain):
        return unread
    declared = onnx.defs.get_schema(node.op_type, node.opset, domain).attributes
    defaults = {
        name: value_of_attribute(declared[name].default_value)
        for name in unread
        if name in declared and declared[name].default_value.name
    }
    return [name for name in unread if name not in defaults or node.attributes[name] != defaults[name]]


_PYTHON_TYPES = {"INT": int, "FLOAT": float, "STRING": str, "INTS": int, "FLOATS": float, "STRINGS": str}


def check_attributes(node: Node, domain: str) -> None:
    """Attributes of standard operators have the types that ONNX gives them.

    Raises:
        CompileError: one has not.
    """
    import onnx

    if not node.attributes or not onnx.defs.has(node.op_type, node.opset, domain):
        return
    declared = onnx.defs.get_schema(node.op_type, node.opset, domain).attributes
    for name, value in node.attributes.items():
        wanted = declared[name].type.name if name in declared else ""
        element = _PYTHON_TYPES.get(wanted)
        if element is None or value is None:
            continue
        values = value if wanted.endswith("S") else [value]
        if not isinstance(values, list) or not all(isinstance(v, element) for v in values):
            raise CompileError(
                f"node {node.location} ({node.op_type}): the attribute '{name}' is {value!r:.60}; ONNX declares it as {wanted}"
            )


def resolved(node: Node) -> Any:
    """The node's protobuf with references to attributes of an enclosing function replaced by their values."""
    import onnx

    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    for k, x in enumerate(node.inputs[: len(proto.input)]):
        proto.input[k] = proto.input[k] if x is not None else ""
    del proto.attribute[:]
    proto.attribute.extend(
        onnx.helper.make_attribute(name, value) for name, value in node.attributes.items() if value is not None
    )
    return proto


def value_of_attribute(attribute: Any) -> Any:
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == onnx.AttributeProto.STRING:
        return value.decode("utf-8", "replace")
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [v.decode("utf-8", "replace") for v in value]
    return list(value) if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS) else value


def attributes_of(proto: Any, references: Mapping[str, Any]) -> dict[str, Any]:
    """A node's attributes by name; references to the enclosing function's attributes are looked up."""
    found = {}
    for a in proto.attribute:
        if a.ref_attr_name:
            if a.ref_attr_name in references:
                found[a.name] = references[a.ref_attr_name]
        else:
            found[a.name] = value_of_attribute(a)
    return found
