"""Trainings of one network by one process, by several, and on several nodes: how each is started, and compared."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from onnxgen.pipeline import generate
from tests.conftest import ROOT
from tests.support import forked
from tests.training.distributed_run import train
from tests.zoo import ZOO
from tests.zoo.export import export
from tests.zoo.pairs import still

TRAIN = {"optimizer": "sgd", "lr": 0.02, "optimizer_args": {"momentum": 0.9}, "epochs": 2, "normalize": "none"}
RUNS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "one": ((), {"batch_size": 16}),
    "ddp": ((), {"batch_size": 8, "devices": 2}),
    "torchrun": (("torchrun", "--nproc-per-node", "2"), {"batch_size": 8}),
    "fsdp": ((), {"batch_size": 8, "devices": 2, "strategy": "fsdp"}),
    "ddp, 5 steps": ((), {"batch_size": 8, "devices": 2, "max_steps": 5}),
    "fsdp, 5 steps": ((), {"batch_size": 8, "devices": 2, "strategy": "fsdp", "max_steps": 5}),
}

# Lightning's command for the second process runs in a fork that has torch imported, and nothing of onnxgen.
SECOND = """
import runpy, sys, types
from tests.support import forked
second = forked.Spare()
from lightning.pytorch.strategies.launchers import subprocess_script
subprocess_script.subprocess = types.SimpleNamespace(Popen=second)
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


class Job:
    """A generated vision transformer, images for it (the last batch has 5), and the runs that train it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model, self.data = folder, folder / "vit.py", folder / "data.npz"
        entry = still(ZOO["vit"])
        export(entry, folder / "vit.onnx", "legacy", 17, training=True)
        generate(folder / "vit.onnx", self.model)
        (image,) = entry.inputs(2)
        random = np.random.default_rng(0)
        labels = np.arange(53) % 3
        images = random.normal(size=(53, *image.shape[1:])).astype(np.float32) + labels[:, None, None, None] / 3
        parts = {"x_train": images[:37], "y_train": labels[:37], "x_val": images[37:], "y_val": labels[37:]}
        np.savez(self.data, **{k: v.astype(np.float32 if k[0] == "x" else np.int64) for k, v in parts.items()})
        self.run = cache(self._run)

    @classmethod
    def of(cls, model: Path, data: Path) -> Job:
        """Another network, and data for it."""
        made = object.__new__(cls)
        made.folder, made.model, made.data = model.parent, model, data
        return made

    def command(self, out: Path, given: dict[str, Any], *launcher: str) -> list[str]:
        """A process that trains, or a launcher of such processes."""
        out.mkdir(exist_ok=True)
        begin = ["-m", "torch.distributed.run", *launcher] if launcher else []
        return [
            *(sys.executable, *begin, "-m", "tests.training.distributed_run"),
            *(str(self.model), str(self.data), str(out), json.dumps(TRAIN | given)),
        ]

    def _run(self, name: str) -> Path:
        """The folder of one of the RUNS; each runs once, and that of one process in this one."""
        launcher, given = RUNS[name]
        out = self.folder / name / "out"
        out.mkdir(parents=True)
        if name == "one":
            train(self.model, self.data, out, TRAIN | given)
            return out
        if launcher:
            more = "--master-port", str(free_port())
            finish(self.command(out, given, *launcher[1:], *more), out.parent)
        else:
            _, *words = self.command(out, given)
            words = ["-c", SECOND, *words[1:]] if hasattr(os, "fork") else words
            done = forked.run(words, cwd=out.parent, env=environment(), merged=True)
            assert done.returncode == 0, done.stdout
        return out


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "SLURM"))}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def finish(args: list[str], folder: Path) -> None:
    """Run a process that must succeed."""
    done = subprocess.run(args, env=environment(), capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def difference(a: Path, b: Path) -> float:
    """The largest difference of the weights in two files, or of those that two runs ended with."""
    first, second = (load_file(path / "end.safetensors" if path.is_dir() else path) for path in (a, b))
    assert first.keys() == second.keys()
    return max(float((first[key] - second[key]).abs().max()) for key in first)


def rows(out: Path) -> list[list[float]]:
    """The losses and metrics of each epoch of a run."""
    lines = (out / "metrics.csv").read_text().splitlines()
    names = lines[0].split(",")
    kept = [i for i, name in enumerate(names) if "loss" in name or "accuracy" in name]
    return [[float(line.split(",")[i]) for i in kept] for line in lines[1:]]


def match(job: Job, name: str) -> None:
    """A run of several processes ended with the weights and metrics of one process, and trained."""
    run, one = job.run(name), job.run("one")
    assert difference(run, one) < 1e-5
    assert difference(run / "end.safetensors", job.model.with_suffix(".safetensors")) > 1e-3, "nothing was trained"
    np.testing.assert_allclose(rows(run), rows(one), rtol=1e-4, atol=1e-6)


def first_alone_wrote(job: Job, name: str) -> None:
    """Of several processes, only the first one wrote files and metrics."""
    run, one = job.run(name), job.run("one")
    assert {p.name for p in run.iterdir()} == {p.name for p in one.iterdir()} | {"result1.safetensors"}
    assert len(rows(run)) == 2
