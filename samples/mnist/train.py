"""The whole way: mnist.onnx to PyTorch, trained from scratch and fine-tuned, and both written back into the ONNX file.

    python -m samples.mnist.train [--data FOLDER] [--out FOLDER]

Shows the commands that it runs, and ends with a table of test accuracies.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np

from samples.common import COMPARED, DATA, check_data, compare, markdown, onnxgen
from samples.mnist.make_onnx import HERE, MEAN, STD, read_idx, scale

ONNX = HERE / "mnist.onnx"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA / "mnist", help="folder with MNIST's idx files")
    parser.add_argument("--epochs", type=int, default=3, help="of the training from scratch")
    parser.add_argument("--out", type=Path, default=Path("runs/mnist"))
    args = parser.parse_args()
    check_data(parser, args.data)
    for run in ("scratch", "tuned"):
        shutil.rmtree(args.out / run, ignore_errors=True)
    args.out.mkdir(parents=True, exist_ok=True)

    model = args.out / "model.py"
    onnxgen(ONNX, "-o", model)
    same = ("--data", args.data, "--normalize", f"{MEAN},{STD}", "--batch-size", "128", "--schedule", "OneCycleLR")
    onnxgen(
        *("train", model, *same, "--from-scratch", "--epochs", str(args.epochs), "--lr", "4e-3"),
        *("--out", args.out / "scratch"),
    )
    onnxgen("train", model, *same, "--epochs", "1", "--lr", "2e-4", "--out", args.out / "tuned")
    for run in ("scratch", "tuned"):
        weights = args.out / run / "best.safetensors"
        onnxgen("export", model, "--onnx", ONNX, "--weights", weights, "-o", args.out / f"{run}.onnx")

    images = scale(read_idx(args.data, "t10k-images-idx3-ubyte")).numpy()
    labels = read_idx(args.data, "t10k-labels-idx1-ubyte").astype(np.int64)
    rows = [compare("as it came", ONNX, model, None, images, labels)]
    for run, name in (("scratch", "trained from scratch"), ("tuned", "fine-tuned")):
        weights = args.out / run / "best.safetensors"
        rows.append(compare(name, args.out / f"{run}.onnx", model, weights, images, labels))
    print(f"\n{markdown(COMPARED, rows)}")


if __name__ == "__main__":
    main()
