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
    if "TORCHELASTIC_RUN_ID" in environment:
        launcher, devices = "torchrun", int(environment["LOCAL_WORLD_SIZE"])
        nodes, rest = divmod(int(environment["WORLD_SIZE"]), devices)
        if rest:
            raise OnnxgenError("torchrun started different numbers of processes on its nodes")
    # Lightning's rule: an interactive shell on SLURM starts no processes.
    elif "SLURM_NTASKS_PER_NODE" in environment and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        launcher, devices = "SLURM", int(environment["SLURM_NTASKS_PER_NODE"])
        nodes = int(environment.get("SLURM_NNODES", "1"))
    else:
        return settings
    asked = (settings.devices, settings.nodes)
    if asked not in ((1, 1), (devices, nodes)):
        there = f"{counted(devices, 'process')} on each of {counted(nodes, 'node')}"
        what = f"{launcher} started {there}, not {asked[0]} on {asked[1]}"
        raise OnnxgenError(what, help="leave out --devices and --nodes")
    return replace(settings, devices=devices, nodes=nodes)
