"""What is generated compiles without a break, for every batch size at once, and `torch.export` takes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.structure import compiled, exported
from tests.zoo.pairs import ARCHITECTURES, pair

# The backend only runs what was traced: breaks and recompilations are dynamo's, and code generation takes minutes.
BACKEND = "eager"
WHOLE = bool(os.environ.get("ONNXGEN_WHOLE_ZOO"))
DEEP = {"resnet50", "efficientnet"}  # of a kind that is here in small, too: resnet18, mobilenet_v3


def architectures() -> Iterator[Any]:
    for name in ARCHITECTURES:
        marks = pytest.mark.skipif(name in DEEP and not WHOLE, reason="only with ONNXGEN_WHOLE_ZOO=1")
        yield pytest.param(name, id=name, marks=marks)


@pytest.mark.parametrize("name", list(architectures()))
def test_compiles_and_exports(name: str, tmp_path: Path) -> None:
    made = pair(name, "legacy", tmp_path)
    assert compiled(made, BACKEND) == ("yes", "0")
    assert exported(made) == "yes"
