"""Importers of StableHLO and CHLO operations, in modules by theme. `registry.importers` loads all of them."""
