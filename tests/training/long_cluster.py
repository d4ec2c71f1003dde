"""Training on two machines in each way that clusters start it; one is killed, and the job is started again.

The machines are network namespaces. There is no SLURM and no Kubernetes: their variables are set as these set them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.nodes import FIRST, NETWORK, two_machines
from tests.training.processes import Job, difference, environment, rows

PORT = "29531"
GIVEN = {"batch_size": 8, "checkpoint_minutes": 0, "restartable": True, "wait_at": 4, "wait_rank": 1}  # of six steps
Way = Callable[[int], tuple[list[str], dict[str, str]]]  # the launcher and the variables of a machine


def torchrun(rank: int) -> tuple[list[str], dict[str, str]]:
    """Its processes are started again by torchrun itself, when the other machine has come back.

    Without the variable a machine that comes back waits for the others in vain (pytorch/pytorch#135712).
    """
    meeting = [
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"{FIRST}:{PORT}",
        "--rdzv-id",
        "job",
        "--max-restarts",
        "3",
    ]
    # The names of these machines are in no DNS, so torchrun can't find out which one it is on.
    here = ["--local-addr", f"10.77.0.{rank + 1}", "--rdzv-conf", f"is_host={1 - rank}"]
    return ["--nnodes", "2", "--nproc-per-node", "1", *meeting, *here], {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def srun(rank: int) -> tuple[list[str], dict[str, str]]:
    """What srun sets in each task: `srun --nodes 2 --ntasks-per-node 1`."""
    tasks = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "train"}
    this = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": "0", "SLURM_NODEID": str(rank), "SLURM_JOB_ID": "4711"}
    return [], {**tasks, **this, "SLURM_NODELIST": f"{FIRST},10.77.0.2"}


def pods(rank: int) -> tuple[list[str], dict[str, str]]:
    """What Kubeflow sets in each pod of a PyTorchJob."""
    return [], {"MASTER_ADDR": FIRST, "MASTER_PORT": PORT, "RANK": str(rank), "WORLD_SIZE": "2"}


def plain(rank: int) -> tuple[list[str], dict[str, str]]:
    """What an Indexed Job sets for Lightning."""
    return [], {"MASTER_ADDR": FIRST, "MASTER_PORT": PORT, "NODE_RANK": str(rank)}


WAYS: dict[str, tuple[Way, dict[str, Any]]] = {
    "torchrun": (torchrun, {}),
    "srun": (srun, {}),
    "pods": (pods, {}),
    "plain": (plain, {"nodes": 2}),
}


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[str, str]]:
    with two_machines() as names:
        yield names


def start(job: Job, out: Path, machine: str, rank: int, way: Way, given: dict[str, Any]) -> subprocess.Popen[str]:
    launcher, variables = way(rank)
    # A parent of its own, as srun or the kubelet is: the process ends with it.
    args = ["ip", "netns", "exec", machine, "sh", "-c", '"$@"; exit $?', "sh", *job.command(out, given, *launcher)]
    with open(out.parent / f"{rank}.log", "a") as log:
        more = environment(**NETWORK, **variables)
        return subprocess.Popen(args, env=more, stdout=log, stderr=log, text=True, start_new_session=True)


def kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def said(folder: Path) -> str:
    return "".join((folder / f"{rank}.log").read_text() for rank in range(2))


@pytest.mark.parametrize("name", WAYS)
def test_a_killed_machine_comes_back(name: str, job: Job, machines: tuple[str, str], tmp_path: Path) -> None:
    """The run ends with the weights and the curve of one that was not disturbed."""
    way, more = WAYS[name]
    out, given = tmp_path / "out", GIVEN | more
    running = [start(job, out, machine, rank, way, given) for rank, machine in enumerate(machines)]
    try:
        checkpoint, deadline = out / "checkpoints" / "last.ckpt", time.monotonic() + 120
        while not checkpoint.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert checkpoint.exists(), said(tmp_path)
        assert 0 < torch.load(checkpoint, weights_only=True)["global_step"] <= 4
        kill(running[1])
        if name != "torchrun":  # it ends, and the scheduler starts both again
            assert running[0].wait(60) != 0
            running[0] = start(job, out, machines[0], 0, way, given)
        running[1] = start(job, out, machines[1], 1, way, given)
        assert [process.wait(120) for process in running] == [0, 0], said(tmp_path)
    finally:
        for process in running:
            kill(process)
    assert difference(out, job.run("one")) < 1e-5
    np.testing.assert_allclose(rows(out), rows(job.run("one")), rtol=1e-4, atol=1e-6)
    assert "continuing after step" in said(tmp_path) and "Lost: another process" in said(tmp_path)
