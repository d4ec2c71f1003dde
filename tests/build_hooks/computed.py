"""Installed modules, imported in a process of its own and held to onnxruntime: python computed.py JSON [FOLDER]

JSON has the ONNX file by the module's name. FOLDER is imported from as from `site-packages`. The file of each module is
printed.
"""

from __future__ import annotations

import importlib
import json
import site
import sys
from collections.abc import Iterator


def main(modules: str, *folders: str) -> Iterator[str]:
    import numpy
    import onnxruntime
    import torch

    for folder in folders:
        site.addsitedir(folder)  # as an installation: its .pth files count
    for name, source in json.loads(modules).items():
        module = importlib.import_module(name)
        model = module.Model.from_pretrained().eval()
        x = numpy.random.default_rng(7).standard_normal((5, 4), dtype=numpy.float32)
        session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
        (expected,) = session.run(None, {"x": x})
        with torch.inference_mode():
            numpy.testing.assert_allclose(model(torch.from_numpy(x)).numpy(), expected, rtol=1e-5, atol=1e-6)
        yield f"{name} {module.__file__}"
    assert "onnxgen" not in sys.modules


if __name__ == "__main__":
    print("\n".join(main(*sys.argv[1:])))
