"""`python -m benchmarks.exporters.loads FILE`: 0 if onnxruntime loads a file, else 1 and its reason."""

from __future__ import annotations

import sys

import onnxruntime


def main(path: str) -> int:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        print(" ".join(str(error).split())[:300])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
