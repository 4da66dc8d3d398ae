"""LLVM modules of kernels, cut so that kernels with equal parts share objects in the cache."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .kernel import KernelCode


def kernel_modules(codes: Sequence[KernelCode]) -> list[str]:
    """LLVM modules of the kernels: one per kernel, and one per helper function that is never inlined.

    The object cache then finds every kernel and every contraction tile that was compiled before, for any
    model. A module costs 2 ms in addition to its contents.
    """
    shared: dict[str, str] = {}
    modules = []
    for code in codes:
        modules.append(_module(code.text, code.helpers))
        for name, text in code.helpers.items():
            if _is_shared(text) and name not in shared:
                shared[name] = _module(text.replace("define internal", "define hidden", 1), code.helpers)
    return [*shared.values(), *modules]


_DECLARATION = re.compile(r"^declare .*$", re.MULTILINE)
_HEAD = re.compile(r"^define internal ([^{]*)\{", re.MULTILINE)
_NAME = re.compile(r"@([\w.$-]+)")


def _is_shared(text: str) -> bool:
    head = _HEAD.search(text)
    return head is not None and "noinline" in head.group(1)


def _module(text: str, helpers: Mapping[str, str]) -> str:
    """`text` and the helpers that it uses, directly or indirectly: inlined ones are defined, shared ones
    declared.
    """
    parts, declared = [text], dict.fromkeys(_DECLARATION.findall(text))
    seen = set(re.findall(r"^define [^@]*@([\w.$-]+)", text, re.MULTILINE))
    for part in parts:  # `parts` grows during the iteration.
        for name in dict.fromkeys(_NAME.findall(part)):
            helper = helpers.get(name)
            if helper is None or name in seen:
                continue
            seen.add(name)
            head = _HEAD.search(helper)
            if head is not None and _is_shared(helper):
                declared[f"declare hidden {head.group(1).strip()}"] = None
            else:
                parts.append(helper)
                declared.update(dict.fromkeys(_DECLARATION.findall(helper)))
    bodies = [_DECLARATION.sub("", part).strip() for part in reversed(parts)]
    return "\n".join([*declared, "", *bodies, ""])
