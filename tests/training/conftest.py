"""A sample's script, run in the test's own process; a network that one process trains, and several."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from onnxgen.cli import run

if TYPE_CHECKING:
    from tests.training.processes import Job

Sample = Callable[..., list[list[str]]]

DRAWN = ("test_report",)  # what pictures look like


@pytest.fixture(scope="module", autouse=True)
def pictures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pictures of runs are drawn where they are the subject; elsewhere a few pixels stand for what is on them."""
    from tests.training.sketches import sketched  # here: it imports matplotlib, which few tests need

    drawn = request.module.__name__.rpartition(".")[2].startswith((*DRAWN, "long_"))
    with nullcontext() if drawn else sketched():
        yield


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    """What is installed is read once: Lightning asks for it in each training, and so do we for plugins of devices."""
    from lightning.fabric.utilities import registry

    from onnxgen.training.devices import probe

    with pytest.MonkeyPatch.context() as patch:
        for module in (registry, probe):
            patch.setattr(module, "entry_points", found)
        yield


@pytest.fixture(scope="module", autouse=True)
def unflushed() -> Iterator[None]:
    """No file waits for the disk: no test of this process is about what a power cut leaves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which refuses what is no open file, too
        yield


@cache
def found(group: str) -> EntryPoints:
    return entry_points(group=group)


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sample:
    """Return a function that runs a sample's script in this process, and returns the cells of its final table."""

    def command(*arguments: object) -> None:
        assert run([str(a) for a in arguments]) == 0

    def script(module: ModuleType, *arguments: object) -> list[list[str]]:
        monkeypatch.setattr(module, "onnxgen", command)
        monkeypatch.setattr(sys, "argv", ["script", *map(str, arguments)])
        capsys.readouterr()
        module.main()
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    return script


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A network with data for it; each way to train it runs once."""
    from tests.training.processes import Job  # here: it imports Lightning, which few tests need

    return Job(tmp_path_factory.mktemp("job"))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that does in this process what `python FILE ...` does, and returns what it prints."""

    def ran(file: Path, *arguments: object) -> str:
        monkeypatch.syspath_prepend(file.parent)
        monkeypatch.setattr(sys, "argv", [str(file), *map(str, arguments)])
        capsys.readouterr()
        before = {*sys.modules}
        try:
            runpy.run_path(str(file), run_name="__main__")
        finally:
            for name in {*sys.modules} - before:  # other samples have files of the same names
                if (file.parent / f"{name}.py").exists():
                    del sys.modules[name]
        return capsys.readouterr().out

    return ran
