"""An untrained fully connected network: ONNX to PyTorch, trained with SGD, and back into the ONNX file.

    python -m samples.fully_connected.train [--data FOLDER] [--out FOLDER]

Shows the commands that it runs, and ends with a table of test accuracies.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np

from samples.common import COMPARED, DATA, check_data, compare, markdown, onnxgen
from samples.fully_connected.make_onnx import export
from samples.mnist.make_onnx import MEAN, STD, read_idx, scale


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA / "mnist", help="folder with MNIST's idx files")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("runs/fully_connected"))
    args = parser.parse_args()
    check_data(parser, args.data)
    shutil.rmtree(args.out / "run", ignore_errors=True)
    args.out.mkdir(parents=True, exist_ok=True)

    onnx, model, trained = (args.out / name for name in ("fully_connected.onnx", "model.py", "trained.onnx"))
    export(onnx)
    onnxgen(onnx, "-o", model)
    onnxgen(
        *("train", model, "--data", args.data, "--normalize", f"{MEAN},{STD}", "--from-scratch"),
        *("--optimizer", "sgd", "--lr", "0.1", "--optimizer-arg", "momentum=0.5"),
        *("--epochs", str(args.epochs), "--out", args.out / "run"),
    )
    weights = args.out / "run" / "best.safetensors"
    onnxgen("export", model, "--onnx", onnx, "--weights", weights, "-o", trained)

    images = scale(read_idx(args.data, "t10k-images-idx3-ubyte")).numpy()
    labels = read_idx(args.data, "t10k-labels-idx1-ubyte").astype(np.int64)
    rows = [
        compare("untrained", onnx, model, None, images, labels),
        compare("trained", trained, model, weights, images, labels),
    ]
    print(f"\n{markdown(COMPARED, rows)}")


if __name__ == "__main__":
    main()
