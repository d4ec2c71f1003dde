"""Every command and every block of Python of every page runs, in the order of the page, in a folder of its own.

A page finds the files that it speaks of (`given.py`). Trainings end after two steps, and a range test after
forty. Pictures of most pages are not drawn. Nothing else is changed.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import click
import pytest
import tomllib
import torch

import onnxgen.training
from onnxgen.cli import app as cli
from onnxgen.cli import run
from onnxgen.cli.group import DEFAULT
from tests.conftest import ROOT
from tests.docs.blocks import COMMAND, KINDS, Block, blocks, indented
from tests.docs.given import give, objects
from tests.training.sketches import sketched

# What a command writes (docs/*.py, benchmarks), or mkdocstrings; it shows generated code, and the commands below.
PRINTED = {"API.md", "API_TRAINING.md", "CONFORMANCE.md", "CONTRIB.md", "GALLERY.md", "OPERATORS.md"}
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in PRINTED),
    *sorted((ROOT / "samples").glob("*/README.md")),
]

# What a page speaks of and does not make, and the folder in which its commands are typed, if that is not the root.
GIVEN = {
    "README.md": "samples photos",
    "docs/BUILDING.md": "project",
    "docs/CHECKPOINTS.md": "runs/digits",
    "docs/CONVERT.md": "mnist.onnx bert.onnx speech.onnx",
    "docs/DATA.md": "model.py bert.py text.npz detector.py boxes.npz "
    "tokenizer.json reader.py tagger.py writer.py reviews.csv pairs.csv sentences.jsonl book.txt "
    "| model.py people.py people.csv waves.py listener.py calls shards",
    "docs/DEVICES.md": "model.py",
    "docs/DIFF.md": "mnist.onnx",
    "docs/EDITING.md": "model.py mine.safetensors",
    "docs/EVALUATE.md": "runs/digits three.png",
    "docs/EXPORT.md": "runs/digits three.png",
    "docs/EXTENDING.md": "acme.onnx",
    "docs/FINETUNING.md": "model.py mnist.onnx | model.py mnist-int8.onnx teacher.onnx unlabelled",
    "docs/GETTING_STARTED.md": "samples",
    "docs/LARGE_MODELS.md": "llm.onnx mnist.onnx",
    "docs/QUANTIZED.md": "mnist-int8.onnx",
    "docs/RUNS.md": "mnist.onnx photos photos2 three.png seven.png",
    "docs/SHIP.md": "runs/digits",
    "docs/TASKS.md": "goals goals/tokenizer.json goals/minilm.py goals/sts.csv goals/questions.csv goals/new_pairs.csv "
    "| goals goals/mnist.onnx goals/yolov8n.onnx goals/shapes goals/tokenizer.json "
    "goals/writer.onnx goals/book.txt goals/prompts.txt",
    "docs/TRAINING.md": "mnist.onnx photos three.png",
    "docs/VERIFY.md": "model.py",
    "samples/deploy/README.md": "samples",
    "samples/lightning_module/README.md": "samples",
    "samples/mnist/README.md": "samples",
    "samples/plugin/README.md": "samples",
    "samples/tasks/README.md": "tasks | tasks",
    "samples/text/README.md": "texts",
}
# Long pages in two parts, each in a folder of its own: the command that the second begins with, which uses nothing of
# the first. What is given to the second stands behind a `|`.
CUT = {
    "docs/DATA.md": "onnxgen train people.py",
    "docs/FINETUNING.md": "onnxgen mnist-int8.onnx",
    "docs/TASKS.md": "onnxgen yolov8n.onnx",
    "samples/tasks/README.md": "onnxgen words.onnx",
}
TYPED_IN = {f"samples/{name}/README.md": f"samples/{name}" for name in ("lightning_module", "mnist")}
TYPED_IN |= {"samples/tasks/README.md": "tasks", "samples/text/README.md": "texts", "docs/TASKS.md": "goals"}

# What is not run: a pattern of a command, or of a block that is no shell, and why.
NOT_RUN = {
    r"pip (install|wheel) ": "needs the network",
    r"make (demo|test|long|slowest|docs)\b": "sets up an environment from the network; CI runs them",
    r"(?s)py -3.11 .*": "Windows",
    r"onnxgen train .* --device (cuda:1|ocl:0)": "needs the device",
    r"python -m samples.captcha.draw": "needs a package that no extra names",
    r"python -m tests.bombs --count 100": "takes minutes; tests/bombs runs a short part",
    r"layer = b\.module\(": "two lines out of functions; samples/plugin/ops has these functions whole",
}

# What another test runs, and that test: a whole page, or what matches.
ELSEWHERE = {
    ("CONTRIBUTING.md", r"(?s)\s*(@|_to|\(|python ).*"): "tests/whole/test_contributing.py",
    ("docs/USES.md", r"(?s).*"): "tests/whole/test_uses.py",
    ("docs/BUILDING.md", r"from setuptools import setup"): "tests/build_hooks/test_setuptools_layouts.py",
    ("docs/TESTING.md", r"python -m pytest tests/zoo/test_zoo.py"): "tests/zoo/test_zoo.py",
    ("samples/captcha/README.md", r"python -m samples.captcha.train"): "tests/training/test_samples.py",
    ("samples/fashion/README.md", r"python -m samples.fashion.train"): "tests/training/test_samples.py",
    ("samples/fully_connected/README.md", r".*"): "tests/training/test_samples.py",
    ("samples/detection/README.md", r"python samples/detection/tune.py"): "tests/training/detection/test_goal.py",
    ("samples/lora/README.md", r"python tune.py"): "tests/training/test_sample_lora.py",
    ("samples/mnist/README.md", r"python -m samples.mnist.train|onnxgen (tr|exp)"): "tests/training/test_samples.py",
    ("samples/package/README.md", r"python -m digits"): "tests/build_hooks/long_sample_package.py",
    ("samples/plugin/README.md", r"python samples/plugin/tune.py"): "tests/plugins/test_sample.py",
    ("samples/text/README.md", r"python -m samples.text.train"): "tests/training/test_samples.py",
    ("samples/speed/README.md", r"python -m samples.speed.run"): "tests/training/long_speed.py",
}  # fmt: skip


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def left_out(page: str, code: str) -> bool:
    patterns = [*NOT_RUN, *(pattern for (name, pattern) in ELSEWHERE if name == page)]
    return any(re.match(pattern, code) for pattern in patterns)


DRAWN = {"docs/RUNS.md"}  # pages whose pictures are drawn; see `sketched`


@pytest.fixture
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in. Modules of other tests' folders are forgotten before, and its own at the end."""
    _forget(str(tmp_path_factory.getbasetemp()))
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    monkeypatch.delitem(sys.modules, "onnxgen.importer", raising=False)  # its import installs a finder, once
    monkeypatch.delitem(sys.modules, "model", raising=False)  # another test's
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ONNXGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("onnxgen.training.recipes.find_lr.STEPS", 40)
    monkeypatch.setattr("onnxgen.training.fit", functools.partial(onnxgen.training.fit, max_steps=2))
    path = sys.path[:]
    yield tmp_path
    sys.path[:] = path
    _forget(str(tmp_path))


def _forget(folder: str) -> None:
    for name, module in list(sys.modules.copy().items()):
        places = [vars(module).get("__file__")]
        with suppress(KeyError):  # a namespace whose parent is gone
            places = places if places[0] else [*vars(module).get("__path__", ())]
        if places and all(str(place).startswith(folder) for place in places):
            del sys.modules[name]


def parts() -> list[Any]:
    """Each page as a parameter, or each part of a page that is cut: its name and its blocks."""
    found = []
    for page in PAGES:
        name, whole = name_of(page), blocks(page)
        begins = [0, *(i for i, block in enumerate(whole) if name in CUT and block.text.startswith(CUT[name]))]
        assert len(begins) == 1 + (name in CUT), name
        for number, begin in enumerate(begins):
            part = whole[begin : begins[number + 1]] if number + 1 < len(begins) else whole[begin:]
            found.append(pytest.param(name, part, GIVEN.get(name, "").split("|")[number], id=name + "'" * number))
    return found


@pytest.mark.parametrize(("name", "part", "given"), parts())
def test_commands(name: str, part: list[Block], given: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nullcontext() if name in DRAWN else sketched():
        _follow(name, part, given, folder, monkeypatch)


def _follow(name: str, part: list[Block], given: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in given.split():
        give(folder / file)
    monkeypatch.chdir(folder / TYPED_IN.get(name, ""))
    monkeypatch.syspath_prepend(str(Path.cwd()))
    space: dict[str, Any] = {**objects(), "__name__": "page", "__file__": str(Path.cwd() / "page.py")}
    for block in part:
        if block.kind == "sh":
            for command in block.commands():
                if not left_out(name, command):
                    typed(command, monkeypatch)
        elif block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.kind in ("toml", "json"):
            assert (tomllib if block.kind == "toml" else json).loads(block.text)
        elif block.kind == "python" and not left_out(name, block.text) and not is_generated(block):
            torch.manual_seed(0)
            exec(compile(block.text, space["__file__"], "exec", dont_inherit=True), space)


def is_generated(block: Block) -> bool:
    """The page shows a part of a module that it has generated."""
    lines = [line.strip() for line in block.text.splitlines()]
    text = "\n".join(lines)
    return any(
        text in "\n".join(line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        for path in Path().glob("*.py")
    )


def typed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one command, in this process if it is onnxgen's or Python's."""
    if command.startswith("if "):
        shell = f'onnxgen() {{ echo onnxgen "$@"; }}\n{command}'
        command = subprocess.run(["sh", "-ec", shell], capture_output=True, text=True, check=True).stdout
    stated = re.search(r"# exit code (\d+)", command)
    words = shlex.split(command, comments=True)
    if words[0] == "onnxgen":
        limit = ["--max-steps", "2"] if words[1] == "train" and "--resume" not in words else []
        assert run([*words[1:], *limit]) == int(stated[1] if stated else 0), command
    elif words[0] == "python":
        monkeypatch.setattr(sys, "argv", words[1:])
        monkeypatch.syspath_prepend(str(Path(words[1]).resolve().parent))
        runpy.run_path(words[1], run_name="__main__")
    else:
        subprocess.run(words, check=True)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_block_says_what_it_is(page: Path) -> None:
    """No command hides in a block that is not run; each word in prose that looks like a command is one."""
    assert not indented(page)
    found = blocks(page)
    assert {block.kind for block in found} <= KINDS
    shown = [line for block in found if block.kind == "text" for line in block.text.splitlines() if COMMAND.match(line)]
    assert all(re.search(r"\[|[A-Z]{4}", line) for line in shown), "a synopsis has brackets or words in capitals"


def test_what_is_left_out_is_there() -> None:
    """No row of the tables is about nothing; the test that is named runs what the page says."""
    every = {
        name_of(page): [c for b in blocks(page) for c in (b.commands() if b.kind == "sh" else [b.text])]
        for page in PAGES
    }
    codes = [code for of_page in every.values() for code in of_page]
    assert all(any(re.match(pattern, code) for code in codes) for pattern in NOT_RUN)
    assert all(any(re.match(pattern, code) for code in every[page]) for page, pattern in ELSEWHERE)
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())
    assert set(GIVEN) | set(TYPED_IN) <= set(every)


def test_commands_in_prose() -> None:
    """A command in a line or a table has options that exist; a module that `python -m` names is there."""
    for page in (*PAGES, *(ROOT / "docs" / name for name in PRINTED), *(ROOT / "benchmarks").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        modules = set(re.findall(r"python -m (\w+(?:\.\w+)*)", text)) - {"digits"}  # of a package that is installed
        assert not [name for name in modules if importlib.util.find_spec(name) is None], page.name
        for line in re.findall(r"`onnxgen ([^`]+)`", text):
            words = line.split()
            command = cli.app.commands[words[0] if words[0] in cli.app.commands else DEFAULT]
            known = {o for p in command.params if isinstance(p, click.Option) for o in (*p.opts, *p.secondary_opts)}
            options = {word.split("=")[0] for word in words if word.startswith("-")}
            assert options <= {*known, "-h", "--help", "--version"}, (page.name, line)
