"""Four ways to a network for one's own task, side by side: the deployed file as it is, the same network from scratch,
a new head on the frozen network, and the whole network fine-tuned.

    python -m samples.deployed.compare captcha [--amounts 300,1000] [--seeds 0,1,2] [--out runs/captcha]

Each row is kept in OUT/rows.jsonl as it is measured; a row that is there isn't measured again. The score of every way
is that of the exported ONNX file in the package's own code, on data that was drawn for the test alone.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onnxgen.cli import run as cli
from samples.common import markdown
from samples.deployed.file import find

AS_IT_IS = "the file as it is"


@dataclass(frozen=True)
class Sample:
    """What differs between the samples: `SAMPLE` of `samples/deployed/NAME/sample.py`."""

    file: str  # in an installed package: "ddddocr/common.onnx"
    metric: str  # what `score` returns, with its unit
    amounts: Mapping[int, tuple[str, ...]]  # training samples, with the options of `train` that depend on their number
    # "from scratch" and so on, with the options of `train` that make them; {folder} in one is what `draw` wrote.
    ways: Mapping[str, tuple[str, ...]]
    train: tuple[str, ...]  # other options of `train`
    # Writes data of so many training samples, drawn from a seed, to a folder: what `onnxgen train --data` takes in
    # "data", and what only `score` reads in "test". The test part is the same for every amount and seed.
    draw: Callable[[Path, int, int], None]
    # The score of an ONNX file, in the package's own code, on a folder's "test".
    score: Callable[[Path, Path], float]
    generate: tuple[str, ...] = ()  # options of `onnxgen`
    # Other options, of ways that have a module of their own.
    apart: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def need(*arguments: str | Path) -> None:
    """Run an onnxgen command in this process; the comparison ends where it fails."""
    words = [str(a) for a in arguments]
    if code := cli(words):
        sys.exit(f"onnxgen {' '.join(words)} ended in {code}")


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def measure(sample: Sample, way: str, amount: int, seed: int, out: Path) -> dict[str, object]:
    """Draw, train, export and score. Returns the row."""
    data = out / f"data-{amount}-{seed}"
    if not data.exists():
        sample.draw(fresh(out / "drawing"), amount, seed)
        (out / "drawing").rename(data)
    file, seconds = find(sample.file), 0.0
    if way != AS_IT_IS:
        model, run = out / f"{way.replace(' ', '_') if way in sample.apart else 'model'}.py", fresh(out / "run")
        if not model.exists():
            beside = shutil.copy(file, out)  # export and boxes read it there
            need(beside, "-o", model, "--quiet", *sample.apart.get(way, sample.generate))
        options = (*sample.train, *sample.amounts[amount], *(o.format(folder=data) for o in sample.ways[way]))
        start = time.perf_counter()
        need("train", model, "--data", data / "data", "--out", run, "--seed", str(seed), "--quiet", *options)
        seconds = time.perf_counter() - start
        file = out / "tuned.onnx"
        need("export", run, "--onnx", find(sample.file), "-o", file, "--quiet", "--force")
    row = {"way": way, "amount": amount, "seed": seed, "score": sample.score(file, data), "seconds": round(seconds)}
    print(json.dumps(row), flush=True)
    return row


def table(metric: str, rows: list[dict[str, object]]) -> str:
    """A line for each amount of data, a column for each way: the mean over the seeds, and the lowest and highest."""
    ways = list(dict.fromkeys(str(row["way"]) for row in rows))
    lines = []
    for amount in sorted({int(str(row["amount"])) for row in rows}):
        cells = [f"{amount:,}"]
        for way in ways:
            scores = [float(str(r["score"])) for r in rows if r["way"] == way and r["amount"] == amount]
            apart = f" ({min(scores):.3f} to {max(scores):.3f})" if len(set(scores)) > 1 else ""
            cells.append(f"{statistics.mean(scores):.3f}{apart}" if scores else "")
        lines.append(cells)
    minutes = sum(float(str(row["seconds"])) for row in rows) / 60
    return f"{metric}\n\n{markdown(('samples', *ways), lines)}\n\n{len(rows)} rows, {minutes:.0f} minutes of training"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="a folder of samples/deployed")
    parser.add_argument("--amounts", help="training samples (default: all of the sample)")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--ways", help="some of the ways, joined by commas")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sample: Sample = importlib.import_module(f"samples.deployed.{args.name}.sample").SAMPLE
    out: Path = args.out or Path("runs") / args.name
    out.mkdir(parents=True, exist_ok=True)
    path = out / "rows.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    amounts = [int(a) for a in args.amounts.split(",")] if args.amounts else list(sample.amounts)
    for seed in (int(s) for s in args.seeds.split(",")):
        for amount in amounts:
            for way in args.ways.split(",") if args.ways else (AS_IT_IS, *sample.ways):
                if not any((r["way"], r["amount"], r["seed"]) == (way, amount, seed) for r in rows):
                    rows.append(measure(sample, way, amount, seed, out))
                    with path.open("a") as file:
                        print(json.dumps(rows[-1]), file=file)
    print(f"\n{table(sample.metric, rows)}")


if __name__ == "__main__":
    main()
