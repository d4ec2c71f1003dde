"""Whole files as a person wrote them again, by hand: in `rewritten`, each beside the network that it is."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

import onnxgen
from tests.canonical.networks import NETWORKS
from tests.support.exported import exported

REWRITTEN = Path(__file__).with_name("rewritten")


@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_that_was_written_again_by_hand_is_proved(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]
    axes = None if network.axes is None else {0: network.axes}
    model = network.make().train(network.case.endswith("train"))
    onnx.save(exported(model, network.inputs(), network.case, axes), tmp_path / "net.onnx")
    proof = onnxgen.prove(tmp_path / "net.onnx", REWRITTEN / f"{name}.py", runs=1)
    assert (proof.verdict, proof.why, proof.places) == ("proved", "", [])
