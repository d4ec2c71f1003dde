"""A simulated DirectML device, and the command that lists simulated devices; each takes a process of its own."""

from __future__ import annotations

from pathlib import Path

from tests.training.standin.started import child, matches_the_cpu, simulating


@simulating
def test_a_fit_on_simulated_directml_matches_the_cpu(tmp_path: Path) -> None:
    matches_the_cpu(tmp_path, "directml", "privateuseone", ["foreach"])


@simulating
def test_the_command_lists_simulated_devices(tmp_path: Path) -> None:
    said = child(tmp_path, "-m", "onnxgen", "devices", "--json", "--import", "simulated_ocl")
    assert [(d["device"], d["self_test"]) for d in said] == [("ocl:0", "ok"), ("cpu", "ok")]
    assert "recurrent" in said[1]["works"] and "recurrent" not in said[0]["works"]
