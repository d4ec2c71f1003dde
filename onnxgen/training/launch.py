"""Reads from the environment how many processes torchrun or SLURM started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from onnxgen.errors import OnnxgenError, counted
from onnxgen.training.settings import Settings


def launched(settings: Settings, environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings with the numbers of devices and nodes for which torchrun or SLURM started processes.

    Raises:
        OnnxgenError: the settings ask for other numbers.
    """
    found = _torchrun(environment) or _slurm(environment)
    if found is None:
        return settings
    launcher, devices, nodes = found
    asked = (settings.devices, settings.nodes)
    if asked not in ((1, 1), (devices, nodes)):
        there = f"{counted(devices, 'process')} on each of {counted(nodes, 'node')}"
        what = f"{launcher} started {there}, not {asked[0]} on {asked[1]}"
        raise OnnxgenError(what, help="leave out --devices and --nodes")
    return replace(settings, devices=devices, nodes=nodes)


def _torchrun(environment: Mapping[str, str]) -> tuple[str, int, int] | None:
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    local, world = int(environment["LOCAL_WORLD_SIZE"]), int(environment["WORLD_SIZE"])
    if world % local:
        raise OnnxgenError("torchrun started different numbers of processes on its nodes")
    return "torchrun", local, world // local


def _slurm(environment: Mapping[str, str]) -> tuple[str, int, int] | None:
    """Return what `srun --ntasks-per-node` started, by the same rule as Lightning; None in an interactive shell."""
    if "SLURM_NTASKS_PER_NODE" not in environment or environment.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return None
    return "SLURM", int(environment["SLURM_NTASKS_PER_NODE"]), int(environment.get("SLURM_NNODES", "1"))
