"""What every room uses, and knows nothing of ONNX or PyTorch: names, paths, limits, files replaced as one."""
