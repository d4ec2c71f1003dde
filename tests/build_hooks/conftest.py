"""What real builds need: wheels, and an environment with them; once a session, however many processes run tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build_hooks import wheelhouse as wheels
from tests.build_hooks.projects import interpreter, make_venv


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of onnxgen (of this tree), of the backends, and of everything that they need."""
    ours = wheels.ours(tmp_path_factory)
    return wheels.once(tmp_path_factory, "wheelhouse", lambda folder: wheels.fill(folder, ours))


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with all of these, and nothing else; for builds without isolation."""
    ours = wheels.ours(tmp_path_factory)

    def make(folder: Path) -> None:
        make_venv(folder)
        wheels.link(ours, next(folder.rglob("site-packages")))

    return interpreter(wheels.once(tmp_path_factory, "builder", make))
