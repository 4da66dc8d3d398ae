"""Attention operators of ``com.microsoft`` and of opset 23 become one `graph.attention` and agree with ONNX
Runtime's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from tilewright.dialects import graph
from tilewright.frontends.onnx import import_onnx
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify

BATCH, ROWS, KEYS, HEADS, GROUPS, DEPTH, PAST = 2, 7, 9, 4, 2, 16, 6
WIDTH = HEADS * DEPTH
MICROSOFT = "com.microsoft"
random = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


def int32(*values: Any) -> Any:
    return np.array(values if len(values) > 1 else values[0], np.int32)


def model(op: str, inputs: Sequence[Any], outputs: int, **attributes: Any) -> tuple[Any, list[Any]]:
    """Return a model of one node, and its inputs. Scalars of int32 become initializers; an input of None is
    absent.
    """
    names, infos, constants, fed = [], [], [], []
    for k, x in enumerate(inputs):
        names.append("" if x is None else f"i{k}")
        if x is not None and x.shape == ():
            constants.append(onnx.numpy_helper.from_array(x, names[-1]))
        elif x is not None:
            infos.append(
                helper.make_tensor_value_info(names[-1], helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            )
            fed.append(x)
    results = [f"o{k}" for k in range(outputs)]
    domain = attributes.pop("domain", MICROSOFT)
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(
        helper.make_graph([node], "g", infos, made, constants), opset_imports=opsets, ir_version=10
    ), fed


def computed(proto: Any, fed: Sequence[Any]) -> list[Any]:
    """Return the outputs of the interpreter; the graph must have exactly one attention."""
    module = import_onnx(proto)
    verify(module)
    assert sum(isinstance(op, graph.Attention) for op in module.walk()) == 1
    return list(Interpreter(module).run("main", list(fed)))


def check(op: str, inputs: Sequence[Any], outputs: int = 1, **attributes: Any) -> None:
    proto, fed = model(op, inputs, outputs, **attributes)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {info.name: x for info, x in zip(proto.graph.input, fed, strict=True)})
    for found, x in zip(computed(proto, fed), wanted, strict=True):
        np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-5)


X, W, B = floats(BATCH, ROWS, 48), floats(48, 3 * WIDTH) / 5, floats(3 * WIDTH)
LENGTHS = int32([ROWS, 4])
FLAGS = (np.arange(ROWS) < LENGTHS[:, None]).astype(np.int32)


@pytest.mark.parametrize(
    ("rest", "outputs", "causal"),
    [
        ([], 1, 0),
        ([LENGTHS], 1, 0),
        ([FLAGS], 1, 1),
        ([np.repeat(FLAGS[:, None], ROWS, 1)], 1, 0),
        ([None, floats(2, BATCH, HEADS, 5, DEPTH)], 2, 1),
        ([None, None, floats(1, HEADS, ROWS, ROWS)], 1, 0),
    ],
    ids=["plain", "lengths", "causal and flags", "flags for each query", "past", "bias"],
)
def test_attention_with_projections(rest: list[Any], outputs: int, causal: int) -> None:
    check("Attention", [X, W, B, *rest], outputs, num_heads=HEADS, unidirectional=causal)


Q, K, V = floats(BATCH, ROWS, WIDTH), floats(BATCH, KEYS, WIDTH), floats(BATCH, KEYS, WIDTH)
CACHE = floats(BATCH, HEADS, 5, DEPTH)


@pytest.mark.parametrize(
    ("inputs", "outputs", "attributes"),
    [
        ([Q, K, V], 1, {}),
        ([Q, K, V, floats(3 * WIDTH)], 1, {"scale": 0.3}),
        ([Q, floats(BATCH, HEADS, KEYS, DEPTH), floats(BATCH, HEADS, KEYS, DEPTH)], 1, {}),
        ([Q, K, V, None, (np.arange(KEYS) < int32([KEYS, 5])[:, None]).astype(np.int32)], 1, {}),
        ([Q, K, V, None, None, floats(BATCH, HEADS, ROWS, KEYS)], 1, {}),
        ([Q, Q, Q, None, None, None, CACHE, CACHE], 3, {"unidirectional": 1}),
        ([Q, Q, Q], 1, {"unidirectional": 1}),
    ],
    ids=["plain", "bias", "separate heads", "padding", "added bias", "past", "causal"],
)
def test_multi_head_attention(inputs: list[Any], outputs: int, attributes: dict[str, Any]) -> None:
    check("MultiHeadAttention", inputs, outputs, num_heads=HEADS, **attributes)


@pytest.mark.parametrize("packed", [2, 3])
def test_packed_keys_and_values(packed: int) -> None:
    """Keys and values packed into one input are unpacked. ONNX Runtime supports them on GPUs only, so the
    reference is PyTorch.
    """
    x = floats(BATCH, ROWS, HEADS, packed, DEPTH)
    inputs = [x] if packed == 3 else [Q, x]
    (found,) = computed(*model("MultiHeadAttention", inputs, 1, num_heads=HEADS))
    parts = [torch.tensor(x[:, :, :, k]).transpose(1, 2) for k in range(packed)]
    if packed == 2:
        parts.insert(0, torch.tensor(Q).reshape(BATCH, ROWS, HEADS, DEPTH).transpose(1, 2))
    wanted = (
        torch.nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(BATCH, ROWS, WIDTH)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


COS, SIN = np.cos(floats(32, DEPTH // 2)), np.sin(floats(32, DEPTH // 2))


@pytest.mark.parametrize("rows", [ROWS, 1], ids=["prompt", "decode"])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1, "local_window_size": 3, "softcap": 5.0},
        {"local_window_size": 2, "scale": 0.4},
    ],
    ids=["plain", "rotary", "window and cap", "window"],
)
def test_group_query_attention(rows: int, attributes: dict[str, Any]) -> None:
    total = rows if rows > 1 else PAST + 1
    past = [None, None] if rows > 1 else [floats(BATCH, GROUPS, PAST, DEPTH) for _ in "kv"]
    new = [floats(BATCH, rows, GROUPS * DEPTH) for _ in "kv"]
    tables = [COS, SIN] if "do_rotary" in attributes else []
    inputs = [floats(BATCH, rows, WIDTH), *new, *past, int32([total - 1] * BATCH), int32(total), *tables]
    check("GroupQueryAttention", inputs, 3, num_heads=HEADS, kv_num_heads=GROUPS, **attributes)


def test_a_cache_with_rows_of_different_lengths() -> None:
    """The rows of the cache after a sequence's end are not read."""
    past = [floats(BATCH, GROUPS, PAST, DEPTH) for _ in "kv"]
    new = [floats(BATCH, 1, GROUPS * DEPTH) for _ in "kv"]
    inputs = [floats(BATCH, 1, WIDTH), *new, *past, int32([PAST, 3]), int32(PAST + 1)]
    attributes = {"num_heads": HEADS, "kv_num_heads": GROUPS}
    first = computed(*model("GroupQueryAttention", inputs, 3, **attributes))[0]
    for x in past:
        x[1, :, 3:] = 7.0
    np.testing.assert_array_equal(first, computed(*model("GroupQueryAttention", inputs, 3, **attributes))[0])


@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"softcap": 3.0}, {"scale": 0.2}], ids=str)
def test_standard_attention(attributes: dict[str, Any]) -> None:
    heads = [floats(BATCH, n, rows, DEPTH) for n, rows in ((HEADS, ROWS), (GROUPS, KEYS), (GROUPS, KEYS))]
    check("Attention", heads, domain="", **attributes)
    check("Attention", [Q, K, V], domain="", q_num_heads=HEADS, kv_num_heads=HEADS, **attributes)
