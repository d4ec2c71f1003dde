"""What is generated compiles without a break, for every batch size at once, and `torch.export` takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.structure import compiled, exported
from tests.zoo.pairs import ARCHITECTURES, pair

# The backend only runs what was traced: breaks and recompilations are dynamo's, and code generation takes minutes.
BACKEND = "eager"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_compiles_and_exports(name: str, tmp_path: Path) -> None:
    made = pair(name, "legacy", tmp_path)
    assert compiled(made, BACKEND) == ("yes", "0")
    assert exported(made) == "yes"
