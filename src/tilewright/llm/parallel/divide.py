"""`Division`: divides a model among processes before its weights are loaded, and connects the parts after.

Each kind of layer has one rule, which names the rows and columns of its matrices that a process has. Layers
without a rule, and sizes that have no equal parts, are refused. The model's own code stays as it is: a layer
computes with fewer heads or columns, and a module around it adds the processes' results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import CompileError
from ...frontends.nn import Embedding, Linear, Module, placeholders
from ..experts import Experts, GroupedLinear, RoutedMLP
from ..layers import MLP, Attention, GatedMLP, JointAttention, JointHeads, JointMLP
from ..models.base import CausalLM, LanguageModel
from ..models.encoder_decoder import EncoderDecoder
from ..quantized_linear import QuantizedMatrix
from ..weights.checkpoint import LazyTensor
from .cuts import COLUMNS, ROWS, Cut
from .exchange import DividedEmbedding, Gathered, Summed, equal_parts, largest_of_all
from .place import Place
from .stages import keep_stage

Range = tuple[int, int]


class Division:
    """The part of a model at a place.

    Making it leaves in the model what the process computes, with parameters of the sizes that it has.
    `weights` gives the checkpoint's tensors for them, and `connect` completes the model after loading.

    Args:
        model: The model, without weights.
        place: The place of the process.

    Raises:
        CompileError: The model cannot be divided like this; the message names the layer and the reason.
    """

    def __init__(self, model: LanguageModel, place: Place) -> None:
        if not isinstance(model, CausalLM) or isinstance(model, EncoderDecoder) or model.task != "generate":
            raise CompileError(
                f"{type(model).__name__} cannot be divided among processes: only decoders that generate "
                "text can"
            )
        self.model, self.place = model, place
        self.cuts: dict[str, Cut] = {}
        self._one_scale: set[str] = set()  # quantized parameters that have one scale for each whole row
        self._after: list[Callable[[], None]] = []
        self._known = {name for name, _ in model.named_parameters()}
        if place.pipeline > 1:
            self._after += keep_stage(model, place)
        if place.tensor > 1:
            self._divide("", model)

    def weights(self, tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
        """The parts of a checkpoint's tensors that the process needs, by name.

        Args:
            tensors: All tensors of the checkpoint, by their names there.

        Raises:
            CompileError: Quantized values cannot be cut between groups.
        """
        kept = {name for name, _ in self.model.named_parameters()}
        found = {}
        for name, tensor in tensors.items():
            destination = self.model.destination(name)
            if destination is not None:
                if destination.name in self._known - kept:
                    continue
                cut = self.cuts.get(destination.name)
                if tensor.scheme is not None and tensor.scheme.group is None:
                    self._one_scale.add(destination.name)
                tensor = tensor if cut is None else cut.of(tensor, destination.transposed)
            found[name] = tensor
        return found

    def connect(self) -> None:
        """Enclose the parts in modules that exchange their results, once they have their weights."""
        for step in self._after:
            step()

    # -- For rules

    def share(self, path: str, count: int, what: str) -> Range:
        """This process's equal share of `count` things: the first one, and the one after its last.

        Args:
            path: The layer's path, for errors.
            count: The number of things.
            what: Their name, in the plural.

        Raises:
            CompileError: They have no equal parts.
        """
        if count % self.place.tensor:
            raise CompileError(
                f"{path} cannot be divided among {self.place.tensor} processes: it has {count} {what}"
            )
        each = count // self.place.tensor
        return self.place.part * each, (self.place.part + 1) * each

    def rows(self, path: str, owner: Module, name: str, *ranges: Range) -> None:
        """Leave some rows of a linear layer [out, in], and of its bias.

        Args:
            path: The path of `owner`.
            owner: The module that has the layer.
            name: The layer's name there.
            *ranges: The first row of each range, and the one after its last.
        """
        layer = getattr(owner, name)
        cut = Cut(ROWS, ranges)
        self.cuts[f"{path}.{name}.weight"] = cut
        self.cuts[f"{path}.{name}.bias"] = Cut(COLUMNS, ranges)
        bias = getattr(layer, "bias", None) is not None
        self._replace(owner, name, cut.count, layer.weight.shape[-1], bias)

    def columns(self, path: str, owner: Module, name: str, *ranges: Range) -> None:
        """Leave some columns of a linear layer [out, in]. One process alone adds the bias. A quantized layer
        rounds its input as the whole layer does.

        Args:
            path: The path of `owner`.
            owner: The module that has the layer.
            name: The layer's name there.
            *ranges: The first column of each range, and the one after its last.
        """
        layer = getattr(owner, name)
        cut = Cut(COLUMNS, ranges)
        self.cuts[f"{path}.{name}.weight"] = cut
        bias = getattr(layer, "bias", None) is not None and self.place.part == 0
        self._replace(owner, name, layer.weight.shape[-2], cut.count, bias)
        group = self.place.groups["tensor"]

        def connect() -> None:
            loaded, one_scale = getattr(owner, name), f"{path}.{name}.weight" in self._one_scale
            if isinstance(loaded, QuantizedMatrix) and loaded.rounds_by_rows(one_scale):
                loaded.largest = lambda x: largest_of_all(x, group)

        self._after.append(connect)

    def cut(self, path: str, owner: Module, name: str, *ranges: Range) -> None:
        """Leave some elements of a parameter [n].

        Args:
            path: The path of `owner`.
            owner: The module that has the parameter.
            name: The parameter's name there.
            *ranges: The first element of each range, and the one after its last.
        """
        cut = Cut(COLUMNS, ranges)
        self.cuts[f"{path}.{name}"] = cut
        with placeholders(getattr(owner, name).dtype):
            setattr(owner, name, Linear(1, cut.count).bias)

    def sum(self, owner: Module, name: str) -> None:
        """Let the result of a module be the sum of those of all processes' modules.

        Args:
            owner: The module that has it.
            name: Its name there.
        """
        group = self.place.groups["tensor"]
        self._after.append(lambda: setattr(owner, name, Summed(getattr(owner, name), group)))

    def _replace(self, owner: Module, name: str, rows: int, columns: int, bias: bool) -> None:
        layer = getattr(owner, name)
        with placeholders(layer.weight.dtype):
            if isinstance(layer, GroupedLinear):
                setattr(owner, name, GroupedLinear(layer.count, columns, rows))
            else:
                setattr(owner, name, Linear(columns, rows, bias))

    # -- The walk

    def _divide(self, path: str, module: Module) -> None:
        rule = RULES.get(type(module))
        if rule is not None:
            rule(self, path, module)
            return
        for name, child in list(module.named_children()):
            below = f"{path}.{name}" if path else name
            if (name, path) in (("embed_tokens", "model"), ("lm_head", "")):
                self._divide_vocabulary(below, module, name)
            elif isinstance(child, Linear | GroupedLinear):
                # A router, or the gate of a shared expert: every process needs its whole result.
                if not (isinstance(module, RoutedMLP) and isinstance(child, Linear)):
                    kind = type(module).__name__
                    raise CompileError(
                        f"{path or 'the model'} is a {kind}, for which there is no rule how to divide it "
                        "among processes; those with one are "
                        f"{', '.join(sorted(cls.__name__ for cls in RULES))}: use --pipeline-parallel"
                    )
            else:
                self._divide(below, child)

    def _divide_vocabulary(self, path: str, owner: Module, name: str) -> None:
        layer = getattr(owner, name)
        group, count = self.place.groups["tensor"], self.model.config.vocabulary
        if not isinstance(layer, Linear | Embedding):  # another stage has it
            return
        start, _, _ = equal_parts(count, self.place.tensor)[self.place.part]
        taken = start, start + -(-count // self.place.tensor)
        if isinstance(layer, Linear):
            self.rows(path.rpartition(".")[0], owner, name, taken)
            self.cuts = {k.removeprefix("."): cut for k, cut in self.cuts.items()}
            self._after.append(lambda: setattr(owner, name, Gathered(getattr(owner, name), group, count)))
            return
        self.cuts[f"{path}.weight"] = Cut(ROWS, (taken,))
        with placeholders(layer.weight.dtype):
            setattr(owner, name, Embedding(taken[1] - taken[0], layer.weight.shape[-1]))
        self._after.append(lambda: setattr(owner, name, DividedEmbedding(getattr(owner, name), group, count)))


Rule = Callable[[Division, str, Any], None]
RULES: dict[type[Module], Rule] = {}
"""The rules by the class of module; a subclass has the rule only if it is listed."""


def divides(*classes: type[Module]) -> Callable[[Rule], Rule]:
    """Make a function the rule for classes of modules.

    It is called with the division, the module's path and the module, and leaves in the module what one
    process computes, by `Division.rows`, `Division.columns` and `Division.sum`.

    Args:
        *classes: The classes; subclasses are not among them.
    """

    def registered(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(classes, rule))
        return rule

    return registered


def _heads(division: Division, path: str, layer: Attention) -> tuple[Range, Range]:
    """The heads of queries, and of keys and values, of this process. Where there are fewer of the latter than
    processes, several have the same one.

    Raises:
        CompileError: They have no equal parts, or all heads are normalized together.
    """
    if layer.terms is not None:
        raise CompileError(
            f"{path} cannot be divided among processes: one function gives what is added to the scores of "
            "all heads: use --pipeline-parallel"
        )
    if layer.normalized == "all":
        raise CompileError(
            f"{path} cannot be divided among processes: its queries and keys are normalized over all heads: "
            "use --pipeline-parallel"
        )
    size, part = division.place.tensor, division.place.part
    queries = division.share(path, layer.heads, "heads")
    if size % layer.kv_heads == 0:
        first = part * layer.kv_heads // size
        return queries, (first, first + 1)
    return queries, division.share(path, layer.kv_heads, "heads of keys and values")


def _complete(division: Division, path: str, layer: Attention, queries: Range, keys: Range) -> None:
    """Divide the rest of an attention whose projections of queries, keys and values are divided."""
    d = layer.head_dim
    division.columns(path, layer, "o_proj", (queries[0] * d, queries[1] * d))
    division.sum(layer, "o_proj")
    if layer.sinks is not None:
        division.cut(path, layer, "sinks", queries)
    if layer.slopes is not None:
        layer.slopes = layer.slopes[slice(*queries)]
    layer.heads, layer.kv_heads = queries[1] - queries[0], keys[1] - keys[0]


@divides(Attention)
def _attention(division: Division, path: str, layer: Attention) -> None:
    queries, keys = _heads(division, path, layer)
    d = layer.head_dim
    division.rows(path, layer, "q_proj", (queries[0] * d, queries[1] * d))
    for name in ("k_proj", "v_proj"):
        division.rows(path, layer, name, (keys[0] * d, keys[1] * d))
    _complete(division, path, layer, queries, keys)


@divides(JointAttention)
def _joint_attention(division: Division, path: str, layer: JointAttention) -> None:
    queries, keys = _heads(division, path, layer)
    k = layer.heads
    v = k + layer.kv_heads
    heads = queries, (k + keys[0], k + keys[1]), (v + keys[0], v + keys[1])
    division.rows(path, layer, "qkv_proj", *((a * layer.head_dim, b * layer.head_dim) for a, b in heads))
    _complete(division, path, layer, queries, keys)


@divides(JointHeads)
def _joint_heads(division: Division, path: str, layer: JointHeads) -> None:
    queries, keys = _heads(division, path, layer)
    of_key = layer.heads // layer.kv_heads
    heads = []
    for key in range(*keys):
        first, begin = key * of_key, key * (of_key + 2)
        mine = max(queries[0], first), min(queries[1], first + of_key)
        heads += [(begin + mine[0] - first, begin + mine[1] - first), (begin + of_key, begin + of_key + 2)]
    division.rows(path, layer, "qkv_proj", *((a * layer.head_dim, b * layer.head_dim) for a, b in heads))
    _complete(division, path, layer, queries, keys)


@divides(GatedMLP, MLP)
def _mlp(division: Division, path: str, layer: GatedMLP | MLP) -> None:
    mine = division.share(path, layer.down_proj.weight.shape[-1], "columns between its projections")
    for name in ("gate_proj", "up_proj"):
        if name == "up_proj" or isinstance(layer, GatedMLP):
            division.rows(path, layer, name, mine)
    division.columns(path, layer, "down_proj", mine)
    division.sum(layer, "down_proj")


@divides(JointMLP)
def _joint_mlp(division: Division, path: str, layer: JointMLP) -> None:
    a, b = division.share(path, layer.width, "columns between its projections")
    division.rows(path, layer, "gate_up_proj", (a, b), (layer.width + a, layer.width + b))
    division.columns(path, layer, "down_proj", (a, b))
    division.sum(layer, "down_proj")
    layer.width = b - a


@divides(Experts)
def _experts(division: Division, path: str, layer: Experts) -> None:
    """Each process has a part of every expert, so that all have equal work whatever the router chooses."""
    a, b = division.share(path, layer.width, "columns between its projections")
    if layer.joint:
        division.rows(path, layer, "gate_up_proj", (a, b), (layer.width + a, layer.width + b))
    else:
        division.rows(path, layer, "gate_proj", (a, b))
        division.rows(path, layer, "up_proj", (a, b))
    division.columns(path, layer, "down_proj", (a, b))
    owner, name = layer.__dict__["_owner"]
    division.sum(owner, name)
    layer.width = b - a


__all__ = ["RULES", "Division", "divides"]
