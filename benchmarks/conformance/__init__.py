"""How onnxgen does on ONNX's own tests, as `docs/CONFORMANCE.md` shows it."""
