"""The trained weights, back into the ONNX file."""
