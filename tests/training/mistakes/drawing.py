"""Draws a mistake in a copy of a world, and asks commands about it."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.training.mistakes import data, modules, options, worlds
from tests.training.mistakes.judge import judged, rest

Tried = tuple[str, int, str]  # the command and what was done, its exit code, and what is wrong with its answer
TRAIN = ("-q", "--workers", "0", "--device", "cpu", "--max-steps", "2", "--logger", "none", "--out", "new")


def _options(world: Path, draw: random.Random) -> Iterator[Tried]:
    (world / "empty.py").write_text("")
    (world / "link").symlink_to("nothing")
    (world / "loop").symlink_to("loop")
    command = options.drawn(world.name, worlds.DATA[world.name], worlds.GIVEN, draw)
    yield (rest(command), *judged(command, world))


def _data(world: Path, draw: random.Random) -> Iterator[Tried]:
    name = draw.choice(worlds.DATA[world.name])
    said = data.fault(world / name, draw)
    if draw.random() < 0.2 and (world / name).exists():
        said += f"; {data.fault(world / name, draw)}"
    commands = [["train", "small.py", "--data", name, *worlds.GIVEN.get(world.name, ()), *TRAIN]]
    if draw.random() < 0.2:
        commands[0].append("--strict")
    if (world / "run").exists() and draw.random() < 0.4:
        commands += [
            ["evaluate", "run", "--data", name, "--device", "cpu"],
            ["predict", "run", name, "--device", "cpu"],
        ]
    for command in commands:
        code, wrong = judged(command, world)
        yield f"{said!r}: {rest(command)}", code, wrong


def _modules(world: Path, draw: random.Random) -> Iterator[Tried]:
    said = modules.edit(world, draw)
    given = [*worlds.GIVEN.get(world.name, ()), *TRAIN]
    commands = [
        ["train", "small.py", "--data", worlds.DATA[world.name][0], *given],
        ["verify", "small.onnx", "small.py"],
        ["export", "small.py", "-o", "new.onnx"],
        ["small.onnx", "-o", "small.py"],
        ["evaluate", "run", "--device", "cpu"],
        ["predict", "run", worlds.DATA[world.name][0], "--device", "cpu"],
        ["export", "run", "-o", "run.onnx"],
    ]
    for command in draw.sample(commands[: None if (world / "run").exists() else 4], 3):
        code, wrong = judged(command, world, modules.THEIRS)
        yield f"{said!r}: {rest(command)}", code, wrong


DRAW: dict[str, Callable[[Path, random.Random], Iterator[Tried]]] = {
    "options": _options,
    "data": _data,
    "modules": _modules,
}


def tried(kind: str, world: Path, draw: random.Random) -> Iterator[Tried]:
    """Draw a mistake in a copy of a world's folder, and yield how each command answers it."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "in" / world.name
        shutil.copytree(world, copy)
        yield from DRAW[kind](copy, draw)
