"""The dialects, one module or folder each: operations, types and attributes under a namespace."""

from ..ir import printer as printer  # ``repr`` of an operation prints it
