"""The dialects, one module or folder each: operations, types and attributes under a namespace."""
