"""StableHLO programs, as text and as bytecode, and the ways in which `mutated_files` damages them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

HOSTILE = (
    "-1",
    "0",
    "1099511627776",
    "4611686018427387904",
    "9223372036854775807",
    "9223372036854775808",
    "7",
    "?",
)

PROGRAMS = {
    "mlp": """module @mlp {
  func.func public @main(%x: tensor<?x8xf32>, %w: tensor<8x4xf32>) -> tensor<?x4xf32> {
    %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x8xf32>, tensor<8x4xf32>) -> tensor<?x4xf32>
    %e = stablehlo.exponential %h : tensor<?x4xf32>
    return %e : tensor<?x4xf32>
  }
}
""",  # noqa: E501
    "loop": """module @loop {
  func.func public @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<f32>) {
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %c1 = stablehlo.constant dense<1> : tensor<i32>
    %c5 = stablehlo.constant dense<5> : tensor<i32>
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %r:2 = stablehlo.while(%i = %c0, %v = %x) : tensor<i32>, tensor<4xf32>
     cond {
      %p = stablehlo.compare LT, %i, %c5 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %n = stablehlo.add %i, %c1 : tensor<i32>
      %d = func.call @twice(%v) : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %n, %d : tensor<i32>, tensor<4xf32>
    }
    %s = stablehlo.reduce(%r#1 init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    return %r#1, %s : tensor<4xf32>, tensor<f32>
  }
  func.func private @twice(%a: tensor<4xf32>) -> tensor<4xf32> {
    %b = stablehlo.add %a, %a : tensor<4xf32>
    return %b : tensor<4xf32>
  }
}
""",  # noqa: E501
    "conv": """module @conv {
  func.func public @main(%x: tensor<1x8x8x3xf32>) -> tensor<1x4x4x2xf32> {
    %w = stablehlo.constant dense<0.5> : tensor<3x3x3x2xf32>
    %c = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2], pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x8x8x3xf32>, tensor<3x3x3x2xf32>) -> tensor<1x4x4x2xf32>
    %t = stablehlo.transpose %c, dims = [0, 2, 1, 3] : (tensor<1x4x4x2xf32>) -> tensor<1x4x4x2xf32>
    %s = stablehlo.slice %t [0:1, 0:4, 0:4, 0:2] : (tensor<1x4x4x2xf32>) -> tensor<1x4x4x2xf32>
    return %s : tensor<1x4x4x2xf32>
  }
}
""",  # noqa: E501
}


def _main(body: str, result: str = "tensor<4xf32>", more: str = "") -> str:
    return (
        f"module {{\n func.func public @main(%x: tensor<4xf32>) -> {result} "
        f"{{\n{body}\n return %y : {result}\n }}\n{more}}}\n"
    )


def _function(name: str, callee: str) -> str:
    call = f"%b = func.call @{callee}(%a) : (tensor<4xf32>) -> tensor<4xf32>"
    return (
        f" func.func private @{name}(%a: tensor<4xf32>) -> "
        f"tensor<4xf32> {{\n {call}\n return %b : tensor<4xf32>\n }}\n"
    )


def _calls(functions: str) -> str:
    return _main("%y = func.call @f0(%x) : (tensor<4xf32>) -> tensor<4xf32>", more=functions)


def _nested(depth: int) -> str:
    body = "%y{0} = stablehlo.negate %x : tensor<4xf32>\n"
    text = body.format(depth)
    for k in range(depth, 0, -1):
        text = (
            f'%y{k - 1} = "stablehlo.if"(%p) ({{\n{text}stablehlo.return %y{k} : tensor<4xf32>\n}}, '
            f"{{\nstablehlo.return %x : tensor<4xf32>\n}}) "
            ": (tensor<i1>) -> tensor<4xf32>\n"
        )
    return _main(
        f"%p = stablehlo.constant dense<true> : tensor<i1>\n{text}%y = stablehlo.abs %y0 : tensor<4xf32>"
    )


BUILT: dict[str, Callable[[], str]] = {
    "self call": lambda: _calls(_function("f0", "f0")),
    "mutual calls": lambda: _calls(_function("f0", "f1") + _function("f1", "f0")),
    "many calls": lambda: _calls(
        "".join(
            f" func.func private @f{k}(%a: tensor<4xf32>) -> tensor<4xf32> {{\n"
            + "".join(
                f" %v{j + 1} = func.call @f{k + 1}(%{f'v{j}' if j else 'a'}) : (tensor<4xf32>) -> "
                "tensor<4xf32>\n"
                for j in range(10)
            )
            + " return %v10 : tensor<4xf32>\n }\n"
            for k in range(30)
        )
        + " func.func private @f30(%a: tensor<4xf32>) -> tensor<4xf32> {\n return %a : tensor<4xf32>\n }\n"
    ),
    "deep regions": lambda: _nested(300),
    "very deep regions": lambda: _nested(20_000),
    "missing function": lambda: _calls(""),
    "splat terabytes": lambda: _main(
        "%y = stablehlo.constant dense<1.0> : tensor<1099511627776xf32>", "tensor<1099511627776xf32>"
    ),
    "splat overflow": lambda: _main(
        "%y = stablehlo.constant dense<1.0> : tensor<4294967296x4294967296xf32>",
        "tensor<4294967296x4294967296xf32>",
    ),
    "iota terabytes": lambda: _main(
        "%y = stablehlo.iota dim = 0 : tensor<1099511627776xf32>", "tensor<1099511627776xf32>"
    ),
    "broadcast terabytes": lambda: _main(
        "%y = stablehlo.broadcast_in_dim %x, dims = [1] : (tensor<4xf32>) -> tensor<1099511627776x4xf32>",
        "tensor<1099511627776x4xf32>",
    ),
    "pad terabytes": lambda: _main(
        "%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
        "%y = stablehlo.pad %x, %z, low = [1099511627772], high = [0], interior = [0] : (tensor<4xf32>, "
        "tensor<f32>) -> tensor<1099511627776xf32>",
        "tensor<1099511627776xf32>",
    ),
    "endless loop of constants": lambda: _main(
        "%t = stablehlo.constant dense<true> : tensor<i1>\n%y = stablehlo.while(%v = %x) : tensor<4xf32> "
        "cond {\n"
        "stablehlo.return %t : tensor<i1>\n} do {\nstablehlo.return %v : tensor<4xf32>\n}"
    ),
    "resource": lambda: (
        _main("%y = stablehlo.constant dense_resource<blob> : tensor<4xf32>")
        + '{-# dialect_resources: { builtin: { blob: "0x00000000FF" } } #-}\n'
    ),
    "custom call": lambda: _main(
        '%y = stablehlo.custom_call @system(%x) {backend_config = "touch canary"} : (tensor<4xf32>) -> '
        "tensor<4xf32>"
    ),
    "not text": lambda: "\udcff".encode("utf-8", "surrogateescape").decode("latin-1") * 100,
    "empty": lambda: "",
}


def readable() -> bool:
    """Whether jaxlib, which reads StableHLO, is installed."""
    return find_spec("jaxlib") is not None


@cache
def bytecode(name: str) -> bytes:
    """A program as the bytes of a portable artifact."""
    from tilewright.frontends.stablehlo.reading import bindings, context

    ir, stablehlo, *_ = bindings()
    with context():
        module = ir.Module.parse(PROGRAMS[name])
        return bytes(stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version()))


def _numbers(rng: random.Random, text: str) -> str:
    """Replace one to three numbers anywhere by hostile values."""
    for _ in range(rng.randint(1, 3)):
        found = list(re.finditer(r"(?<![%#@\w])\d+|(?<=[x<])\d+(?=x)", text))
        m = rng.choice(found)
        text = text[: m.start()] + rng.choice(HOSTILE) + text[m.end() :]
    return text


def _words(rng: random.Random, text: str) -> str:
    """Replace one or two words by other words of the program."""
    words = re.findall(r"[%@]?[A-Za-z_][\w.]*", text)
    for _ in range(rng.randint(1, 2)):
        m = rng.choice(list(re.finditer(r"[%@]?[A-Za-z_][\w.]*", text)))
        text = text[: m.start()] + rng.choice(words) + text[m.end() :]
    return text


def _lines(rng: random.Random, text: str) -> str:
    """Remove a line, repeat it elsewhere, or exchange it with another."""
    lines = text.splitlines()
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    action = rng.randrange(3)
    if action == 0:
        del lines[a]
    elif action == 1:
        lines.insert(b, lines[a])
    else:
        lines[a], lines[b] = lines[b], lines[a]
    return "\n".join(lines)


TEXT: dict[str, Callable[[random.Random, str], str]] = {"numbers": _numbers, "words": _words, "lines": _lines}
