"""Operators that are no networks: classical models (`ai.onnx.ml`), counts of n-grams, and patterns of text.

A plugin that lies in the tree and needs no naming (`BUNDLED` in `onnxgen.graph.operators`). It has what a plugin of a
user has, and nothing else: functions with `@onnxgen.op`, their rules of shapes and their tables. Its torch functions
lie in `helpers/` and are copied into generated files.
"""

from onnxgen.classical import encode, features, linear, machines, maps, ngrams, text, trees

__all__ = ["encode", "features", "linear", "machines", "maps", "ngrams", "text", "trees"]
