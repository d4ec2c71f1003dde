"""Do the arguments of generated constructors hold: does the network build, run and train with other values?

    python -m benchmarks.drawn_arguments FILE_OR_FOLDER ... [--draws 2] [--seed 0] [--json FILE]

For each ONNX file: every argument of the network's constructor gets drawn values, one argument at a time, and once all
of them at a time. The network is built, run on the drawn inputs of `verify`, and the sum of its outputs goes backward.
An argument for the width of an input (`in_channels`, `out_features` of given actions) changes the axis of an input that
has this size; one of the axes must do. A file without arguments, or one that does not run with its own values, has no
row.

built, run, trained: how many of the drawn networks got that far. A network with a norm over groups or with heads, or
that divides a width into equal parts, takes only multiples of their number, so widths are drawn as such.
"""

from __future__ import annotations

import inspect
import math
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from itertools import compress, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import arguments, finish
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.pipeline import generate
from onnxgen.runtime.load import imported
from onnxgen.verify.check import Check
from onnxgen.verify.convert import to_torch

MOST_AXES = 6
TAKEN = ("in_", "input_", "hidden_size")
TOLD = (*TAKEN, "out_")  # what the network tells may be beside an input
COUNTS = re.compile("num_layers|num_blocks|depth")
Inputs = tuple[Any, ...]


def drawn(name: str, default: Any, unit: int, rng: random.Random) -> Any:
    """Another value for an argument: of a table of widths each entry of its own."""
    if isinstance(default, tuple):
        return tuple(drawn(name, entry, unit, rng) for entry in default)
    if name == "num_heads":
        return rng.choice([n for n in range(1, default + 1) if default % n == 0])
    if COUNTS.search(name):
        return max(1, default + rng.choice([-1, 1, 2]))
    if "vocab" in name or name == "max_length" or name.startswith("num_") and name != "num_classes":
        return default + rng.randrange(1, 9)  # the drawn input has numbers below its own
    step = unit if default % unit == 0 else 1
    return step * rng.choice([n for n in range(1, 2 * default // step + 2) if n * step != default])


def unit_of(network: nn.Module, source: str) -> int:
    """The number that widths must be multiples of: groups of norms, heads of attention and of views, equal parts."""
    numbers = [m.num_groups for m in network.modules() if isinstance(m, nn.GroupNorm)]
    heads = [getattr(m, "num_heads", None) for m in network.modules()]
    parts = re.findall(r"(?:unflatten\(-1, \(|chunk\()(\d+), (?:-1\)|dim)|(?:width\w*|channels|dim) // (\d+)", source)
    split = (int(number) for found in parts for number in found if number)
    return math.lcm(*numbers, *split, *(number for number in heads if isinstance(number, int)))


def candidates(inputs: Inputs, sizes: dict[int, int]) -> Iterator[Inputs]:
    """The inputs, and those in which axes of one size have the other size that goes with it."""
    axes = [(i, axis) for i, x in enumerate(inputs) for axis, n in enumerate(getattr(x, "shape", ())) if n in sizes]
    for chosen in product([False, True], repeat=min(len(axes), MOST_AXES)):
        given = [*inputs]
        for i, axis in compress(axes, chosen):
            size = given[i].shape[axis]
            given[i] = given[i].index_select(axis, torch.arange(sizes[size]) % size)
        yield tuple(given)


def works(network: nn.Module, given: Inputs) -> str:
    """How far a network gets with inputs: "run" or "trained", or why not."""
    try:
        made = network(*given)
        outputs = [made] if isinstance(made, Tensor) else [value for value in made if isinstance(value, Tensor)]
        sums = [value.sum() for value in outputs if value.requires_grad]
        if not sums and not any(p.requires_grad for p in network.parameters()):
            return "trained"  # it has nothing to train
        torch.stack(sums).sum().backward()  # type: ignore[no-untyped-call]
        return "trained"
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:150]


def rows_of(path: Path, draws: int, rng: random.Random, folder: Path) -> Iterator[dict[str, Any]]:
    module = folder / "model.py"
    generate(path, module, Options(), force=True)
    feeds = next(Check(path, Options(), rtol=1e-3, atol=1e-5).answers(1, 0, None)).feeds
    inputs = tuple(map(to_torch, feeds.values()))
    with imported(module) as file:
        build = file.Model
        own = build().eval()
        defaults = {k: p.default for k, p in inspect.signature(build).parameters.items()}
        if not defaults or works(own, inputs) != "trained":
            return
        unit = unit_of(own, module.read_text(encoding="utf-8"))
        for name in [*([n] for n in defaults), [*defaults]]:
            for _ in range(draws):
                values = {n: drawn(n, defaults[n], unit, rng) for n in name}
                given = [{defaults[n]: values[n] for n in name if n.startswith(kinds)} for kinds in (TAKEN, TOLD)]
                row = {"file": path.stem[:40], "values": str(values)[:100], "built": 0, "trained": 0, "why": ""}
                try:
                    network = build(**values).eval()
                    row["built"] = 1
                    said = [works(network, fed) for sizes in given for fed in candidates(inputs, sizes)]
                    row["trained"] = int("trained" in said)
                    row["why"] = "" if row["trained"] else said[-1]
                except Exception as error:
                    row["why"] = f"{type(error).__name__}: {error}".splitlines()[0][:150]
                yield row


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    files = [file for path in given.paths for file in ([path] if path.is_file() else sorted(path.rglob("*.onnx")))]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for path in files:
            try:
                rows += rows_of(path, given.draws, random.Random(f"{given.seed} {path.name}"), Path(folder))
            except OnnxgenError as error:
                print(f"{path.name}: {str(error).splitlines()[0]}", file=sys.stderr)
    finish([row for row in rows if not row["trained"]] or rows[:1], given.json)
    built, trained = (sum(row[key] for row in rows) for key in ("built", "trained"))
    print(f"{len(rows)} networks of {len({row['file'] for row in rows})} files: {built} built, {trained} trained")


if __name__ == "__main__":
    main()
