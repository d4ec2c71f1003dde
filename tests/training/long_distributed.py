"""Several processes on one machine with every strategy and launcher, and two nodes (network namespaces).

They train the same weights as one process with the global batch, also when they are stopped or killed meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.training.processes import RUNS, Job, difference, environment, finish, first_alone_wrote, match


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
    """Two connected network namespaces, 10.77.0.1 and 10.77.0.2."""
    ip = shutil.which("ip")
    names = (f"onnxgen{os.getpid()}a", f"onnxgen{os.getpid()}b")
    if ip is None or subprocess.run([ip, "netns", "add", names[0]], capture_output=True).returncode:
        pytest.skip("making network namespaces needs iproute2 and CAP_NET_ADMIN")
    try:
        cable = ["link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1]]
        subprocess.run([ip, "netns", "add", names[1]], check=True)
        subprocess.run([ip, *cable], check=True)
        for number, name in enumerate(names, 1):
            for link in (["addr", "add", f"10.77.0.{number}/24", "dev", "veth0"], ["link", "set", "veth0", "up"]):
                subprocess.run([ip, "-n", name, *link], check=True)
            subprocess.run([ip, "-n", name, "link", "set", "lo", "up"], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run([ip, "netns", "del", name], capture_output=True)


def start(job: Job, out: Path, nodes: tuple[str, str], given: dict[str, Any]) -> list[subprocess.Popen[str]]:
    """Start torchrun on each node, with one process each."""
    started = []
    for rank, name in enumerate(nodes):
        launcher = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(rank)]
        launcher += ["--master-addr", "10.77.0.1", "--master-port", "29511"]
        args = ["ip", "netns", "exec", name, *job.command(out, given, *launcher)]
        more = environment(GLOO_SOCKET_IFNAME="veth0", TP_SOCKET_IFNAME="veth0")
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
