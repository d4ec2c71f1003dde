"""Generates a module from `wave.onnx` with the plugin `ops/`, trains it on a higher wave, and writes that back.

    python samples/plugin/tune.py [FOLDER]

FOLDER gets the module, its weights and `tuned.onnx`; default: a temporary folder.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import onnxgen

HERE = Path(__file__).resolve().parent


def higher(x: Tensor) -> Tensor:
    """The wave of the file, a little higher."""
    return 1.2 * torch.sin(2 * x) + 0.3 * x + 0.5


def tune(folder: Path, steps: int = 300) -> tuple[float, float]:
    """The mean squared error before and after."""
    onnxgen.generate(HERE / "wave.onnx", folder / "wave_net.py", onnxgen.Options(plugins=[str(HERE / "ops")]))
    sys.path.insert(0, str(folder))
    model = importlib.import_module("wave_net").Model.from_pretrained()
    x = torch.linspace(-6, 6, 256)[:, None]
    before = nn.functional.mse_loss(model(x), higher(x)).item()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), higher(x))
        loss.backward()
        optimizer.step()
    # not verified: onnxruntime has no com.acme.Snake to compare with
    onnxgen.export(
        folder / "wave_net.py", onnx=HERE / "wave.onnx", weights=model, out=folder / "tuned.onnx", verify=False
    )
    return before, nn.functional.mse_loss(model(x), higher(x)).item()


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else made)
        before, after = tune(folder)
        print(f"mean squared error {before:.3f} before, {after:.5f} after")
        print("wrote " + ", ".join(sorted(path.name for path in folder.iterdir() if path.suffix != ".pyc")))


if __name__ == "__main__":
    main()
