"""Draw a sample's data, and score an ONNX file on it in the package's own code.

python -m samples.deployed.data draw captcha captchas 300     # captchas/data to train with, captchas/test to score
python -m samples.deployed.data score captcha captchas tuned.onnx
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from samples.deployed.compare import Sample


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    acts = parser.add_subparsers(dest="act", required=True)
    drawing, scoring = acts.add_parser("draw", help="draw data"), acts.add_parser("score", help="score a file")
    for act in (drawing, scoring):
        act.add_argument("name", help="a folder of samples/deployed")
        act.add_argument("folder", type=Path, help="of the data")
    drawing.add_argument("amount", type=int, help="training samples")
    drawing.add_argument("--seed", type=int, default=0)
    scoring.add_argument("file", type=Path, help="an ONNX file")
    args = parser.parse_args()
    sample: Sample = importlib.import_module(f"samples.deployed.{args.name}.sample").SAMPLE
    if args.act == "draw":
        if args.folder.exists():
            parser.error(f"{args.folder} is there already: name another folder, or delete it")
        sample.draw(args.folder, args.amount, args.seed)
        print(f"{args.folder}/data: {args.amount} samples to train with; {args.folder}/test: those that score a file")
    else:
        print(f"{sample.metric}: {sample.score(args.file, args.folder):.3f}")


if __name__ == "__main__":
    main()
