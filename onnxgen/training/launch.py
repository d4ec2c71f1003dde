"""Reads from the environment how many processes torchrun, SLURM or Kubernetes started, and which this one is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from onnxgen.errors import OnnxgenError, counted
from onnxgen.training.runs.folder import CHECKPOINT_FILES, CHECKPOINTS, RUNS
from onnxgen.training.settings import Settings

_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK", "GROUP_RANK")
_PODS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")  # of Kubeflow's PyTorchJob: a process in each pod


class Lost(OnnxgenError):
    """Another process of the run ended, or can't be reached. The job may be started again."""

    exit_code = 75  # of a failure that may pass (EX_TEMPFAIL of sysexits.h)


def launched(settings: Settings, environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings with the numbers of devices and nodes for which a launcher started processes.

    Raises:
        OnnxgenError: the settings ask for other numbers; or without a launcher, they ask for several nodes, and the
            environment does not say which one this is, and where the first one is.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        launcher, devices = "torchrun", int(environment["LOCAL_WORLD_SIZE"])
        nodes, rest = divmod(int(environment["WORLD_SIZE"]), devices)
        if rest:
            raise OnnxgenError("torchrun started different numbers of processes on its nodes")
    # Lightning's rule: an interactive shell on SLURM starts no processes.
    elif "SLURM_NTASKS" in environment and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        launcher, tasks = "SLURM", int(environment["SLURM_NTASKS"])
        nodes = int(environment.get("SLURM_NNODES", "1"))
        devices = int(environment.get("SLURM_NTASKS_PER_NODE", tasks if tasks == 1 else 0))
        if tasks != devices * nodes:  # Lightning needs the number for each node
            what = f"SLURM started {counted(tasks, 'process')} on {counted(nodes, 'node')}"
            raise OnnxgenError(what, help="start them with --nodes and --ntasks-per-node, and not with --ntasks")
    elif in_pods(environment):
        launcher, devices, nodes = "Kubernetes", 1, int(environment["WORLD_SIZE"])
    else:
        _check_nodes(settings.nodes, environment)
        return settings
    asked = (settings.devices, settings.nodes)
    if asked not in ((1, 1), (devices, nodes)):
        there = f"{counted(devices, 'process')} on each of {counted(nodes, 'node')}"
        what = f"{launcher} started {there}, not {asked[0]} on {asked[1]}"
        raise OnnxgenError(what, help="leave out --devices and --nodes")
    return replace(settings, devices=devices, nodes=nodes)


def in_pods(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if this is the process of a pod, by the variables of Kubeflow's PyTorchJob."""
    ours = {"TORCHELASTIC_RUN_ID", "LOCAL_RANK"} & environment.keys()  # also of processes that Lightning started
    return not ours and all(name in environment for name in _PODS) and int(environment["WORLD_SIZE"]) > 1


def _check_nodes(nodes: int, environment: Mapping[str, str]) -> None:
    """Refuse what would train alone on each node, or wait for the others for ever."""
    rank = environment.get("NODE_RANK", environment.get("GROUP_RANK"))
    if rank is not None and int(rank) >= nodes:
        what = f"NODE_RANK is {rank}, but --nodes is {nodes}"
        raise OnnxgenError(what, help="--nodes N, the number of machines, the same on each; the first one is 0")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environment]
    if nodes > 1 and (missing := missing + ([] if rank is not None else ["NODE_RANK"])):
        what = f"--nodes {nodes}, but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
        way = "set MASTER_ADDR and MASTER_PORT (of the first machine), and NODE_RANK; or start with torchrun or srun"
        raise OnnxgenError(what, help=way)


def first_process(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True for the first of all processes of a run. Only this one prints and writes."""
    return all(environment.get(name, "0") == "0" for name in _RANKS)


def restarted(settings: Settings) -> Settings:
    """Return the settings of a command that may be started again: it goes on if there is a checkpoint.

    All processes decide alike, since no checkpoint is written before all of them have begun.

    Raises:
        OnnxgenError: no folder of the run is given.
    """
    if not settings.restartable or settings.resume:
        return settings
    if settings.out == RUNS:
        raise OnnxgenError("--restartable needs the folder of the run", help="--out FOLDER")
    return replace(settings, resume=any((settings.out / CHECKPOINTS / name).exists() for name in CHECKPOINT_FILES))
