"""Shared tools without knowledge of ONNX or PyTorch: names, paths, limits, atomic replacement of several files."""
