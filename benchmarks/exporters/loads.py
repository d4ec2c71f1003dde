"""`python -m benchmarks.exporters.loads FILE`: 0 if onnxruntime loads a file, else 1 and its reason.

A file whose inputs are floats of fixed sizes, which any numbers fill, must run, too.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime


def main(path: str) -> int:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        given = session.get_inputs()
        if all(i.type == "tensor(float)" and all(isinstance(d, int) for d in i.shape) for i in given):
            rng = np.random.default_rng(0)
            session.run(None, {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in given})
    except Exception as error:
        print(" ".join(str(error).split())[:300])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
