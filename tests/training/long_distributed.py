"""Several processes on one machine with every strategy and launcher, and two nodes (network namespaces).

They train the same weights as one process with the global batch, also when they are stopped or killed meanwhile.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.training import counted
from tests.training.nodes import FIRST, NETWORK, two_machines
from tests.training.processes import RUNS, Job, difference, environment, finish, first_alone_wrote, free_port, match
from tests.training.test_counted import by_hand
from tests.training.test_fit import Seen


@pytest.mark.parametrize("name", ["torchrun", "fsdp"])
def test_several_processes_match_one_process(name: str, job: Job) -> None:
    match(job, name)


def test_only_the_first_process_of_torchrun_writes(job: Job) -> None:
    first_alone_wrote(job, "torchrun")


def test_five_steps_of_fsdp_match_ddp(job: Job) -> None:
    assert difference(job.run("fsdp, 5 steps"), job.run("ddp, 5 steps")) < 1e-5
    assert difference(job.run("fsdp, 5 steps"), job.run("fsdp")) > 1e-3, "the sixth step changed nothing"


def test_a_stopped_fsdp_run_resumes_and_returns_whole_models(job: Job, tmp_path: Path) -> None:
    """The run is stopped in the first epoch, before there is a best one, and in the second."""
    out, given = tmp_path / "out", RUNS["fsdp"][1]
    for more in ({"stop_at": 0}, {"stop_at": 3, "resume": True}, {"resume": True}):
        finish(job.command(out, given | more), tmp_path)
        kept = load_file(out / ("last.safetensors" if more == {"stop_at": 0} else "best.safetensors"))
        for rank in range(2):
            handed_back = load_file(out / f"result{rank}.safetensors")
            assert handed_back.keys() == kept.keys()
            assert all(torch.equal(handed_back[key], kept[key]) for key in kept)
        assert (out / "end.safetensors").exists() == ("stop_at" not in more)
    assert difference(out, job.run("fsdp")) == 0


# ---- two nodes -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[str, str]]:
    with two_machines() as names:
        yield names


def start(job: Job, out: Path, nodes: tuple[str, str], given: dict[str, Any]) -> list[subprocess.Popen[str]]:
    """Start torchrun on each node, with one process each."""
    started = []
    for rank, name in enumerate(nodes):
        launcher = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(rank)]
        launcher += ["--master-addr", FIRST, "--master-port", "29511"]
        args = ["ip", "netns", "exec", name, *job.command(out, given, *launcher)]
        more = environment(**NETWORK)
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(args, env=more, start_new_session=True, **pipes))
    return started


@pytest.fixture(scope="module")
def two_nodes(job: Job, nodes: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on both nodes."""
    out = tmp_path_factory.mktemp("nodes") / "out"
    ended(start(job, out, nodes, {"batch_size": 8}))
    return out


def ended(processes: list[subprocess.Popen[str]]) -> None:
    """Wait for processes that must succeed."""
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)


def test_two_nodes_match_one_process(job: Job, two_nodes: Path) -> None:
    assert difference(two_nodes, job.run("one")) < 1e-5


def test_a_killed_node_resumes_from_the_checkpoint(
    job: Job, two_nodes: Path, nodes: tuple[str, str], tmp_path: Path
) -> None:
    """Both nodes are started again, and end like nodes that were not killed."""
    out, given = tmp_path / "out", {"batch_size": 8, "checkpoint_minutes": 0}
    processes = start(job, out, nodes, given | {"wait_at": 4})  # of six steps: it is killed while it trains
    checkpoint, deadline = out / "checkpoints" / "last.ckpt", time.monotonic() + 120
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in reversed(processes):  # one node fails, and the job with it
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert 0 < torch.load(checkpoint, weights_only=True)["global_step"] <= 4
    ended(start(job, out, nodes, given | {"resume": True}))
    assert difference(out, two_nodes) == 0


@pytest.mark.parametrize("task", ["tokens", "tags", "pixels"])
def test_two_processes_weigh_targets_that_count(task: str, tmp_path: Path) -> None:
    """Steps of four batches: two of each process. The oracle trains with one large batch for each step."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    finish([sys.executable, *launch, "-m", "tests.training.counted", task, str(tmp_path)], tmp_path)
    seen = Seen()
    counted.train(task, tmp_path / "one", seen, batch_size=16)
    for name, value in by_hand(task, seen.batches, 1, 2).items():
        torch.testing.assert_close(load_file(tmp_path / "end.safetensors")[name], value, rtol=1e-6, atol=1e-6)
