"""The wheels that real builds install from, made once a session, however many processes run tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from tests.build_hooks import wheelhouse as wheels


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of onnxgen (of this tree), of the backends, and of everything that they need."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, done = shared / "wheelhouse", shared / "wheelhouse.done"
    with FileLock(shared / "wheelhouse.lock"):
        if not done.exists():
            folder.mkdir()
            wheels.fill(folder)
            done.touch()
    return folder
