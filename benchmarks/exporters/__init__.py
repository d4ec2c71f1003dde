"""ONNX files as other tools write them, and what onnxgen makes of each, as `benchmarks/EXPORTERS.md` shows it.

A tool is a module here: its docstring says what it writes, `REQUIREMENTS` what to install for it, and `files(out)`
gives its files one by one, as names and functions that write them. It runs in an environment of its own,
without onnxgen.
"""
