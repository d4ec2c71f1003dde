"""Tests of the canonical form of networks, and of `onnxgen prove`."""
