"""The valid model files and the ways in which `mutated_files` damages them. A mutation depends only on its
number.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

from . import stablehlo_mutations as stablehlo

HEADER = '<ir_version: 10, opset_import: ["": 18, "local": 1]>'
TEXTS = {
    "mlp": (
        " main (float[n, 8] x) => (float[n, 4] y) <float[8, 4] w, float[4] b> "
        "{ h = MatMul(x, w) s = Add(h, b) r = Relu(s) y = Softmax<axis = -1>(r) }"
    ),
    "conv": " main (float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) <float[4, 3, 3, 3] w, float[4] b> "
    "{ c = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c) }",
    "shapes": " main (float[n, 6] x) => (float[m, 2, 3] y, float[k] z) <int64[3] t, int64[1] one> "
    "{ s = Shape(x) q = Slice(s, one, two) r = Concat<axis = 0>(q, t) u = ConstantOfShape(one) e = Expand(u, s) v = Add(x, e) "  # noqa: E501
    "y = Reshape(v, t) f = Flatten<axis = 0>(v) z = Squeeze(f, zero) }",
    "branch": " main (float[4] x, bool c) => (float[4] y) { y = If(c) <then_branch = a () => (float[4] p) { p = Relu(x) }, "  # noqa: E501
    "else_branch = b () => (float[4] q) { h = Neg(x) q = Exp(h) }> }",
    "function": " main (float[4, 4] x) => (float[4, 4] y) { h = local.twice(x) y = local.twice(h) } "
    '<domain: "local", opset_import: ["": 18, "local": 1]> twice (a) => (c) { b = Relu(a) c = Add(b, b) }',
    "gather": " main (int64[n] i) => (float[n, 4] y) <float[16, 4] w> { e = Gather(w, i) t = Transpose<perm = [1, 0]>(e) u = Transpose<perm = [1, 0]>(t) "  # noqa: E501
    "m = ReduceMean<keepdims = 1>(u) y = Sub(u, m) }",
}
HOSTILE = (-1, 0, -(2**31), 2**31, 2**40, 2**62, -(2**63), 2**63 - 1, 7)


STABLEHLO = 500
"""The number of the first mutation of StableHLO; smaller numbers are ONNX and ``.pt2`` files."""


@dataclass(frozen=True)
class Mutation:
    number: int
    base: str
    kind: str

    @staticmethod
    def numbered(number: int) -> Mutation:
        """The mutation of a number. The first numbers are the constructed files, once each; the others apply
        the random kinds of damage to each base file in turn. Numbers below `STABLEHLO` are for ONNX and
        ``.pt2`` files, the others for StableHLO.
        """
        if number >= STABLEHLO:
            known = [("stablehlo", kind) for kind in stablehlo.BUILT]
            others = [
                (f"{base}.mlir", kind) for kind in (*stablehlo.TEXT, *BYTES) for base in stablehlo.PROGRAMS
            ]
            others += [(f"{base} bytecode", kind) for kind in BYTES for base in stablehlo.PROGRAMS]
            number_there = number - STABLEHLO
            at = number_there - len(known)
            base, kind = known[number_there] if at < 0 else others[at % len(others)]
            return Mutation(number, base, kind)
        built = [*(("built", kind) for kind in BUILT), *(("mlp.pt2", kind) for kind in ATTACKS)]
        general = [(base, kind) for kind in GENERAL_ONNX for base in TEXTS]
        general += [(base, kind) for kind in GENERAL_PT2 for base in PROGRAMS]
        base, kind = built[number] if number < len(built) else general[(number - len(built)) % len(general)]
        return Mutation(number, base, kind)


def make(mutation: Mutation, folder: Path, outside: Path) -> Path:
    """Write the mutated file and the files it refers to into `folder`. The folder `outside` holds
    ``secret.bin``, which must not be read; code in the file would write ``canary`` there.
    """
    rng = random.Random(mutation.number)
    if mutation.number >= STABLEHLO:
        path = folder / "model.mlir"
        path.write_bytes(_stablehlo(rng, mutation))
        return path
    path = folder / ("model.pt2" if mutation.base in PROGRAMS else "model.onnx")
    if mutation.kind in BUILT:
        proto = BUILT[mutation.kind](rng, folder, outside)
        path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
    elif mutation.base in TEXTS:
        path.write_bytes(GENERAL_ONNX[mutation.kind](rng, base_model(mutation.base)))
    elif mutation.kind in ATTACKS:
        members = dict(unpacked(mutation.base))
        ATTACKS[mutation.kind](members, str(outside / "canary"))
        path.write_bytes(packed(members))
    else:
        path.write_bytes(GENERAL_PT2[mutation.kind](rng, program(mutation.base)))
    return path


def _stablehlo(rng: random.Random, mutation: Mutation) -> bytes:
    if mutation.base == "stablehlo":
        return stablehlo.BUILT[mutation.kind]().encode()
    name = mutation.base.partition(".")[0].partition(" ")[0]
    if mutation.kind in stablehlo.TEXT:
        return stablehlo.TEXT[mutation.kind](rng, stablehlo.PROGRAMS[name]).encode()
    data = stablehlo.PROGRAMS[name].encode() if mutation.base.endswith(".mlir") else stablehlo.bytecode(name)
    return BYTES[mutation.kind](rng, data)


# -- ONNX ----------------------------------------------------------------------------------------------------


def base_model(name: str) -> Any:
    """A small valid model."""
    model = onnx.parser.parse_model(HEADER + TEXTS[name])
    numbers = np.random.default_rng(0)
    for info in model.graph.value_info:  # the text declares these constants without values
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        known = {"t": np.array([-1, 2, 3]), "one": np.array([1])}.get(info.name)
        value = known if known is not None else numbers.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, info.name))
    del model.graph.value_info[:]
    if name == "shapes":
        model.graph.initializer.extend(
            [numpy_helper.from_array(np.array([2]), "two"), numpy_helper.from_array(np.array([0]), "zero")]
        )
    return model


def _truncated(rng: random.Random, model: Any) -> bytes:
    data = _bytes(model)
    return data[: rng.randrange(len(data))]


def _bits(rng: random.Random, model: Any) -> bytes:
    data = bytearray(_bytes(model))
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _spliced(rng: random.Random, model: Any) -> bytes:
    data = _bytes(model)
    a, b = sorted(rng.randrange(len(data)) for _ in range(2))
    return data[:a] + data[b:] if rng.random() < 0.5 else data[:b] + data[a:]


def _bytes(model: Any) -> bytes:
    return model if isinstance(model, bytes) else model.SerializeToString()


def _messages(message: Any) -> list[Any]:
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None and hasattr(value, "ListFields"):
            found += _messages(value)
        elif field.message_type is not None:
            for item in value:
                found += _messages(item)
    return found


def _field(rng: random.Random, model: Any) -> bytes:
    """Change one to three fields of any messages."""
    strings = sorted({v for m in _messages(model) for f, v in m.ListFields() if isinstance(v, str)})
    for _ in range(rng.randint(1, 3)):
        message = rng.choice([m for m in _messages(model) if m.ListFields()])
        field, value = rng.choice(message.ListFields())
        name = field.name
        if isinstance(value, (bool, int)):
            _assign(message, name, rng.choice(HOSTILE))
        elif isinstance(value, float):
            setattr(message, name, rng.choice((float("nan"), float("inf"), -1.0, 1e38)))
        elif isinstance(value, str):
            setattr(message, name, rng.choice([*strings, "", "/", "../x"]))
        elif isinstance(value, bytes):
            setattr(message, name, value[: rng.randrange(len(value) + 1)])
        elif hasattr(value, "ListFields"):
            message.ClearField(name)
        elif value:
            _repeated(rng, value, strings)
    return bytes(model.SerializeToString())


def _repeated(rng: random.Random, value: Any, strings: list[str]) -> None:
    k = rng.randrange(len(value))
    action = rng.choice(("drop", "double", "change"))
    if action == "drop":
        del value[k]
    elif hasattr(value[k], "ListFields"):
        value.add().CopyFrom(value[k])
    elif action == "double":
        value.append(value[k])
    elif isinstance(value[k], int):
        value[k] = rng.choice((-1, 0, 7, 2**31 - 1))
        with contextlib.suppress(ValueError):  # the number may not fit the field's type
            value[k] = rng.choice(HOSTILE)
    elif isinstance(value[k], str):
        value[k] = rng.choice([*strings, ""])


def _assign(message: Any, name: str, value: int) -> None:
    try:
        setattr(message, name, value)
    except ValueError:  # the number does not fit the field's type
        setattr(message, name, 7)


def _order(rng: random.Random, model: Any) -> bytes:
    """Shuffle the nodes, so that some values are used before their definition."""
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return bytes(model.SerializeToString())


def _cycle(rng: random.Random, model: Any) -> bytes:
    node = rng.choice(model.graph.node)
    if node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(model.graph.node).output[0]
    return bytes(model.SerializeToString())


def _duplicate(rng: random.Random, model: Any) -> bytes:
    kinds = [r for r in (model.graph.node, model.graph.initializer, model.graph.input, model.functions) if r]
    chosen = rng.choice(kinds)
    chosen.add().CopyFrom(rng.choice(chosen))
    return bytes(model.SerializeToString())


def _sizes(rng: random.Random, model: Any) -> bytes:
    """Set dimensions of tensors and inputs, or elements of small integer tensors, to hostile values."""
    for _ in range(rng.randint(1, 3)):
        message = rng.choice(
            [m for m in _messages(model) if isinstance(m, (TensorProto, onnx.TensorShapeProto.Dimension))]
        )
        if not isinstance(message, TensorProto):
            message.dim_value = rng.choice(HOSTILE)
        elif message.data_type == TensorProto.INT64 and rng.random() < 0.6:
            array = numpy_helper.to_array(message).copy()
            array.reshape(-1)[rng.randrange(array.size)] = rng.choice(HOSTILE)
            message.CopyFrom(numpy_helper.from_array(array, message.name))
        elif message.dims:
            message.dims[rng.randrange(len(message.dims))] = rng.choice(HOSTILE)
    return bytes(model.SerializeToString())


def _attributes(rng: random.Random, model: Any) -> bytes:
    """Give a node an attribute of a wrong type, or an additional attribute."""
    nodes = [m for m in _messages(model) if isinstance(m, onnx.NodeProto)]
    node = rng.choice(nodes)
    name = rng.choice([a.name for a in node.attribute] or ["axis"])
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    values: list[Any] = [
        -99,
        2**62,
        "text",
        [1.5],
        [2**62, 2**62, 2**62],
        [-1],
        3.5,
        ["a"],
        numpy_helper.from_array(np.zeros(2)),
    ]
    node.attribute.append(helper.make_attribute(name, rng.choice(values)))
    return bytes(model.SerializeToString())


BYTES: dict[str, Callable[[random.Random, Any], bytes]] = {
    "truncated": _truncated,
    "bits": _bits,
    "spliced": _spliced,
}
GENERAL_ONNX: dict[str, Callable[[random.Random, Any], bytes]] = {
    **BYTES,
    "field": _field,
    "order": _order,
    "cycle": _cycle,
    "duplicate": _duplicate,
    "sizes": _sizes,
    "attributes": _attributes,
}


def _model(
    nodes: list[Any], initializers: Any = (), functions: Any = (), sparse: Any = (), shape: Any = (4,)
) -> Any:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", 1, shape)],
        [value("y", 1, None)],
        initializers,
        sparse_initializer=list(sparse),
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def _function(name: str, calls: list[str]) -> Any:
    names = ["a", *(f"v{k}" for k in range(len(calls) - 1)), "b"]
    nodes = [helper.make_node(c, [names[k]], [names[k + 1]], domain="f") for k, c in enumerate(calls)]
    return helper.make_function("f", name, ["a"], ["b"], nodes, [helper.make_opsetid("f", 1)])


def _calling(functions: list[Any]) -> Any:
    return _model([helper.make_node(functions[0].name, ["x"], ["y"], domain="f")], functions=functions)


def _self_call(rng: random.Random, folder: Path, outside: Path) -> Any:
    return _calling([_function("f0", ["f0"])])


def _mutual_calls(rng: random.Random, folder: Path, outside: Path) -> Any:
    return _calling([_function("f0", ["f1"]), _function("f1", ["f2"]), _function("f2", ["f0"])])


def _deep_calls(rng: random.Random, folder: Path, outside: Path) -> Any:
    return _calling([*(_function(f"f{k}", [f"f{k + 1}"]) for k in range(3000)), _function("f3000", ["f0"])])


def _many_calls(rng: random.Random, folder: Path, outside: Path) -> Any:
    """A chain of functions, each of which calls the next ten times: expansion would take 10 to the 40th
    calls.
    """
    return _calling([_function(f"f{k}", [f"f{k + 1}"] * 10) for k in range(40)])


def _standard_name(rng: random.Random, folder: Path, outside: Path) -> Any:
    """A function with the name of the operator Sub, whose body uses an operator that the standard defines in
    terms of Sub: expansion would never end.
    """
    body = [
        helper.make_node("MeanVarianceNormalization", ["a"], ["c"]),
        helper.make_node("Sub", ["c", "b"], ["d"]),
    ]
    function = helper.make_function("", "Sub", ["a", "b"], ["d"], body, [helper.make_opsetid("", 18)])
    return _model([helper.make_node("Sub", ["x", "x"], ["y"])], functions=[function], shape=(1, 2, 3, 4))


def _deep_branches(rng: random.Random, folder: Path, outside: Path) -> Any:
    """Branches nested up to 5000 deep, beyond protobuf's limit. The bytes are written field by field, because
    protobuf's library refuses to write them.
    """

    def wrapped(tag: int, data: bytes) -> bytes:
        return bytes([tag]) + _varint(len(data)) + data

    node = helper.make_node("Identity", ["x"], ["y"]).SerializeToString()
    for _ in range(rng.choice((20, 40, 500, 5000))):
        graph = wrapped(0x0A, node) + wrapped(0x12, b"g") + wrapped(0x62, wrapped(0x0A, b"y"))
        branches = b""
        for name in (b"then_branch", b"else_branch"):
            small = helper.make_graph(
                [helper.make_node("Identity", ["x"], ["y"])], "g", [], [onnx.ValueInfoProto(name="y")]
            )
            body = graph if name == b"then_branch" else small.SerializeToString()
            branches += wrapped(0x2A, wrapped(0x0A, name) + b"\xa0\x01\x05" + wrapped(0x32, body))
        node = wrapped(0x0A, b"c") + wrapped(0x12, b"y") + wrapped(0x22, b"If") + branches
    model = _model([])
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    head = onnx.ModelProto()
    head.CopyFrom(model)
    head.ClearField("graph")
    return head.SerializeToString() + wrapped(0x3A, model.graph.SerializeToString() + wrapped(0x0A, node))


def _varint(n: int) -> bytes:
    out = bytearray()
    while n >= 128:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def _external(**fields: str) -> Callable[[random.Random, Path, Path], Any]:
    def build(rng: random.Random, folder: Path, outside: Path) -> Any:
        (folder / "weights.bin").write_bytes(bytes(4096))
        (folder / "link.bin").symlink_to(outside / "secret.bin")
        (folder / "away").symlink_to(outside)
        (folder / "loop").symlink_to(folder / "loop")
        os.mkfifo(folder / "pipe")
        w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
        for key, value in fields.items():
            w.external_data.add(key=key, value=value.format(outside=outside))
        if "dims" in fields:
            w.dims[0] = int(fields["dims"])
        return _model([helper.make_node("Add", ["x", "w"], ["y"])], [w])

    return build


def _sparse(dims: list[int], index: int) -> Callable[[random.Random, Path, Path], Any]:
    def build(rng: random.Random, folder: Path, outside: Path) -> Any:
        values = numpy_helper.from_array(np.ones(1, np.float32), "w")
        indices = helper.make_tensor("i", TensorProto.INT64, [1], [index])
        sparse = onnx.SparseTensorProto(values=values, indices=indices, dims=dims)
        return _model([helper.make_node("Add", ["x", "w"], ["y"])], sparse=[sparse])

    return build


def _operator(op: str, *values: Any, **attributes: Any) -> Callable[[random.Random, Path, Path], Any]:
    """A model of one operator on the input `x` (None) and constants, with a result larger than any memory."""

    def build(rng: random.Random, folder: Path, outside: Path) -> Any:
        names = ["x" if v is None else f"v{k}" for k, v in enumerate(values)]
        constants = [numpy_helper.from_array(v, f"v{k}") for k, v in enumerate(values) if v is not None]
        return _model(
            [helper.make_node(op, names, ["t"], **attributes), helper.make_node("Identity", ["t"], ["y"])],
            constants,
        )

    return build


def _ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


_FLOAT = np.array(0.5, np.float32)
BUILT: dict[str, Callable[[random.Random, Path, Path], Any]] = {
    "self call": _self_call,
    "mutual calls": _mutual_calls,
    "deep calls": _deep_calls,
    "many calls": _many_calls,
    "standard name": _standard_name,
    "deep branches": _deep_branches,
    "external absolute": _external(location="{outside}/secret.bin"),
    "external above": _external(location="../outside/secret.bin"),
    "external inside above": _external(location="a/../../outside/secret.bin"),
    "external link": _external(location="link.bin"),
    "external linked folder": _external(location="away/secret.bin"),
    "external loop": _external(location="loop"),
    "external pipe": _external(location="pipe"),
    "external folder": _external(location="."),
    "external device": _external(location="/dev/zero"),
    "external missing": _external(location="nothing.bin"),
    "external unnamed": _external(),
    "external long": _external(location="x" * 5000),
    "external zero": _external(location="weights.bin\0x"),
    "external offset": _external(location="weights.bin", offset=str(2**62)),
    "external negative offset": _external(location="weights.bin", offset="-16"),
    "external negative length": _external(location="weights.bin", offset="32", length="-16"),
    "external text": _external(location="weights.bin", offset="text"),
    "external short": _external(location="weights.bin", length="8"),
    "external terabytes": _external(location="weights.bin", dims=str(2**42)),
    "external overflow": _external(location="weights.bin", dims=str(2**62)),
    "sparse terabytes": _sparse([2**42], 0),
    "sparse overflow": _sparse([2**32, 2**32], 0),
    "sparse negative": _sparse([-4], 0),
    "sparse index": _sparse([4], 99),
    "shape terabytes": _operator("ConstantOfShape", _ints(2**20, 2**22)),
    "shape overflow": _operator("ConstantOfShape", _ints(2**32, 2**32, 4)),
    "shape negative": _operator("ConstantOfShape", _ints(-5)),
    "range": _operator("Range", np.array(0), np.array(2**42), np.array(1)),
    "range float": _operator("Range", np.array(0.0), np.array(1e15), np.array(1e-3)),
    "range still": _operator("Range", np.array(0), np.array(8), np.array(0)),
    "expand": _operator("Expand", _FLOAT, _ints(2**40, 4)),
    "expand x": _operator("Expand", None, _ints(2**60, 4)),
    "tile": _operator("Tile", np.ones(4, np.float32), _ints(2**40)),
    "tile x": _operator("Tile", None, _ints(2**61)),
    "pad": _operator("Pad", np.ones(4, np.float32), _ints(2**40, 0)),
    "pad x": _operator("Pad", None, _ints(2**62, 2**62)),
    "one hot": _operator("OneHot", _ints(1), np.array(2**42), np.array([0.0, 1.0], np.float32)),
    "eye": _operator("EyeLike", np.zeros((2**15, 2**15), np.bool_)[:1], dtype=1),
    "resize": _operator(
        "Resize",
        np.ones((1, 1, 4, 4), np.float32),
        np.zeros(0, np.float32),
        np.array([1, 1, 1e9, 1e9], np.float32),
    ),
    "window": _operator("HannWindow", np.array(2**40)),
    "permutation": _operator("Transpose", None, perm=[0, 0, 5]),
    "axis": _operator("Softmax", None, axis=99),
    "concatenation": _operator("Concat", None, None, axis=7),
    "split": _operator("Split", None, _ints(2**40, -(2**40) + 4), axis=0),
    "gather": _operator("Gather", np.ones(4, np.float32), _ints(2**40)),
    "einsum": _operator("Einsum", None, equation="i,,j->" + "k" * 500),
    "trilu": _operator("Trilu", np.ones((4, 4), np.float32), np.array(2**62)),
    "reshape": _operator("Reshape", None, _ints(2**62, 4, -1)),
}

# -- PyTorch -------------------------------------------------------------------------------------------------

PROGRAMS = ("mlp.pt2", "dynamic.pt2")


@cache
def program(name: str) -> bytes:
    """A small exported program as the bytes of a file."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    shapes = {"input": {0: torch.export.Dim("n", min=2, max=64)}} if name == "dynamic.pt2" else None
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(net, (torch.randn(3, 8),), dynamic_shapes=shapes), buffer)
    return buffer.getvalue()


@cache
def unpacked(name: str) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(program(name))) as archive:
        return {n: archive.read(n) for n in archive.namelist()}


def packed(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def _member(members: dict[str, bytes], end: str) -> str:
    return next(n for n in members if n.endswith(end))


def _document(members: dict[str, bytes], end: str, change: Callable[[Any], None]) -> None:
    name = _member(members, end)
    document = json.loads(members[name])
    change(document)
    members[name] = json.dumps(document).encode()


def _entries(value: Any) -> list[tuple[Any, Any]]:
    """All places in a JSON document, as pairs of container and key."""
    keys = (
        list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )
    return [(value, k) for k in keys] + [e for k in keys for e in _entries(value[k])]


def _json(rng: random.Random, data: bytes) -> bytes:
    """Change one to three values in the JSON of the program or of the weights."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    name = rng.choice([n for n in members if n.endswith(".json")])
    document = json.loads(members[name])
    for _ in range(rng.randint(1, 3)):
        if not _entries(document):
            break
        container, key = rng.choice(_entries(document))
        if rng.random() < 0.3:
            del container[key]
        else:
            old = container[key]
            new = rng.choice([*HOSTILE, None, "", "x", [], {}, True, 1.5])
            container[key] = rng.choice(HOSTILE) if isinstance(old, int) else new
    members[name] = json.dumps(document).encode()
    return packed(members)


def _lost_member(rng: random.Random, data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    name = rng.choice(list(members))
    if rng.random() < 0.5:
        del members[name]
    else:
        members[name] = members[name][: rng.randrange(len(members[name]) + 1)]
    return packed(members)


GENERAL_PT2: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "pt2 truncated": _truncated,
    "pt2 bits": _bits,
    "pt2 spliced": _spliced,
    "pt2 json": _json,
    "pt2 member": _lost_member,
}


class _Canary:
    """An object that writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return exec, (f"open({self.path!r}, 'w').close()",)


def _evil(canary: str) -> bytes:
    """The file that ``torch.save`` writes for an object that runs code when it is read."""
    import torch

    buffer = io.BytesIO()
    torch.save({"model": _Canary(canary)}, buffer)
    return buffer.getvalue()


def _code(canary: str) -> str:
    return f"open({canary!r},'w').close()"


def _pickled_weight(members: dict[str, bytes], canary: str) -> None:
    def change(document: Any) -> None:
        entry = next(iter(document["config"].values()))
        entry["use_pickle"] = True
        members[_member(members, entry["path_name"])] = _evil(canary)

    _document(members, "model_weights_config.json", change)


def _pickled_constant(prefix: str) -> Callable[[dict[str, bytes], str], None]:
    def attack(members: dict[str, bytes], canary: str) -> None:
        def change(document: Any) -> None:
            document["config"]["c"] = {
                "path_name": f"{prefix}0",
                "is_param": False,
                "use_pickle": True,
                "tensor_meta": None,
            }

        folder = _member(members, "model_constants_config.json").rpartition("/")[0]
        members[f"{folder}/{prefix}0"] = (
            pickle.dumps(_Canary(canary)) if prefix.startswith("opaque") else _evil(canary)
        )
        _document(members, "model_constants_config.json", change)

    return attack


def _samples(members: dict[str, bytes], canary: str) -> None:
    members[_member(members, "model.pt")] = _evil(canary)


def _legacy_weights(members: dict[str, bytes], canary: str) -> None:
    folder = _member(members, "model_weights_config.json").rpartition("/")[0]
    members[f"{folder}/model.pt"] = _evil(canary)


def _legacy_archive(members: dict[str, bytes], canary: str) -> None:
    members.clear()
    members.update({"version": b"8.17", "serialized_exported_program.json": b"{}"})
    for name in ("state_dict", "constants", "example_inputs"):
        members[f"serialized_{name}.pt"] = _evil(canary)


def _expression(text: str) -> Callable[[dict[str, bytes], str], None]:
    def attack(members: dict[str, bytes], canary: str) -> None:
        def change(document: Any) -> None:
            values = document["graph_module"]["graph"]["tensor_values"]
            size = {"as_expr": {"expr_str": text.replace("CODE", _code(canary)), "hint": {"as_int": 3}}}
            next(iter(values.values()))["sizes"][0] = size

        _document(members, "models/model.json", change)

    return attack


def _target(name: str) -> Callable[[dict[str, bytes], str], None]:
    def attack(members: dict[str, bytes], canary: str) -> None:
        def change(document: Any) -> None:
            node = document["graph_module"]["graph"]["nodes"][0]
            node["target"] = name
            node["inputs"] = [{"name": "", "arg": {"as_string": f"touch {canary}"}, "kind": 1}]

        _document(members, "models/model.json", change)

    return attack


def _name_of_input(members: dict[str, bytes], canary: str) -> None:
    """Replace an input's name by one that contains a default value with code: torch puts such names into
    source code.
    """
    name = _member(members, "models/model.json")
    members[name] = members[name].replace(b'"input"', json.dumps(f"x={_code(canary)}").encode())


def _name_of_keyword(members: dict[str, bytes], canary: str) -> None:
    def change(document: Any) -> None:
        node = document["graph_module"]["graph"]["nodes"][0]
        node["target"] = "torch.ops.higher_order.wrap"
        node["inputs"][0]["name"] = f"a={_code(canary)},b"

    _document(members, "models/model.json", change)


def _structure(spec: dict[str, Any]) -> Callable[[dict[str, bytes], str], None]:
    def attack(members: dict[str, bytes], canary: str) -> None:
        module = Path(canary).parent / "evil_module.py"
        module.write_text(f"{_code(canary)}\n")

        def change(document: Any) -> None:
            for entry in document["graph_module"]["module_call_graph"]:
                if entry.get("signature"):
                    entry["signature"]["in_spec"] = json.dumps([1, spec])

        _document(members, "models/model.json", change)

    return attack


def _guards(members: dict[str, bytes], canary: str) -> None:
    _document(members, "models/model.json", lambda d: d.update(guards_code=[_code(canary)]))


def _library(members: dict[str, bytes], canary: str) -> None:
    folder = _member(members, "models/model.json").rpartition("/models/")[0]
    members[f"{folder}/data/aotinductor/model/wrapper.so"] = b"\x7fELF"


def _claimed(sizes: list[int], strides: list[int], data: bytes) -> Callable[[dict[str, bytes], str], None]:
    def attack(members: dict[str, bytes], canary: str) -> None:
        def change(document: Any) -> None:
            entry = next(iter(document["config"].values()))
            meta = entry["tensor_meta"]
            meta["sizes"] = [{"as_int": n} for n in sizes]
            meta["strides"] = [{"as_int": n} for n in strides]
            members[_member(members, entry["path_name"])] = data

        _document(members, "model_weights_config.json", change)

    return attack


def _two_members(members: dict[str, bytes], canary: str) -> None:
    name = _member(members, "models/model.json")
    members[name.replace("models", "MODELS")] = b"{}"


def _nested_json(members: dict[str, bytes], canary: str) -> None:
    members[_member(members, "models/model.json")] = b"[" * 200_000


_ENUM = {
    "type": "builtins.dict",
    "context": json.dumps({"__enum__": True, "fqn": "evil_module:X", "name": "A"}),
    "children_spec": [],
}
_FACTORY = {
    "type": "collections.defaultdict",
    "context": {"default_factory_module": "evil_module", "default_factory_name": "X", "dict_context": []},
    "children_spec": [],
}
ATTACKS: dict[str, Callable[[dict[str, bytes], str], None]] = {
    "pickled weight": _pickled_weight,
    "pickled constant": _pickled_constant("tensor_"),
    "custom object": _pickled_constant("custom_obj_"),
    "opaque object": _pickled_constant("opaque_obj_"),
    "pickled samples": _samples,
    "legacy weights": _legacy_weights,
    "legacy archive": _legacy_archive,
    "expression code": _expression("CODE"),
    "expression attribute": _expression("s0.__class__"),
    "expression power": _expression("9**9**9**9"),
    "expression factorial": _expression("99999999!"),
    "expression nested": _expression("(" * 5000 + "1" + ")" * 5000),
    "call os.system": _target("torch.os.system"),
    "call torch.load": _target("torch.load"),
    "call library": _target("torch.ops.load_library"),
    "call from_file": _target("torch.ops.aten.from_file.default"),
    "call eval": _target("_operator.call"),
    "name of input": _name_of_input,
    "name of keyword": _name_of_keyword,
    "structure enum": _structure(_ENUM),
    "structure factory": _structure(_FACTORY),
    "guards": _guards,
    "compiled code": _library,
    "claimed terabytes": _claimed([2**42], [1], bytes(128)),
    "claimed nothing": _claimed([2**42], [1], b""),
    "claimed view": _claimed([2**42, 8], [0, 1], bytes(128)),
    "claimed negative": _claimed([-4, 8], [8, 1], bytes(128)),
    "two members": _two_members,
    "nested json": _nested_json,
}
