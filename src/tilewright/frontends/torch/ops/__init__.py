"""Importers of ATen operators, by theme. Each file registers its own; see ``registry.importers``."""
