"""Two processes train on shards: each reads its own part, they end an epoch together, and resume within it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.processes import Job, difference, environment, finish, rows
from tests.training.shards import npy, shard

# Two processes agree at every 16th batch whether to stop: an epoch has 18.
GIVEN = {"batch_size": 1, "devices": 2, "shuffle_window": 6, "workers": 1, "loggers": "none"}


@pytest.fixture(scope="module")
def shards(job: Job) -> Job:
    """The job's 37 images in three shards of different sizes, and the 16 of its validation in one."""
    data, folder = np.load(job.data), job.folder / "shards"
    for part, cuts in (("train", (0, 5, 16, 37)), ("val", (0, 16))):
        x, y = data[f"x_{part}"], data[f"y_{part}"]
        for number, (begin, end) in enumerate(zip(cuts, cuts[1:])):
            found = ({"x.npy": npy(x[i]), "cls": str(y[i]).encode()} for i in range(begin, end))
            shard(folder / f"{part}-{number}.tar", found, begin)
    return Job.of(job.model, folder)


def test_two_processes_read_each_sample_once(shards: Job, tmp_path: Path) -> None:
    """At a rate of almost 0, the mean loss tells if each sample came once."""
    for name, more in {"one": {"devices": 1, "batch_size": 2}, "ddp": {}, "fsdp": {"strategy": "fsdp"}}.items():
        finish(shards.command(tmp_path / name, {**GIVEN, "lr": 1e-12, "epochs": 1, **more}), tmp_path)
    for name in ("ddp", "fsdp"):
        np.testing.assert_allclose(rows(tmp_path / name), rows(tmp_path / "one"), rtol=1e-5)


def test_two_processes_that_are_stopped_within_an_epoch_end_like_a_whole_run(shards: Job, tmp_path: Path) -> None:
    finish(shards.command(tmp_path / "whole", GIVEN), tmp_path)
    finish(shards.command(tmp_path / "parts", GIVEN | {"stop_at": 20}), tmp_path)  # in the second epoch
    alone = shards.command(tmp_path / "parts", GIVEN | {"resume": True, "devices": 1, "batch_size": 2})
    done = subprocess.run(alone, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode and "stopped within an epoch of 2 processes" in done.stderr
    finish(shards.command(tmp_path / "parts", GIVEN | {"resume": True}), tmp_path)
    assert difference(tmp_path / "parts", tmp_path / "whole") == 0
    assert difference(tmp_path / "whole" / "end.safetensors", shards.model.with_suffix(".safetensors")) > 1e-3
    assert torch.equal(torch.tensor(rows(tmp_path / "parts")), torch.tensor(rows(tmp_path / "whole")))
