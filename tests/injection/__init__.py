"""Attacks by text: 216 files, each with code in one place where an ONNX file has text, and 72 projects; and real files
with code in every place."""
