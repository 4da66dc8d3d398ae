"""Names in the interfaces of packages that all languages share."""

from __future__ import annotations

from ..artifact.c_interface import identifier


def method_name(function: str) -> str:
    """The method that runs a function."""
    return "run" if function == "main" else identifier(function)


def camel_case(name: str) -> str:
    """``PrefillStep`` for ``prefill_step``."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def type_prefix(function: str) -> str:
    """The beginning of the names of a function's types; "" for the function ``main``."""
    return "" if function == "main" else camel_case(identifier(function))


__all__ = ["camel_case", "method_name", "type_prefix"]
