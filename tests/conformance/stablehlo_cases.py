"""StableHLO's test files as programs with inputs and expected results. The constants in a file become inputs
of its program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import CompileError
from tilewright.frontends.stablehlo.reading import bindings, constant_of, context

CHECK = re.compile(
    r"check\.(expect_\w+?)(_const)? (%[\w#]+),\s*(%[\w#]+|dense<.*?>)((?:, \w+ = [\w.+-]+(?: : f64)?)*) *: "
    r"*(tensor<[^\n]*>)(?: \{([^}\n]*)\})?$",
    re.M | re.S,
)
GENERIC = re.compile(
    r'"check\.(expect_\w+?)_const"\((%[\w#]+)\) <?\{(.*?)value = (dense<.*?>) : (tensor<[^\n]*?>)\}>? : '
    r"[^\n]*",
    re.S,
)


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    """A StableHLO module whose `main` takes `inputs`."""
    inputs: list[Any]
    expected: list[tuple[Any, str, dict[str, float]]]
    """The value of each result, the kind of its check (``expect_eq``, ...) and the limits of the check."""


def cases_of(path: Path, name: str) -> Iterator[Case | tuple[str, str]]:
    """The cases of a file: each function that contains checks is one. A part that jaxlib cannot read gives
    its name and the reason instead.
    """
    ir, *_ = bindings()
    for part, chunk in enumerate(path.read_text().split("\n// -----")):
        text = _checks_as_calls(chunk)
        try:
            with context():
                functions = [op.sym_name.value for op in ir.Module.parse(text).body.operations if _checks(op)]
        except ir.MLIRError as error:
            yield f"{name}:{part}", f"refused: {_reason(str(error))}"
            continue
        for function in functions:
            with context():
                module = ir.Module.parse(text)
                main = next(op for op in module.body.operations if op.sym_name.value == function)
                label = name if function == "main" and part == 0 else f"{name}:{function}"
                try:
                    yield _case(label, module, main)
                except CompileError as error:
                    yield label, f"refused: {error}"


def _reason(message: str) -> str:
    """The reason why jaxlib cannot read a part."""
    if re.search(r'"?interpreter\b', message):
        return (
            "the interpreter's own dialect, which prints, writes "
            "files and starts threads; no part of StableHLO"
        )
    return "written in a form that jaxlib does not read"


def _checks_as_calls(text: str) -> str:
    """The text with checks of StableHLO's `check` dialect, which jaxlib does not know, replaced by custom
    calls with the checks' names.
    """
    count = 0

    def call(kind: str, got: str, wanted: str, limits: str, type: str) -> str:
        nonlocal count
        first = type.partition(">, ")[0]
        first = type if first == type else f"{first}>"
        before = ""
        if wanted.startswith("dense"):
            before, wanted = f"%wanted{count} = stablehlo.constant {wanted} : {first}\n", f"%wanted{count}"
            count += 1
        given = "".join(
            f", {key} = {value}"
            for key, value in re.findall(r"(\w+) = ([\w.+-]+)", limits)
            if key.endswith(("ence", "tolerance"))
        )
        given = re.sub(
            r"(= [\d]+)(?=,|$)", r"\1 : i64", re.sub(r"(= [\d.e+-]*[.e][\d.e+-]*)(?=,|$)", r"\1 : f64", given)
        )
        return (
            f"{before}stablehlo.custom_call @check.{kind}({got}, {wanted}) "
            f"{{has_side_effect = true{given}}} : ({first}, {first}) -> ()"
        )

    text = GENERIC.sub(lambda m: call(m[1], m[2], m[4], m[3], m[5]), text)
    return CHECK.sub(lambda m: call(m[1], m[3], m[4], m[5] + (m[7] or ""), m[6]), text)


def _checks(function: Any) -> bool:
    return any(
        "check." in str(getattr(op, "call_target_name", ""))
        for op in function.regions[0].blocks[0].operations
    )


def _case(name: str, module: Any, main: Any) -> Case:
    ir, _, _, func = bindings()
    block = main.regions[0].blocks[0]
    functions = {op.sym_name.value: op for op in module.body.operations}
    inputs: list[Any] = []
    expected: list[tuple[Any, str, dict[str, float]]] = []
    results: list[Any] = []
    known: dict[Any, Any] = {}
    removed: list[Any] = []
    for view in block.operations:
        op = view.operation
        if (
            op.name == "func.call"
            and not op.operands
            and str(op.attributes["callee"].value) in ("inputs", "expected")
        ):
            values = _constants(functions[op.attributes["callee"].value])
            if values is not None:
                known.update(zip(op.results, values, strict=True))
                removed.append(op)
        elif op.name == "stablehlo.constant":
            known[op.results[0]] = constant_of(op)
        elif op.name == "stablehlo.custom_call" and "check." in op.attributes["call_target_name"].value:
            kind = op.attributes["call_target_name"].value.removeprefix("check.")
            got, wanted = op.operands
            if wanted not in known or kind == "eq":
                got, wanted = wanted, got
            limits = {
                a: float(op.attributes[a].value)
                for a in ("max_ulp_difference", "tolerance")
                if a in op.attributes
            }
            expected.append((known[wanted], kind, limits))
            results.append(got)
            removed.append(op)
    last = list(block.operations)[-1].operation
    for value, array in known.items():
        uses = [use for use in value.uses if getattr(use.owner, "operation", use.owner) not in removed]
        if not uses or any(_is_size(use) for use in uses):
            continue
        argument = block.add_argument(value.type, ir.Location.unknown(module.context))
        value.replace_all_uses_with(argument)
        results = [argument if r == value else r for r in results]
        inputs.append(array)
    last.erase()
    with ir.InsertionPoint(block), ir.Location.unknown(module.context):
        func.ReturnOp(results)
    for op in reversed(removed):
        if not any(True for result in op.results for _ in result.uses):
            op.erase()
    types = [a.type for a in block.arguments], [r.type for r in results]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
    for attribute in ("arg_attrs", "res_attrs"):
        if attribute in main.attributes:
            del main.attributes[attribute]
    main.attributes["sym_name"] = ir.StringAttr.get("main", module.context)
    main.attributes["sym_visibility"] = ir.StringAttr.get("public", module.context)
    return Case(name, str(module), inputs, expected)


def _constants(function: Any) -> list[Any] | None:
    """The results of a function if all of them are constants, else None."""
    operations = [op.operation for op in function.regions[0].blocks[0].operations]
    arrays = {op.results[0]: constant_of(op) for op in operations if op.name == "stablehlo.constant"}
    returned = list(operations[-1].operands)
    return [arrays[v] for v in returned] if all(v in arrays for v in returned) else None


def _is_size(use: Any) -> bool:
    """Whether an operand gives a result's shape, which must be known at compile time."""
    owner = getattr(use.owner, "operation", use.owner)
    return "dynamic_" in owner.name and use.operand_number > 0 and "slice" not in owner.name


def files(checkout: Path) -> Sequence[tuple[str, Path]]:
    """The test files with expected results in a checkout of the `stablehlo` repository, each with a short
    name.
    """
    folders = {
        "testdata": "stablehlo/testdata",
        "quantized": "stablehlo/testdata/quantized",
        "interpret": "stablehlo/tests/interpret",
    }
    found = [
        (f"{kind}/{p.stem}", p)
        for kind, folder in folders.items()
        for p in (checkout / folder).glob("*.mlir")
    ]
    chlo = (checkout / "stablehlo/tests/interpret/chlo").glob("*.mlir")
    return sorted([*found, *((f"interpret/chlo/{p.stem}", p) for p in chlo)])
