"""The README and the pages of docs/ say what is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click

from benchmarks.conformance.page import from_csv
from onnxgen.cli import app as cli
from onnxgen.options import Options
from onnxgen.pipeline import build
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
TRAINING = (ROOT / "docs" / "TRAINING.md").read_text(encoding="utf-8")  # has the options of one command


def test_it_opens_with_the_two_commands() -> None:
    assert [line.split()[:2] for line in README.splitlines()[2:4]] == [["make", "demo"], ["make", "test"]]


def test_the_example_is_what_is_generated() -> None:
    source = build(ROOT / "samples/mnist/mnist.onnx", Options(), Path("model.py")).source
    example = re.search(r"```python\n(class .*?)```", README, re.DOTALL)
    assert example is not None and example[1] in source


def test_every_command_option_and_exit_code_is_there() -> None:
    for name, command in cli.app.commands.items():
        assert name == cli.DEFAULT or f"onnxgen {name} " in README, name
        page = README + TRAINING if name == "train" else README
        for parameter in command.params:
            for option in parameter.opts if isinstance(parameter, click.Option) else []:
                assert re.search(rf"`{re.escape(option)}[` ]", page), f"{name} {option}"
    for code in re.findall(r"^  (\d+) ", cli.EXIT_CODES, re.MULTILINE):
        assert re.search(rf"^\| {code} \|", README, re.MULTILINE), code


def test_every_option_there_is_one() -> None:
    parameters = [p for command in cli.app.commands.values() for p in command.params]
    known = {o for p in parameters for o in (*p.opts, *p.secondary_opts)} | {"--help", "-h", "--version"}
    assert set(re.findall(r"`(--?[a-z][a-z-]*)", README)) <= known
    elsewhere = {"--logdir", "--no-"}  # of tensorboard, and the beginning of several
    assert set(re.findall(r"`(--?[a-z][a-z-]*)", TRAINING)) - elsewhere <= known


def test_the_page_of_operators_is_the_registry() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "operators.py")], capture_output=True, text=True, timeout=120, check=True
    )
    page = (ROOT / "docs" / "OPERATORS.md").read_text(encoding="utf-8")
    assert page == done.stdout, "print it again: python docs/operators.py > docs/OPERATORS.md"


def test_the_page_of_onnxruntimes_operators_names_tests() -> None:
    """Each case that the page calls right is one of a test that the suite runs."""
    rows = from_csv((ROOT / "benchmarks" / "conformance" / "contrib.csv").read_text(encoding="utf-8"))
    named = {tuple(re.split(r"::|\[| #", row.name)[:2]) for row in rows}
    texts = {file: (ROOT / "tests" / "ops" / file).read_text(encoding="utf-8") for file, _ in named}
    gone = [f"{file}::{test}" for file, test in sorted(named) if f"\ndef {test}(" not in texts[file]]
    assert not gone, f"{gone}: write the page again: python -m benchmarks.conformance --contrib --write"


def test_files_that_the_pages_name_exist() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))):
        for name in re.findall(
            r"`((?:onnxgen|tests|docs|samples|benchmarks|templates|build_hooks)/[\w/.]*)`", page.read_text()
        ):
            assert (ROOT / name).exists(), f"{page.name}: {name}"
