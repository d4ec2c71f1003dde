"""What real builds need: wheels, and an environment with them; once a session, however many processes run tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from tests.build_hooks import wheelhouse as wheels
from tests.build_hooks.projects import interpreter, make_venv, pip


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first process of the session fills."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, done = shared / name, shared / f"{name}.done"
    with FileLock(shared / f"{name}.lock"):
        if not done.exists():
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of onnxgen (of this tree), of the backends, and of everything that they need."""
    return once(tmp_path_factory, "wheelhouse", wheels.fill)


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> Path:
    """The interpreter of an environment with all of these installed, and nothing else; for builds without isolation."""

    def make(folder: Path) -> None:
        env = wheels.environment(wheelhouse, folder / "cache")
        pip("--python", make_venv(folder), "install", "onnxgen", *wheels.BACKENDS, cwd=folder, env=env)

    return interpreter(once(tmp_path_factory, "builder", make))
