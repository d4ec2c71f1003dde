"""How many processes there are, where something else started them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from onnxgen.errors import OnnxgenError, counted
from onnxgen.training.settings import Settings


def launched(settings: Settings, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings with as many devices and nodes as torchrun or SLURM started processes for.

    Raises:
        OnnxgenError: other numbers were asked for.
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
    """As Lightning takes it: `srun` with --ntasks-per-node. An interactive shell's variables start nothing."""
    if "SLURM_NTASKS_PER_NODE" not in environment or environment.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return None
    return "SLURM", int(environment["SLURM_NTASKS_PER_NODE"]), int(environment.get("SLURM_NNODES", "1"))
