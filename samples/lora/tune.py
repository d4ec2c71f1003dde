"""LoRA on a generated transformer with peft, and back to the ONNX file: digits seen in a mirror.

python samples/lora/tune.py [--out FOLDER]       # half a minute on a CPU
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnxruntime
import torch
from make_onnx import TRAINED, digits, make, train
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_model
from torch import Tensor

import onnxgen
from onnxgen.training import open_model


def accuracy(path: Path, images: Tensor, labels: Tensor) -> float:
    """Of an ONNX file, in onnxruntime."""
    session = onnxruntime.InferenceSession(path)
    (scores,) = session.run(None, {"rows": images.numpy()})
    return float((torch.from_numpy(scores).argmax(1) == labels).float().mean())


def main(out: Path, steps: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    original, tuned = out / "digits.onnx", out / "mirrored.onnx"
    make(original, steps)
    onnxgen.generate(original, out / "model.py", force=True)
    images, labels = digits()
    mirrored, test = images.flip(2), slice(TRAINED, None)

    model = open_model(out / "model.py")
    torch.manual_seed(0)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "fc1", "fc2"], modules_to_save=["head"])
    adapted = get_peft_model(model, config)
    trained, total = adapted.get_nb_trainable_parameters()
    print(f"{trained:,} of {total:,} parameters are trained")
    rates = torch.optim.AdamW((p for p in adapted.parameters() if p.requires_grad), lr=5e-3)
    train(adapted, mirrored[:TRAINED], labels[:TRAINED], steps, rates)

    merged = adapted.merge_and_unload()  # the generated model again, with its own keys
    save_model(merged, str(out / "tuned.safetensors"))
    onnxgen.export(out / "model.py", original, out / "tuned.safetensors", tuned)
    for path in (original, tuned):
        right = [accuracy(path, x[test], labels[test]) for x in (images, mirrored)]
        print(f"{path.name}: {right[0]:.1%} of digits right, {right[1]:.1%} of mirrored ones")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("lora"), help="folder for all files (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="of training, and of tuning (default: %(default)s)")
    args = parser.parse_args()
    main(args.out, args.steps)
