"""Minimize an ONNX model that cannot be imported, by its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .delta_debugging import smallest
from .failure import Failure, in_process, raised

if TYPE_CHECKING:
    import onnx

    from ...frontends.dims import DimsArgument


def reduce_nodes(
    model: onnx.ModelProto, dims: DimsArgument | None, timeout: float, say: Callable[[str], None]
) -> tuple[Any, Failure | None, int]:
    """The smallest `onnx.ModelProto` whose import fails like the model's, the failure (None: the model is
    imported), and the number of attempts.
    """
    import onnx

    original = _failure(model, dims, timeout)
    if original is None:
        return model, None, 1
    try:
        typed = onnx.shape_inference.infer_shapes(model)
    except Exception:  # then only the types that the model declares are known
        typed = model
    infos = {v.name: v for v in (*typed.graph.value_info, *typed.graph.input, *typed.graph.output)}
    best, attempts = model, 1

    def fails(nodes: list[Any]) -> bool:
        nonlocal best, attempts
        attempts += 1
        candidate = _with_nodes(model, infos, nodes)
        failure = _failure(candidate, None, timeout)
        if failure != original:
            return False
        best = candidate
        say(f"{len(nodes)} nodes left after {attempts} attempts")
        return True

    nodes = list(model.graph.node)
    if fails(nodes):
        smallest(nodes, fails)
    return best, original, attempts


def _failure(model: onnx.ModelProto, dims: DimsArgument | None, timeout: float) -> Failure | None:
    def work(send: Callable[[str, Any], None]) -> Failure | None:
        from ...frontends.onnx import import_onnx

        send("stage", "import")
        try:
            import_onnx(model, dims)
        except Exception as error:
            return raised(error, "import")
        return None

    return in_process(work, timeout)[0]


def _with_nodes(model: onnx.ModelProto, infos: dict[str, Any], nodes: Sequence[Any]) -> Any:
    """Keep these nodes alone: values that they use of others become inputs, values without a use become
    outputs.
    """
    import onnx

    made = {name for node in nodes for name in node.output if name}
    used = dict.fromkeys(name for node in nodes for name in _used(node))
    known = {t.name for t in model.graph.initializer} | {
        t.values.name for t in model.graph.sparse_initializer
    }
    inputs = [n for n in used if n not in made and n not in known]
    outputs = [n for n in dict.fromkeys(n for node in nodes for n in node.output if n) if n not in used]
    reduced = onnx.ModelProto()
    reduced.CopyFrom(model)
    graph = reduced.graph
    for field, kept in (
        (graph.node, list(nodes)),
        (graph.input, [_info(infos, n) for n in inputs]),
        (graph.output, [_info(infos, n) for n in outputs]),
        (graph.initializer, [t for t in model.graph.initializer if t.name in used]),
        (graph.value_info, [v for v in model.graph.value_info if v.name in made]),
    ):
        del field[:]
        field.extend(kept)
    return reduced


def _info(infos: dict[str, Any], name: str) -> Any:
    import onnx

    return infos[name] if name in infos else onnx.ValueInfoProto(name=name)


def _used(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node reads, including those that its subgraphs read from outside."""
    yield from (n for n in node.input if n)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            own |= {n for inner in graph.node for n in inner.output}
            yield from (n for inner in graph.node for n in _used(inner) if n not in own)
            yield from (v.name for v in graph.output if v.name and v.name not in own)


__all__ = ["reduce_nodes"]
