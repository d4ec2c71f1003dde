"""Queries about an ONNX graph's nodes, and the registry of the functions that lower operators."""
