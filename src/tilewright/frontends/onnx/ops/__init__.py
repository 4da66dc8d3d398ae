"""Importers of ONNX operators, in modules by theme. `registry.importers` loads all of them."""
