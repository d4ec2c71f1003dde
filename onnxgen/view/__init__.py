"""`onnxgen view`: one self-contained HTML page with the graph of an ONNX file beside the source that it becomes."""

from onnxgen.view.page import view

__all__ = ["view"]
