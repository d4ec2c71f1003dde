"""LoRA beside full tuning: three transformers that read digits learn to read mirrored ones.

    python -m benchmarks.lora [--rank 8] [--epochs 4] [--seeds 3] [--json FILE]

BERT, ViT and Llama of `transformers`, small, are trained on scikit-learn's digits, exported, generated and tuned with
`fit`: all weights, LoRA and DoRA, with several seeds. Columns:

    trained    share of the parameters
    computed   bytes of gradients and of AdamW's two moments: 12 for each trained parameter
    measured   bytes of the gradients and of the optimizer's state that are there at a step's end
    best       size of `best.safetensors`
    accuracy   of the validation part, the mean of the seeds (and the lowest and the highest)
    equal      the largest difference in onnxruntime between base with adapter and the merged module, over its largest
               output; the base's bytes are the same for all seeds
"""

from __future__ import annotations

import statistics
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
import transformers
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.common import arguments, finish
from onnxgen import generate
from onnxgen.cli.exporting import of_run
from onnxgen.export.adapter import SUFFIX, export_apart
from onnxgen.training import fit, open_model

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
EXPORT = {"onnx": None, "weights": None, "force": False, "verify": True, "plugins": (), "runs": 2, "seed": 0}
EXPORT |= {"rtol": 1e-3, "atol": 1e-5, "metadata": None}
LEVELS, PIXELS, CLASSES = 17, 64, 10


class Scores(nn.Module):
    """A network of transformers that returns its scores alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.net = inner

    def forward(self, x: Tensor) -> Any:
        return self.net(x).logits


def bert() -> nn.Module:
    given = {"vocab_size": LEVELS, "max_position_embeddings": PIXELS, "num_labels": CLASSES, **SIZES}
    config = transformers.BertConfig(attn_implementation="eager", **given)
    return Scores(transformers.BertForSequenceClassification(config))


def vit() -> nn.Module:
    given = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": CLASSES, **SIZES}
    return Scores(transformers.ViTForImageClassification(transformers.ViTConfig(attn_implementation="eager", **given)))


class Llama(nn.Module):
    """Token ids -> the scores at the last token."""

    def __init__(self) -> None:
        super().__init__()
        given = {"vocab_size": LEVELS, "max_position_embeddings": PIXELS, "num_key_value_heads": 4, **SIZES}
        self.model = transformers.LlamaModel(transformers.LlamaConfig(attn_implementation="eager", **given))
        self.score = nn.Linear(SIZES["hidden_size"], CLASSES, bias=False)

    def forward(self, x: Tensor) -> Any:
        positions = torch.arange(PIXELS)[None]
        mask = torch.full((PIXELS, PIXELS), -1e9).triu(1)[None, None]
        made = self.model(x, attention_mask=mask, position_ids=positions, use_cache=False)
        return self.score(made.last_hidden_state[:, -1])


NETWORKS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "BERT": (bert, True),
    "ViT": (vit, False),
    "Llama": (Llama, True),
}


def digits(tokens: bool, mirrored: bool) -> tuple[Tensor, Tensor]:
    data = load_digits()
    images = torch.from_numpy(data.images).float()
    images = images.flip(2) if mirrored else images
    x = images.flatten(1).long() if tokens else images[:, None] / 16
    return x, torch.from_numpy(data.target)


def pretrained(make: Callable[[], nn.Module], tokens: bool) -> nn.Module:
    torch.manual_seed(0)
    model, (x, y) = make().train(), digits(tokens, mirrored=False)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(300):
        batch = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return model.eval()


class Memory(lightning.Callback):
    """Counts trained parameters, and the bytes of gradients and of the optimizer's state."""

    bytes = trained = 0

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        state = [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, Tensor)]
        self.bytes = max(self.bytes, sum(t.numel() * t.element_size() for t in (*gradients, *state)))
        self.trained = sum(p.numel() for p in pl_module.parameters() if p.requires_grad)


def tuned(folder: Path, run: Path, given: dict[str, Any], epochs: int) -> dict[str, Any]:
    memory, options = Memory(), {"val": 0.2, "device": "cpu", "workers": 0, "show": "nothing", "batch_size": 64}
    found = fit(
        folder / "net.py", folder / "mirrored.npz", out=run, callbacks=[memory], epochs=epochs, **given, **options
    )
    accuracy = max(row["val_accuracy"] for row in found.history)
    best = (run / "best.safetensors").stat().st_size
    return {"accuracy": accuracy, "trained": memory.trained, "measured": memory.bytes, "best": best}


def scores(file: Path, x: np.ndarray, adapter: Path | None = None) -> np.ndarray:
    options, quiet = onnxruntime.RunOptions(), onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    if adapter is not None:
        loaded = onnxruntime.LoraAdapter()
        loaded.Load(str(adapter))
        options.add_active_adapter(loaded)
    found: np.ndarray = onnxruntime.InferenceSession(str(file), quiet).run(None, {"x": x}, run_options=options)[0]
    return found


def written(model: nn.Module, x: Tensor, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {"x": {0: "batch"}, "scores": {0: "batch"}}
        names = {"input_names": ["x"], "output_names": ["scores"], "dynamic_axes": axes}
        torch.onnx.export(model, (x[:2],), folder / "net.onnx", dynamo=False, opset_version=17, **names)
    generate(folder / "net.onnx", folder / "net.py")


def difference(folder: Path, run: Path, x: np.ndarray) -> float:
    """Between base with adapter and the merged module, over its largest output. The base's bytes never change."""
    base = folder / f"{run.name}-base.onnx"
    module, given = of_run(run, {**EXPORT, "out": base})
    report = export_apart(module, **given)
    assert report.verified is not None
    first = folder / f"base-{run.name.rstrip('0123456789')}.onnx"
    if not first.exists():
        first.write_bytes(base.read_bytes())
    assert base.read_bytes() == first.read_bytes(), "the base has other bytes"
    with torch.no_grad():
        merged = open_model(run)(torch.from_numpy(x)).numpy()
    return float(abs(scores(base, x, base.with_suffix(SUFFIX)) - merged).max() / abs(merged).max())


def measured(name: str, rank: int, epochs: int, seeds: int, folder: Path) -> list[dict[str, Any]]:
    make, tokens = NETWORKS[name]
    model, (x, y) = pretrained(make, tokens), digits(tokens, mirrored=True)
    written(model, x, folder)
    np.savez(folder / "mirrored.npz", x=x.numpy(), label=y.numpy())
    with torch.no_grad():
        before = (model(x).argmax(1) == y).float().mean().item()
    original, count = (folder / "net.onnx").read_bytes(), sum(p.numel() for p in model.parameters())
    rows = [{"network": f"{name}, {count:,}", "way": "before", "accuracy": f"{before:.1%}"}]
    lora = {"lora": rank, "lr": 5e-3}
    for way, given in (("all", {"lr": 1e-3}), ("LoRA", lora), ("DoRA", {**lora, "dora": True})):
        runs = [folder / f"{way}{seed}" for seed in range(seeds)]
        found = [tuned(folder, run, {**given, "seed": seed}, epochs) for seed, run in enumerate(runs)]
        accuracies = [one["accuracy"] for one in found]
        row = {
            "network": name,
            "way": way if way == "all" else f"{way} {rank}",
            "trained": f"{found[0]['trained'] / count:.1%}",
            "computed": f"{found[0]['trained'] * 12 / 1e6:.2f} MB",
            "measured": f"{max(one['measured'] for one in found) / 1e6:.2f} MB",
            "best": f"{found[0]['best'] / 1e3:.0f} KB",
            "accuracy": f"{statistics.mean(accuracies):.1%} ({min(accuracies):.1%} to {max(accuracies):.1%})",
        }
        if way != "all":
            row["equal"] = f"{max(difference(folder, run, x.numpy()) for run in runs):.0e}"
        rows.append(row)
    assert (folder / "net.onnx").read_bytes() == original
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in given.network or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            rows += measured(name, given.rank, given.epochs, given.seeds, Path(folder))
    columns = ("network", "way", "trained", "computed", "measured", "best", "accuracy", "equal")
    finish([{column: row.get(column, "") for column in columns} for row in rows], given.json)


if __name__ == "__main__":
    main()
