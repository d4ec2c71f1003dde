"""Operators that are not neural networks: classical models (`ai.onnx.ml`), n-gram counts, and patterns of text.

This is a bundled plugin that is always on (`BUNDLED` in `onnxgen.graph.operators`). It uses only what a user's plugin
can use: functions with `@onnxgen.op`, their shape rules and their tables. Its torch functions are in `helpers/` and are
copied into generated files.
"""

from onnxgen.classical import features, linear, text, trees

__all__ = ["features", "linear", "text", "trees"]
