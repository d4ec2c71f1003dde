"""Merged decoders of optimum: how long the modules are, which keys they have, and both branches beside onnxruntime.

    python -m benchmarks.merged FOLDER... [--json FILE]

Each folder is what optimum's exporter writes (`decoder_model_merged.onnx`, `decoder_with_past_model.onnx`). With the
original's state dict beside them (`state.pt`), its keys are counted in the module: those with the original's values.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from benchmarks.common import arguments, finish
from onnxgen.pipeline import generate
from onnxgen.runtime.load import load

MERGED, WITH_PAST = "decoder_model_merged.onnx", "decoder_with_past_model.onnx"
SIZES = {"batch_size": 2, "past_decoder_sequence_length": 4}  # others are 7, and new tokens 1 with a cache


def judged(folder: Path) -> dict[str, Any]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as made:
        out = Path(made) / "merged.py"
        merged = len(generate(folder / MERGED, out).source.splitlines())
        past = len(generate(folder / WITH_PAST, Path(made) / "past.py").source.splitlines())
        model = load(folder / MERGED).eval()
    state = model.state_dict()
    file = folder / "state.pt"
    original = torch.load(file) if file.exists() else {}
    right = [k for k, t in state.items() if k in original and torch.equal(t, original[k])]
    session = ort.InferenceSession(str(folder / MERGED))
    return {
        "model": folder.name,
        "merged": merged,
        "with past": past,
        "ratio": round(merged / past, 2),
        "keys": f"{len(right)} of {len(state)}" if original else len(state),
        "with cache": f"{_error(session, model, True):.1e}",
        "without": f"{_error(session, model, False):.1e}",
    }


def _error(session: ort.InferenceSession, model: torch.nn.Module, cache: bool) -> float:
    """The largest difference of any output in one branch."""
    given = [_drawn(i.name, i.type, i.shape, cache) for i in session.get_inputs()]
    wanted = session.run(None, {i.name: v for i, v in zip(session.get_inputs(), given)})
    with torch.no_grad():
        made = model(*map(torch.from_numpy, given))
    same = all(a.shape == tuple(b.shape) for a, b in zip(wanted, made, strict=True))
    errors = [float(np.abs(a - b.numpy()).max()) for a, b in zip(wanted, made) if same and a.size]
    return max(errors) if same else float("inf")


def _drawn(name: str, kind: str, shape: list[int | str], cache: bool) -> NDArray[Any]:
    draws = np.random.default_rng(len(name))
    sizes = SIZES | {"decoder_sequence_length": 1 if cache else 5}
    dims = [d if isinstance(d, int) else sizes.get(d, 7) for d in shape]
    if kind == "tensor(bool)":
        return np.array([cache])
    if kind == "tensor(int64)":
        return np.ones(dims, np.int64) if "mask" in name else draws.integers(4, 60, dims)
    return draws.normal(size=dims).astype(np.float32)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    options = parser.parse_args()
    finish([judged(folder) for folder in options.folders], options.json)


if __name__ == "__main__":
    main()
