"""Every file of the collection of real ONNX files on an accelerator: outputs and gradients against the CPU's.

    python -m benchmarks.devices [--device cuda] [--file PART_OF_NAME] [--jobs 4] [--import MODULE] [--json FILE]

Each file is generated once. The same module, with the same inputs, runs on the CPU and on the device, in eval mode,
forward and backward, in float32 without TF32. `agrees` means that all outputs and gradients have the same shapes and
types and are close (rtol 1e-3; atol 1e-5 for outputs, 1e-3 of the largest gradient for gradients). `as near` means that
what is not close is at most 4 times as far from the CPU's result in float64 as the CPU's in float32. `random` means
that the file draws random numbers, of which only shapes and types are compared.
"""

from __future__ import annotations

import importlib
import json
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common import arguments, finish
from onnxgen.errors import OnnxgenError
from onnxgen.pipeline import generate
from tests.conftest import SHARED
from tests.support.real import assert_same, computes_in_half, imported, tensor


@cache
def refs() -> ModuleType:
    """The collection's own module of inputs."""
    return imported(SHARED / "models" / "refs.py")


def pass_through(module: ModuleType, feeds: dict[str, Any], **to: Any) -> tuple[list[Any], list[Any]]:
    """The outputs and the gradients of one forward and backward pass, on the CPU. `to`: the device and dtype."""
    torch.manual_seed(0)
    model = module.Model.from_pretrained().eval().to(**to)
    for layer in model.modules():
        if isinstance(layer, nn.RNNBase):  # cuDNN has no backward pass of evaluation
            layer.train()
            layer.dropout = 0.0
    made = model(*[placed(tensor(x), **to) for x in feeds.values()])
    outputs = list(made) if isinstance(made, tuple) else [made]
    floats = [o for o in outputs if isinstance(o, Tensor) and o.is_floating_point() and o.requires_grad]
    parameters = [p for p in model.parameters() if p.requires_grad and p.is_floating_point()]
    gradients: Sequence[Tensor | None] = ()
    if floats and parameters:
        total = sum((o.sin().sum().double() for o in floats), torch.zeros((), device=floats[0].device))
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return outputs, [None if g is None else g.detach().cpu() for g in gradients]


def placed(x: Any, device: str, dtype: torch.dtype | None = None) -> Any:
    """An input on a device; floats also in a dtype. Strings stay as they are."""
    return x.to(device, dtype if x.is_floating_point() else None) if isinstance(x, Tensor) else x


def is_as_near(ours: list[Any], cpu: list[Any], exact: list[Any]) -> bool:
    """Whether results in float32 are as near to those in float64 as the CPU's, which takes 4 times its error."""
    for a, b, c in zip(ours, cpu, exact, strict=True):
        if isinstance(c, Tensor) and c.is_floating_point():
            mine, its = ((x.detach().cpu().double() - c.detach()).abs().max() for x in (a, b))
            if not mine <= 4 * its + 1e-6 * c.abs().max():
                return False
        elif isinstance(c, Tensor) and not torch.equal(a.cpu(), c):
            return False
    return True


def compare(name: str, ours: Any, theirs: Any, values: bool, half: bool) -> None:
    """Raise AssertionError where an output differs; sequences item by item."""
    if isinstance(theirs, (list, tuple)):
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            compare(f"{name}[{i}]", a, b, values, half)
    elif isinstance(theirs, Tensor):
        wide = theirs.float() if theirs.dtype == torch.bfloat16 else theirs
        mine = ours.float() if ours.dtype == torch.bfloat16 else ours
        assert ours.dtype == theirs.dtype, f"{name}: {ours.dtype}, on the CPU {theirs.dtype}"
        assert_same(name, mine, wide.detach().cpu().numpy(), values, half or wide is not theirs)


def judge(file: str, recipe: Any, is_random: bool, device: str, imports: Sequence[str]) -> dict[str, str]:
    """One file on both devices."""
    for name in imports:
        importlib.import_module(name)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = SHARED / "models" / file
    with tempfile.TemporaryDirectory() as folder:
        try:
            feeds = refs().inputs(path, recipe=recipe)
            generate(path, Path(folder) / "model.py")
            module = imported(Path(folder) / "model.py")
            expected, slopes = pass_through(module, feeds, device="cpu")
        except OnnxgenError as error:
            return {"file": file, "verdict": "refused", "why": error.problems[0].what}
        except IndexError as error:  # the collection's inputs lie outside a table; its reference refuses them, too
            return {"file": file, "verdict": "not on the CPU", "why": str(error)}
        try:
            outputs, gradients = pass_through(module, feeds, device=device)
            differs = difference(path, (outputs, gradients), (expected, slopes), is_random)
            if not differs:
                return {"file": file, "verdict": "random" if is_random else "agrees", "why": ""}
            exact, steep = pass_through(module, feeds, device="cpu", dtype=torch.float64)
            near = is_as_near(outputs, expected, exact) and is_as_near(gradients, slopes, steep)
            return {"file": file, "verdict": "as near" if near else "differs", "why": differs}
        except Exception as error:
            return {"file": file, "verdict": "failed", "why": f"{type(error).__name__}: {error}"[:300]}


def difference(path: Path, ours: tuple[list[Any], ...], theirs: tuple[list[Any], ...], is_random: bool) -> str:
    """What differs first of outputs and gradients; "" if nothing does."""
    half = computes_in_half(path)
    try:
        compare("output", ours[0], theirs[0], not is_random, half)
        for number, (a, b) in enumerate(zip(ours[1], theirs[1], strict=True)):
            assert (a is None) == (b is None), f"gradient {number} is missing on one of both"
            if b is not None and b.numel() and not is_random and torch.isfinite(b).all():
                atol = (1e-2 if half else 1e-3) * max(float(b.abs().max()), 1e-3)
                np.testing.assert_allclose(a.double(), b.double(), 1e-3, atol, err_msg=f"gradient {number}")
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cuda", help="a device of torch (default: cuda)")
    parser.add_argument("--file", default="", help="only files whose names have this")
    parser.add_argument("--jobs", type=int, default=4, help="processes (default: 4)")
    parser.add_argument("--import", dest="imports", action="append", default=[], help="a module that has the device")
    given = parser.parse_args()
    manifest = json.loads((SHARED / "models" / "manifest.json").read_text())
    entries = [entry for entry in manifest if given.file in entry["file"]]
    with ProcessPoolExecutor(given.jobs) as pool:
        tasks = [
            pool.submit(
                judge, e["file"], e.get("feeds"), bool(e.get("random_outputs")), given.device, tuple(given.imports)
            )
            for e in entries
        ]
        rows = [task.result() for task in tasks]
    finish([row for row in rows if row["verdict"] in ("differs", "failed")] or rows[:1], None)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print(", ".join(f"{verdict}: {count}" for verdict, count in Counter(r["verdict"] for r in rows).most_common()))


if __name__ == "__main__":
    main()
