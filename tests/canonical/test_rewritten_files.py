"""Whole files of other networks as a person wrote them again, by hand: `rewritten/real` and `rewritten/zoo`."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxgen
from tests.canonical.sources import OURS, REAL, written

REWRITTEN = Path(__file__).with_name("rewritten")
NOT_YET = frozenset(
    """
    """.split()
)


def hold(model: Path, module: Path) -> None:
    proof = onnxgen.prove(model, module, runs=1)
    if module.stem in NOT_YET:
        assert proof.verdict == "not proved"
    else:
        assert (proof.verdict, proof.why, proof.places) == ("proved", "", [])


@pytest.mark.parametrize("name", sorted(REAL))
def test_a_real_file_that_was_written_again_is_proved(name: str, shared: Path) -> None:
    hold(shared / "models" / REAL[name], REWRITTEN / "real" / f"{name}.py")


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_network_that_was_written_again_is_proved(name: str, tmp_path: Path) -> None:
    written(name, tmp_path / "net.onnx")
    hold(tmp_path / "net.onnx", REWRITTEN / "zoo" / f"{name}.py")
