"""Drawn mutations of generated files (see `drawn`), and what such drawings and random graphs once found."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxgen.options import Options
from tests.validate.drawn import holes, of_seed


@pytest.mark.parametrize("seed", [2, 5, 6, 15, 349])
def test_no_mutant_is_let_pass(seed: int, tmp_path: Path) -> None:
    given = of_seed(seed, tmp_path)
    assert given is not None
    refused, _, wrong = holes(given, seed, 50)
    assert refused and not wrong, wrong[0]


@pytest.mark.parametrize(("seed", "flat"), [(28, False), (32, False), (293, True)])
def test_what_random_graphs_found(seed: int, flat: bool, tmp_path: Path) -> None:
    """Values called as modules of torch are; submodules reached by their names; a layer that has a layer below it."""
    given = of_seed(seed, tmp_path, Options(flat=flat))
    assert given is not None and not given.refused(given.source)
