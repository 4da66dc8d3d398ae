"""One node of an ONNX graph as its importer sees it: inputs, attributes, and insertion of graph operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dialects import graph as g
from ...dialects.graph.checks import division_message, index_message
from ...errors import CompileError
from ...ir.builder import Builder
from ...ir.constant import Constant
from ...ir.core import Operation, Value
from ...ir.location import Location
from ...ir.symbolic import Dim, Expr
from ...ir.types import DType, i64
from ..unsupported import Unsupported
from .model import dtype_of
from .module_builder import ModuleBuilder
from .scope import Binding, Scope
from .values import Tensor, TensorList

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx

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
"""Attributes that an importer may leave unread: they concern outputs, training or rounding that do not occur
here.
"""


class Node:
    """One ONNX node as an operator's importer sees it. Inputs are numbered from 0."""

    def __init__(
        self,
        importer: ModuleBuilder,
        proto: onnx.NodeProto,
        inputs: list[Any],
        attributes: dict[str, Any],
        opset: int,
        location: Location,
        scope: Scope,
    ) -> None:
        self.importer = importer
        self.proto = proto
        self.op_type: str = proto.op_type
        self.inputs = inputs
        self.attributes = attributes
        self.opset = opset
        self.location = location
        self.scope = scope
        self.read: set[str] = set(_WITHOUT_EFFECT)
        self._names = {id(x): name for x, name in zip(inputs, proto.input, strict=False)}

    def has(self, index: int) -> bool:
        """Whether an optional input is present."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def describe(self, index: int) -> str:
        """Name an input for error messages: its number and, if it has one, its name in the model."""
        name = self._names.get(id(self.inputs[index]))
        return f"input {index} ('{name}')" if name else f"input {index}"

    def remedy(self, index: int) -> str:
        """Advice for error messages about an input whose elements are not known at compile time."""
        name = self.importer.inputs_without_example.get(self.inputs[index])
        return f"; it is an input of the model: an example of '{name}' (args) is compiled in" if name else ""

    def is_data(self, index: int, counted: bool = False) -> bool:
        """Whether the elements of an input are known only at run time.

        With `counted`, if the number of elements is unknown too, the example of the input is compiled in, if
        there is one.
        """
        x = self.tensor(index)
        if counted and x.content is None and not isinstance(x.type.size, int):
            self.importer.specialize(x)
        return x.content is None

    def tensor(self, index: int) -> Tensor:
        """Return a required input.

        Raises:
            CompileError: it is missing.
            Unsupported: it is a sequence or an absent optional.
        """
        if not self.has(index):
            raise CompileError(f"node {self.location} ({self.op_type}) needs input {index}, which is missing")
        x = self.inputs[index]
        if not isinstance(x, Tensor):
            raise Unsupported(f"input {index} is {'a sequence' if isinstance(x, TensorList) else 'absent'}")
        return x

    def sequence(self, index: int) -> list[Tensor]:
        """Return the tensors of a required input that is a sequence.

        Raises:
            Unsupported: it is none, or its length is unknown.
        """
        x = self.inputs[index]
        if not isinstance(x, TensorList):
            raise Unsupported(f"input {index} is not a sequence of known length")
        return x.items

    def value(self, index: int) -> Value:
        """Return a required input as an SSA value; raise as `tensor` does."""
        return self.tensor(index).value

    def optional(self, index: int) -> Value | None:
        """Return an optional input as an SSA value, or None if it is absent."""
        return self.inputs[index].value if self.has(index) else None

    def dims(self, index: int) -> list[Dim]:
        """Return the elements of an input that must be known at compile time, as numbers or symbolic
        expressions.

        Raises:
            Unsupported: they depend on data.
        """
        content = self.specialize(index).content
        if content is None:
            raise Unsupported(
                f"{self.describe(index)} depends on data; "
                f"it must follow from shapes and constants{self.remedy(index)}"
            )
        return list(content.reshape(-1))

    def sizes(self, index: int, lower: int | None = 0) -> list[Dim]:
        """Return the elements of an input as sizes. Elements that depend on data are read at run time and are
        at least `lower`.

        Raises:
            Unsupported: the number of elements is unknown.
        """
        x = self.tensor(index)
        if x.content is not None:
            return list(x.content.reshape(-1))
        count = x.type.size
        if not isinstance(count, int):
            raise Unsupported(f"{self.describe(index)} has an unknown number of elements{self.remedy(index)}")
        return [
            self.importer.computed_size(self.element(x.value, k), self.op_type, lower) for k in range(count)
        ]

    def element(self, x: Value, k: int) -> Value:
        """Return element `k` (in row-major order) of a tensor of known size, as a scalar."""
        flat = self.emit(g.Reshape(x, shape=(x.type.size,)))
        return self.emit(g.Gather(flat, self.constant(k, i64), axis=0))

    def numbers(self, index: int) -> list[int]:
        """Return the elements of an input that must be plain integers at compile time.

        Raises:
            Unsupported: they depend on data or on dynamic dimensions.
        """
        elements = self.dims(index)
        if any(isinstance(e, Expr) for e in elements):
            raise Unsupported(f"{self.describe(index)} depends on dynamic dimensions: {elements}")
        return [e for e in elements if isinstance(e, int)]

    def array(self, index: int) -> np.ndarray[Any, Any]:
        """Return the elements of an input that must be constant.

        Raises:
            Unsupported: it is not constant.
        """
        array = self.specialize(index).array
        if array is None:
            raise Unsupported(f"{self.describe(index)} must be constant{self.remedy(index)}")
        return array

    def specialize(self, index: int) -> Tensor:
        """Return a required input whose elements are needed at compile time.

        If it is an input of the model with an example, the example's value is compiled in.
        """
        x = self.tensor(index)
        if x.array is None and x.content is None:
            self.importer.specialize(x)
        return x

    def attr(self, name: str, default: object = None) -> Any:
        """Return an attribute as int, float, str, list, ``TensorProto`` or ``GraphProto``; `default` if it is
        missing.
        """
        self.read.add(name)
        return self.attributes.get(name, default)

    def dtype_attr(self, name: str) -> DType:
        """Return an attribute of type ``TensorProto.DataType`` as a data type."""
        return dtype_of(self.attr(name), f"attribute '{name}' of node {self.location}")

    def tensor_attr(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return a tensor attribute as an array, or None if it is missing."""
        proto = self.attr(name)
        return (
            None
            if proto is None
            else self.importer.file.array(proto, f"attribute '{name}' of node {self.location}")
        )

    def split_sizes(self, total: Dim) -> list[Dim]:
        """Return the sizes of the parts into which a Split node divides `total` elements."""
        if self.has(1):
            return self.sizes(1)
        parts = self.attr("num_outputs", len(self.proto.output))
        size = -((-total) // parts)
        last = total - size * (parts - 1)
        return [size] * (parts - 1) + [last]

    def irrelevant(self, *names: str) -> None:
        """Mark attributes as read that have no effect here by the standard, because other attributes choose a
        mode without them.
        """
        self.read.update(names)

    def expect_index(self, indices: Value, size: Dim) -> None:
        """Make the run fail if an element of `indices` is out of range for `size` elements; negative ones
        count from the end.
        """
        message = index_message(f"node {self.location}", size)
        self.importer.builder.insert(g.CheckIndex(indices, message=message, size=size))

    def expect_divisor(self, x: Value) -> None:
        """Make the run fail if `x`, a divisor, has a zero and is of integers."""
        if x.type.dtype.is_integer:
            message = division_message(f"node {self.location}")
            self.importer.builder.insert(g.CheckDivisor(x, message=message))

    def emit(self, op: Operation) -> Value:
        """Insert an operator with one result and return the result; see `ModuleBuilder.emit`."""
        return self.importer.emit(op)

    def emit_all(self, op: Operation) -> tuple[Value, ...]:
        """Insert an operator and return all its results."""
        return self.importer.emit_all(op)

    def subgraph(
        self,
        graph: onnx.GraphProto,
        builder: Builder | None,
        inputs: Sequence[Binding],
        steps: Sequence[Value | int | None] = (),
    ) -> list[Binding]:
        """Import a subgraph of this node; see `ModuleBuilder.subgraph`."""
        return self.importer.subgraph(graph, self.scope, builder, inputs, steps)

    def constant(self, value: npt.ArrayLike, dtype: DType) -> Value:
        """Return a constant of any shape."""
        return self.importer.emit(g.Constant(value=Constant(np.asarray(value, dtype.numpy))))

    def dims_value(self, dims: Sequence[Dim] | Dim, dtype: DType = i64) -> Value:
        """Return symbolic dimensions as a tensor: rank 1 for a sequence, else a scalar."""
        content = np.empty(len(dims) if isinstance(dims, Sequence) else (), object)
        content[...] = dims
        return self.importer.content_tensor(dtype, content).value

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs; an output with an empty name is unused."""
        return list(self.proto.output)

    def wants(self, index: int) -> bool:
        """Whether an output is used."""
        return index < len(self.proto.output) and bool(self.proto.output[index])


def unread_attributes(node: Node, domain: str) -> list[str]:
    """Return the attributes that the node's importer has not read and whose values differ from the operator's
    defaults.
    """
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
    """Check that the attributes of a standard operator have the types that ONNX declares.

    Raises:
        CompileError: an attribute has another type.
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
                f"node {node.location} ({node.op_type}): the attribute '{name}' is {value!r:.60}; "
                f"ONNX declares it as {wanted}"
            )


def missing_attribute(node: Node, domain: str) -> str | None:
    """Return the name of an attribute that a standard operator requires and the node lacks, or None."""
    import onnx

    if not onnx.defs.has(node.op_type, node.opset, domain):
        return None
    declared = onnx.defs.get_schema(node.op_type, node.opset, domain).attributes
    return next((n for n, a in declared.items() if a.required and node.attributes.get(n) is None), None)


def resolved(node: Node) -> Any:
    """Return the node's protobuf with references to attributes of an enclosing function replaced by their
    values.
    """
    import onnx

    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    for k, x in enumerate(node.inputs[: len(proto.input)]):
        proto.input[k] = proto.input[k] if x is not None else ""
    del proto.attribute[:]
    proto.attribute.extend(
        onnx.helper.make_attribute(name, value)
        for name, value in node.attributes.items()
        if value is not None
    )
    return proto


def value_of_attribute(attribute: onnx.AttributeProto) -> Any:
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == onnx.AttributeProto.STRING:
        return value.decode("utf-8", "replace")
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [v.decode("utf-8", "replace") for v in value]
    return list(value) if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS) else value


def attributes_of(proto: onnx.NodeProto, references: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's attributes by name; references to the enclosing function's attributes are resolved."""
    attributes = {}
    for a in proto.attribute:
        if a.ref_attr_name:
            if a.ref_attr_name in references:
                attributes[a.name] = references[a.ref_attr_name]
        else:
            attributes[a.name] = value_of_attribute(a)
    return attributes
