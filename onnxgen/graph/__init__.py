"""Questions about an ONNX graph's nodes, and which function stands for which operator."""
