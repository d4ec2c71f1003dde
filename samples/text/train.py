"""A language model and tags of words: `onnxgen train` beside the original in a loop of one's own.

python -m samples.text.train [--out FOLDER] [--epochs N]
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.training import open_model
from onnxgen.training.data import open_data
from onnxgen.training.loader import Loader
from onnxgen.training.runs.record import read_record
from onnxgen.training.settings import Settings
from samples.common import markdown, onnxgen
from samples.text import make

BATCH, RATE = 32, 2e-3


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def by_hand(net: nn.Module, module: Path, data: Path, settings: Settings, epochs: int, shift: int) -> list[float]:
    """Train the original on the same batches. Return the loss of each validation."""
    found = open_data(data, open_model(module), settings)
    assert found.train is not None and found.val is not None
    column = "labels" if shift else "tags"
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.0)
    losses, batches = [], Loader(found.train, BATCH, shuffle=True, seed=0)
    held = found.val.take(range(len(found.val)), 0)
    for _ in range(epochs):
        net.train()
        for batch in batches:
            logits = net(batch["input_ids"], batch["attention_mask"])
            optimizer.zero_grad()
            loss_of(logits[:, : logits.shape[1] - shift], batch[column][:, shift:]).backward()
            optimizer.step()
        with torch.no_grad():
            logits = net.eval()(held["input_ids"], held["attention_mask"])
            losses.append(float(loss_of(logits[:, : logits.shape[1] - shift], held[column][:, shift:])))
    return losses


def compared(name: str, folder: Path, data: str, epochs: int, *options: str, **given: str | int) -> tuple[str, ...]:
    """Train one network in both ways. Return a row of the table."""
    causal = name == "language model"
    net = make.network(folder, make.SIZE if causal else len(make.TAGS), causal)
    onnxgen(folder / "network.onnx", "-o", folder / "network.py", "--force", "-q")
    length = ("--epochs", str(epochs), "--batch-size", str(BATCH), "--lr", str(RATE), "--weight-decay", "0")
    begun = time.monotonic()
    onnxgen(
        "train", folder / "network.py", "--data", folder / data, "--out", folder / "run", "-q", *length, *options
    )  # fmt: skip
    ours, begun = time.monotonic() - begun, time.monotonic()
    settings = Settings(tokenizer=folder / "tokenizer.json", **given)  # type: ignore[arg-type]
    losses = by_hand(net, folder / "network.py", folder / data, settings, epochs, int(causal))
    theirs = time.monotonic() - begun
    best = read_record(folder / "run").result["best"]
    metric = f"perplexity {best['val_perplexity']:.2f}" if causal else f"accuracy {best['val_accuracy']:.1%}"
    loss, other = best["val_loss"], losses[int(best["epoch"]) - 1]
    seconds = f"{ours:.0f} s, {theirs:.0f} s"
    return (name, metric, f"{loss:.4f}", f"{other:.4f}", f"{math.fabs(loss - other):.1e}", seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("text"), help="folder for all files (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="of each training (default: %(default)s)")
    parser.add_argument("--characters", type=int, default=120_000, help="of the text (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    make.language(args.out / "language", args.characters)
    make.code(args.out / "code")
    rows = [
        compared("language model", args.out / "language", "topics.txt", args.epochs, "--task", "language-model",
                 task="language-model"),
        compared("tags of words", args.out / "code", "code.jsonl", args.epochs),
    ]  # fmt: skip
    print(markdown(("network", "of the best epoch", "loss", "by hand", "difference", "time, by hand"), rows))


if __name__ == "__main__":
    main()
