"""Runs whose records are damaged in drawn ways, and the commands that are asked of them.

`python -m tests.training.damaged SEED COUNT` damages records, and prints what a command does not answer with 0 or 2.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from onnxgen.cli import run as cli
from onnxgen.training import fit
from tests.training.small import network

QUIET: dict[str, Any] = {"show": "nothing", "workers": 0, "device": "cpu", "loggers": "none", "val": 0.2, "test": 0.2}
COMMANDS = (
    "runs {0} --json",
    "runs {0} --html {1}/page.html",
    "evaluate {0} --device cpu",
    "predict {0} {2} --device cpu",
    "export {0} -o {1}/out.onnx",
    "train --resume --out {0} --epochs 2 -q",
    "train {0} --out {1}/new --max-steps 1 -q",
)
VALUES: tuple[Any, ...] = (
    None, "", "x", "../x", -1, 0, 7, 10**30, 1.5, float("nan"), float("inf"), True, [], [1], ["x"], {}, {"x": 1},
    "\ud800", [[]], 1 << 40,
)  # fmt: skip


def trained(folder: Path) -> dict[str, str]:
    """Make two runs in a folder, of a table and of images. Returns the data of each by its name."""
    (folder / "table").mkdir()
    rng = np.random.default_rng(0)
    rows = [f"{','.join(f'{v:.3f}' for v in rng.normal(size=4))},{'abc'[n % 3]}" for n in range(60)]
    (folder / "table" / "d.csv").write_text("\n".join(["p,q,r,s,target", *rows]) + "\n")
    network(folder / "table", x=("float32", ["n", 4]))
    fit(folder / "table/small.py", folder / "table/d.csv", epochs=1, out=folder / "table" / "run", ema=0.9, **QUIET)
    for n in range(60):
        (folder / "images" / "d" / "abc"[n % 3]).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / "d" / "abc"[n % 3] / f"{n}.png")
    network(folder / "images", x=("float32", ["n", 3, 8, 8]))
    fit(folder / "images/small.py", folder / "images/d", epochs=1, out=folder / "images" / "run", **QUIET)
    return {"table": "d.csv", "images": "d"}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in JSON."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def in_json(text: str, draw: random.Random) -> tuple[str, str]:
    """Return a record with a value changed, removed or added, and what was done."""
    record = json.loads(text)
    path = draw.choice(list(places(record)))
    owner = record
    for key in path[:-1]:
        owner = owner[key]
    way = draw.random()
    if way < 0.1:
        del owner[path[-1]]
        return json.dumps(record), f"{path} removed"
    if way < 0.15 and isinstance(owner, dict):
        owner["more"] = draw.choice(VALUES)
        return json.dumps(record), f"{path[:-1]} more: {owner['more']!r}"
    owner[path[-1]] = draw.choice(VALUES)
    return json.dumps(record), f"{path}: {owner[path[-1]]!r}"


def in_toml(text: str, draw: random.Random) -> tuple[str, str]:
    lines = text.splitlines()
    place = draw.choice([n for n, line in enumerate(lines) if " = " in line])
    values = [json.dumps(v) for v in VALUES if isinstance(v, (str, list)) and v != "\ud800"]
    value = draw.choice([*values, "nan", "inf", "-1", "0", "7", "1.5", "true", "{x = 1}", str(10**30), str(1 << 40)])
    lines[place] = f"{lines[place].partition(' = ')[0]} = {value}"
    return "\n".join(lines), lines[place]


def in_csv(text: str, draw: random.Random) -> tuple[str, str]:
    rows = list(csv.reader(io.StringIO(text)))
    row = draw.randrange(len(rows))
    place = draw.randrange(len(rows[row]))
    rows[row][place] = draw.choice(["", "x", "nan", "inf", "-1", "1e999", '"', "a\nb", "1,2"])
    made = io.StringIO()
    csv.writer(made).writerows(rows)
    return made.getvalue(), f"row {row}, {place}: {rows[row][place]!r}"


def in_letters(text: str, draw: random.Random) -> tuple[str, str]:
    """Change a letter, cut the text or add to it."""
    place = draw.randrange(len(text))
    way = draw.randrange(4)
    if way == 0:
        return text[:place], f"cut at {place}"
    if way == 1:
        return text + "x", "a letter more"
    letter = draw.choice("xQ0({[=\x00\t\n")
    return text[:place] + letter + text[place + 1 :], f"{letter!r} for {text[place]!r} at {place}"


WAYS: dict[str, tuple[Callable[[str, random.Random], tuple[str, str]], ...]] = {
    "run.json": (in_json, in_json, in_json, in_json, in_letters),
    "config.toml": (in_toml, in_toml, in_letters),
    "metrics.csv": (in_csv, in_letters),
    "model.py": (in_letters,),
    "best.safetensors": (in_letters,),
    "checkpoints/last.ckpt": (in_letters,),
}


def in_its_place(file: Path, draw: random.Random) -> str:
    """Put something else in the place of a file, or a byte that is not in UTF-8 into it."""
    way = draw.choice(("removed", "a folder", "dangling", "a loop", "empty", "not in UTF-8"))
    data = file.read_bytes()
    file.unlink()
    if way == "a folder":
        file.mkdir()
    elif way in ("dangling", "a loop"):
        file.symlink_to("nothing" if way == "dangling" else file.name)
    elif way != "removed":
        place = draw.randrange(len(data))
        file.write_bytes(b"" if way == "empty" else data[:place] + b"\xff" + data[place:])
    return f"{file.name}: {way}"


def damage(run: Path, draw: random.Random) -> str:
    """Damage a file of a run, or write it in another encoding. Returns what was done."""
    name = draw.choice([name for name, ways in WAYS.items() for _ in ways])
    if draw.random() < 0.15:
        return in_its_place(run / draw.choice([name, "last.safetensors"]), draw)
    file, encoding = run / name, "utf-8" if name.endswith(("json", "toml", "csv", "py")) else "latin-1"
    text = file.read_bytes().decode(encoding)
    if draw.random() < 0.05:
        file.write_bytes(text.encode("utf-16"))
        return f"{name} in UTF-16"
    made, said = draw.choice(WAYS[name])(text, draw)
    file.write_bytes(made.encode(encoding, "surrogatepass"))
    return f"{name}: {said}"


def asked(folder: Path, data: str, draw: random.Random) -> list[str]:
    """Damage a run in a copy of its folder, and return what each command says that ends with neither 0 nor 2."""
    wrong = []
    with tempfile.TemporaryDirectory() as place:
        copy = Path(shutil.copytree(folder, Path(place) / "copy"))
        said = damage(copy / "run", draw)
        commands = list(COMMANDS)
        draw.shuffle(commands)
        for command in commands:
            with (
                contextlib.redirect_stderr(io.StringIO()) as errors,
                contextlib.redirect_stdout(io.StringIO()),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")
                code = cli(command.format(copy / "run", copy, copy / data).split())
            if code not in (0, 2):
                wrong.append(f"{said}: {command}: {code}: {errors.getvalue()}")
    return wrong


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        runs = trained(Path(made))
        for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
            for name, data in runs.items():
                for line in asked(Path(made) / name, data, random.Random(f"{name} {seed}")):
                    print(f"{name} {seed}: {line.strip()}", flush=True)
