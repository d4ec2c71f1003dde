from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where quantised files are made, each when it is first asked for."""
    return tmp_path_factory.mktemp("quantised")
