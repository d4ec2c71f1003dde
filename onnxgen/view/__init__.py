"""`onnxgen view`: one self-contained HTML page with the graph of an ONNX file beside its generated source."""
