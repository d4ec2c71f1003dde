"""Several processes on one machine, and two nodes (network namespaces), train the same weights as one process with the
global batch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.pipeline import generate
from onnxgen.training.launch import launched
from onnxgen.training.settings import Settings
from tests.conftest import ROOT
from tests.zoo import ZOO
from tests.zoo.export import export
from tests.zoo.pairs import still

TRAIN = {"optimizer": "sgd", "lr": 0.02, "optimizer_args": {"momentum": 0.9}, "epochs": 2, "normalize": "none"}
Run = Callable[[str], Path]
RUNS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "one": ((), {"batch_size": 16}),
    "ddp": ((), {"batch_size": 8, "devices": 2}),
    "torchrun": (("torchrun", "--nproc-per-node", "2"), {"batch_size": 8}),
    "fsdp": ((), {"batch_size": 8, "devices": 2, "strategy": "fsdp"}),
    "ddp, 5 steps": ((), {"batch_size": 8, "devices": 2, "max_steps": 5}),
    "fsdp, 5 steps": ((), {"batch_size": 8, "devices": 2, "strategy": "fsdp", "max_steps": 5}),
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A generated vision transformer, and images for it; the last batch has 5."""
    folder = tmp_path_factory.mktemp("job")
    entry = still(ZOO["vit"])
    export(entry, folder / "vit.onnx", "legacy", 17, training=True)
    generate(folder / "vit.onnx", folder / "vit.py")
    (image,) = entry.inputs(2)
    random = np.random.default_rng(0)
    labels = np.arange(53) % 3
    images = random.normal(size=(53, *image.shape[1:])).astype(np.float32) + labels[:, None, None, None] / 3
    parts = {"x_train": images[:37], "y_train": labels[:37], "x_val": images[37:], "y_val": labels[37:]}
    np.savez(folder / "data.npz", **{k: v.astype(np.float32 if k[0] == "x" else np.int64) for k, v in parts.items()})
    return folder / "vit.py", folder / "data.npz"


def command(job: tuple[Path, Path], out: Path, given: dict[str, Any], *launcher: str) -> list[str]:
    out.mkdir(exist_ok=True)
    begin = ["-m", "torch.distributed.run", *launcher] if launcher else []
    return [
        *(sys.executable, *begin, "-m", "tests.training.distributed_run"),
        *(str(job[0]), str(job[1]), str(out), json.dumps(TRAIN | given)),
    ]


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "SLURM"))}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


@pytest.fixture(scope="module")
def run(job: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function for the folder of one of the RUNS; each runs once."""

    @cache
    def get(name: str) -> Path:
        launcher, given = RUNS[name]
        out = tmp_path_factory.mktemp("run") / "out"
        more = ("--master-port", str(free_port())) if launcher else ()
        finish(command(job, out, given, *launcher[1:], *more), out.parent)
        return out

    return get


def finish(args: list[str], folder: Path) -> None:
    """Run a process that must succeed."""
    done = subprocess.run(args, env=environment(), capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def difference(a: Path, b: Path) -> float:
    first, second = load_file(a / "end.safetensors"), load_file(b / "end.safetensors")
    assert first.keys() == second.keys()
    return max(float((first[key] - second[key]).abs().max()) for key in first)


def rows(out: Path) -> list[list[float]]:
    lines = (out / "metrics.csv").read_text().splitlines()
    names = lines[0].split(",")
    kept = [i for i, name in enumerate(names) if "loss" in name or "accuracy" in name]
    return [[float(line.split(",")[i]) for i in kept] for line in lines[1:]]


@pytest.mark.parametrize("name", ["ddp", "torchrun", "fsdp"])
def test_several_processes_match_one_process(name: str, run: Run) -> None:
    assert difference(run(name), run("one")) < 1e-5
    assert difference(run(name), run("ddp, 5 steps")) > 1e-3, "nothing was trained"
    np.testing.assert_allclose(rows(run(name)), rows(run("one")), rtol=1e-4, atol=1e-6)


def test_five_steps_of_fsdp_match_ddp(run: Run) -> None:
    assert difference(run("fsdp, 5 steps"), run("ddp, 5 steps")) < 1e-5


def test_a_stopped_fsdp_run_resumes_and_returns_whole_models(job: tuple[Path, Path], run: Run, tmp_path: Path) -> None:
    """The run is stopped in the first epoch, before there is a best one, and in the second."""
    out, given = tmp_path / "out", RUNS["fsdp"][1]
    for more in ({"stop_at": 0}, {"stop_at": 3, "resume": True}, {"resume": True}):
        finish(command(job, out, given | more), tmp_path)
        kept = load_file(out / ("last.safetensors" if more == {"stop_at": 0} else "best.safetensors"))
        for rank in range(2):
            handed_back = load_file(out / f"result{rank}.safetensors")
            assert handed_back.keys() == kept.keys()
            assert all(torch.equal(handed_back[key], kept[key]) for key in kept)
        assert (out / "end.safetensors").exists() == ("stop_at" not in more)
    assert difference(out, run("fsdp")) == 0


def test_each_generated_block_is_sharded_separately(job: tuple[Path, Path]) -> None:
    from onnxgen.training import open_model
    from onnxgen.training.finetune.blocks import blocks

    model = open_model(job[0])
    kinds = {type(model.get_submodule(path)).__name__ for path in blocks(model)}
    assert "Block" in kinds, kinds


def test_only_the_first_process_writes(run: Run) -> None:
    for name in ("ddp", "torchrun"):
        assert {p.name for p in run(name).iterdir()} == {p.name for p in run("one").iterdir()} | {"result1.safetensors"}
        assert len(rows(run(name))) == 2


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


def start(
    job: tuple[Path, Path], out: Path, nodes: tuple[str, str], given: dict[str, Any]
) -> list[subprocess.Popen[str]]:
    """Start torchrun on each node, with one process each."""
    started = []
    for rank, name in enumerate(nodes):
        launcher = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(rank)]
        launcher += ["--master-addr", "10.77.0.1", "--master-port", "29511"]
        args = ["ip", "netns", "exec", name, *command(job, out, given, *launcher)]
        more = environment(GLOO_SOCKET_IFNAME="veth0", TP_SOCKET_IFNAME="veth0")
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(args, env=more, start_new_session=True, **pipes))
    return started


@pytest.fixture(scope="module")
def two_nodes(job: tuple[Path, Path], nodes: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on both nodes."""
    out = tmp_path_factory.mktemp("nodes") / "out"
    ended(start(job, out, nodes, {"batch_size": 8}))
    return out


def ended(processes: list[subprocess.Popen[str]]) -> None:
    """Wait for processes that must succeed."""
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)


def test_two_nodes_match_one_process(run: Run, two_nodes: Path) -> None:
    assert difference(two_nodes, run("one")) < 1e-5


# ---- what the launcher says ------------------------------------------------------------------------------------------

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "6"}
SLURM = {"SLURM_NTASKS_PER_NODE": "4", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "train"}


@pytest.mark.parametrize("environment, expected", [(TORCHRUN, (2, 3)), (SLURM, (4, 2)), ({}, (1, 1))])
def test_the_numbers_of_started_processes_are_read(environment: dict[str, str], expected: tuple[int, int]) -> None:
    found = launched(Settings(), environment)
    assert (found.devices, found.nodes) == expected
    assert launched(found, environment) == found
    if environment:
        with pytest.raises(OnnxgenError, match="leave out --devices"):
            launched(Settings(devices=7), environment)


def test_an_interactive_slurm_shell_is_ignored() -> None:
    assert launched(Settings(), {**SLURM, "SLURM_JOB_NAME": "bash"}) == Settings()


def test_the_comparison_detects_differences(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    state: dict[str, Tensor] = {"w": torch.zeros(3)}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_file(state, tmp_path / name / "end.safetensors")
        state["w"][1] = 1e-3
    assert difference(tmp_path / "a", tmp_path / "b") == pytest.approx(1e-3)


def test_a_killed_node_resumes_from_the_checkpoint(
    job: tuple[Path, Path], two_nodes: Path, nodes: tuple[str, str], tmp_path: Path
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
