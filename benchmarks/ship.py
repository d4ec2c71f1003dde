"""Networks of the zoo, each trained for an epoch and shipped to every runtime that is installed.

    python -m benchmarks.ship [--networks cnn,vit] [--targets onnx,litert] [--json FILE]

Each is exported by PyTorch, generated, and trained on drawn inputs to give a drawn linear change of its own first
outputs; a part of them is held back. Then `onnxgen ship` writes it to each target, runs it there and compares. A row
says what came of it: "equal" with the largest difference as a share of the largest output, "not run" where no runtime
is here, or the error. Of integers it says the loss of module and file, the percent that is lost, the layers that are
integers, and size and time beside those of `--to onnx`.
"""

from __future__ import annotations

import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import arguments, finish
from onnxgen.errors import OnnxgenError
from onnxgen.pipeline import generate
from onnxgen.ship import ship
from onnxgen.ship.comparison import DiffersError, Shipped
from onnxgen.ship.targets import TARGETS
from onnxgen.training import fit
from onnxgen.training.runs.metrics import points_lost
from tests.zoo import ZOO
from tests.zoo.export import export, quiet

NETWORKS = "mlp,cnn,mobilenet_v3,resnet18,unet_nearest,densenet,convnext,vit,swin,lstm_tagger,hf_bert,gpt2"
SAMPLES = 40


def trained(name: str, folder: Path) -> Path:
    """The folder of a short training of a network of the zoo."""
    entry, path = ZOO[name], folder / f"{name}.onnx"
    with quiet():
        model = export(entry, path, "legacy", 17, keep=False)
    generate(path, folder / f"{name}.py")
    generator = torch.Generator().manual_seed(0)
    columns: dict[str, Any] = {}
    for port, example in zip(entry.input_names, entry.inputs(2)):
        shape = (SAMPLES, *example.shape[1:])
        if example.is_floating_point():
            columns[port] = torch.randn(shape, generator=generator).numpy()
        else:
            drawn = torch.randint(int(example.max()) + 1, shape, generator=generator)
            columns[port] = drawn.to(example.dtype).numpy()
    with torch.no_grad():
        outputs = model.eval()(*map(torch.from_numpy, columns.values()))
    whole = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
    wanted = {name: f"{name} wanted" for name in entry.output_names}
    columns |= {wanted[n]: (0.9 * y + 0.1).numpy().astype(np.float32) for n, y in zip(entry.output_names, whole)}
    run = folder / f"run-{name}"
    target = wanted if len(wanted) > 1 else next(iter(wanted.values()))
    fit(
        folder / f"{name}.py", columns, target=target, task="outputs", epochs=1, batch_size=8, val=0.25, out=run,
        show="nothing", device="cpu", loss="mse",
    )  # fmt: skip
    np.savez(folder / f"{name}.npz", **columns)
    return run


def told(report: Shipped) -> str:
    if not report.compared:
        return "not run"
    if TARGETS[report.to].rounds:
        ((_, before, after), *_) = report.metrics
        what = f"loss {before:.3g} -> {after:.3g}, {points_lost('loss', before, after):+.2f} %"
        return "; ".join(
            [what, *(note for note in report.notes if " numbers are " in note or "times the size" in note)]
        )
    return f"equal ({report.difference:.0e})"


def shipped(run: Path, to: str, data: Path) -> str:
    try:
        return told(ship(run, to, force=True, data=dict(np.load(data))))
    except DiffersError as error:
        return f"DIFFERS: {str(error)[:80]}"
    except OnnxgenError as error:
        return f"refused: {str(error)[:160]}"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--targets", default=",".join(TARGETS))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    targets = [name for name in asked.targets.split(",") if all(find_spec(m) for m in TARGETS[name].needs.values())]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.networks.split(","):
            try:
                run = trained(name, Path(folder))
            except Exception as error:
                rows.append(
                    {"network": name, **dict.fromkeys(targets, ""), "training": f"{type(error).__name__} {error}"[:200]}
                )
                print(rows[-1], flush=True)
                continue
            rows.append({"network": name, **{to: shipped(run, to, Path(folder) / f"{name}.npz") for to in targets}})
            print(rows[-1], flush=True)
    finish(rows, asked.json)


if __name__ == "__main__":
    main()
