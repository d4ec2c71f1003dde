"""Sharded runs of several processes: other numbers of processes, kills, checkpoints in the background, bad input."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import onnxgen
from onnxgen.errors import OnnxgenError
from onnxgen.export import export as write_back
from onnxgen.options import Options
from onnxgen.pipeline import generate
from onnxgen.record.sidecar import files_there
from onnxgen.training import evaluate, open_model
from onnxgen.training.checkpoint import store as folder
from onnxgen.training.checkpoint.store import Store
from onnxgen.training.runs.folder import best_of, holds_a_run
from tests.training.processes import Job, difference, environment, finish, free_port, rows
from tests.zoo import ZOO
from tests.zoo.export import export
from tests.zoo.pairs import still

FSDP = {"strategy": "fsdp"}


def test_two_processes_train_shards_that_one_goes_on_from(job: Job, tmp_path: Path) -> None:
    """The run ends with the weights of one process, and its shards are evaluated, opened and exported."""
    module, out = tmp_path / "vit.py", tmp_path / "out"
    onnxgen.generate(job.folder / "vit.onnx", module, Options(shard_size=30_000))
    job = _with(job, module)
    fsdp = {"strategy": "fsdp", "metric": ()}
    finish(job.command(out, {"batch_size": 8, "devices": 2, "epochs": 1, **fsdp}), tmp_path)
    finish(job.command(out, {"batch_size": 16, "resume": True, **fsdp}), tmp_path)
    one = job.run("one")
    assert difference(out, one) < 1e-5
    np.testing.assert_allclose(rows(out), rows(one), rtol=1e-4)
    best = best_of(out)
    assert (
        best.name == "best.safetensors.index.json"
        and holds_a_run(out)
        and len(files_there(out / "best.safetensors")) > 2
    )
    handed_back = load_file(out / "result0.safetensors")
    opened = open_model(out).state_dict()
    assert opened.keys() == handed_back.keys()
    assert all(torch.equal(opened[key], handed_back[key]) for key in opened)
    assert evaluate(out, job.data, part="val")["loss"] == pytest.approx(rows(out)[-1][-2], rel=1e-5)
    done = write_back(module, onnx=job.folder / "vit.onnx", weights=best, out=tmp_path / "new.onnx")
    assert done.verified is not None and not done.verified.differs and len(done.changed) > 10


def _with(job: Job, module: Path) -> Job:
    made = copy(job)
    made.model = module
    return made


def test_2_4_and_1_processes_continue_each_other(job: Job, tmp_path: Path) -> None:
    """The curve and the weights are those of one process that was not stopped."""
    out, one = tmp_path / "out", tmp_path / "one"
    finish(job.command(one, {"batch_size": 16, "epochs": 3}), tmp_path)
    for epochs, devices in ((1, 2), (2, 4), (3, 1)):
        given = {"batch_size": 16 // devices, "devices": devices, "epochs": epochs, "resume": epochs > 1}
        finish(job.command(out, given | FSDP), tmp_path)
    assert difference(out, one) < 1e-5
    np.testing.assert_allclose(rows(out), rows(one), atol=1e-5)


def test_checkpoints_in_the_background_continue_bit_for_bit(job: Job, tmp_path: Path) -> None:
    out, given = tmp_path / "out", {"batch_size": 8, "devices": 2, "background": True, **FSDP}
    finish(job.command(out, given | {"epochs": 1, "checkpoint_minutes": 0}), tmp_path)
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["last.ckpt", "previous.ckpt"]
    finish(job.command(out, given | {"resume": True}), tmp_path)
    assert difference(out, job.run("fsdp")) == 0


def test_a_network_with_tied_weights_and_half_precision(tmp_path: Path) -> None:
    """GPT-2 predicts tokens: two processes reach the loss of one, in 32 and in 16 bits."""
    entry = still(ZOO["gpt2"])
    export(entry, tmp_path / "gpt2.onnx", "legacy", 17, training=True)
    generate(tmp_path / "gpt2.onnx", tmp_path / "gpt2.py")
    tokens = np.random.default_rng(0).integers(0, 50, (48, *entry.inputs(2)[0].shape[1:]))
    parts = {"x_train": tokens[:32], "y_train": tokens[:32], "x_val": tokens[32:], "y_val": tokens[32:]}
    np.savez(tmp_path / "tokens.npz", **parts)
    job = Job.of(tmp_path / "gpt2.py", tmp_path / "tokens.npz")
    for precision, tolerance in (("32-true", 1e-5), ("bf16-true", 0.05)):
        found = []
        for devices in (1, 2):
            given: dict[str, Any] = {"batch_size": 16 // devices, "devices": devices, "precision": precision}
            given |= FSDP if devices > 1 else {}
            finish(job.command(out := tmp_path / f"{precision}{devices}", given), tmp_path)
            found.append(rows(out))
        np.testing.assert_allclose(found[1], found[0], rtol=tolerance, atol=tolerance)


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(job: Job, tmp_path: Path) -> None:
    """One of two processes is killed while they save after each step."""
    out, given = tmp_path / "out", {"batch_size": 8, "devices": 2, "checkpoint_minutes": 0, "epochs": 200, **FSDP}
    chosen = random.Random(0)
    for turn in range(int(os.environ.get("ONNXGEN_KILLS", "5"))):
        args = job.command(out, given | {"resume": turn > 0})
        first = subprocess.Popen(args, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        begun = _stamp(out)
        while _stamp(out) == begun and first.poll() is None:
            time.sleep(0.01)
        time.sleep(chosen.random())
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        processes = [first.pid, *map(int, children)]
        os.kill(chosen.choice(processes), signal.SIGKILL)
        time.sleep(0.5)
        for pid in processes:  # what is left of them would wait for the other
            _kill(pid)
        first.wait()
        store = Store(out / "checkpoints", lambda line: None)
        assert store.read() is not None and store.found is not None
        folder.check(store.found, 0, 1)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _stamp(out: Path) -> float:
    last = out / "checkpoints" / "last.ckpt"
    return last.stat().st_mtime if last.exists() else 0.0


# ---- bad input: one line of the first process, and every process ends with 2 -----------------------------------------


CODES = """
import os, sys
from pathlib import Path
from onnxgen.cli import run
code = run(sys.argv[2:])
Path(sys.argv[1], os.environ["RANK"]).write_text(str(code))
sys.exit(code)
"""


def refused(job: Job, tmp_path: Path, *more: str) -> str:
    """The error of a training that two processes of torchrun refuse."""
    (tmp_path / "codes").mkdir()
    (tmp_path / "codes.py").write_text(CODES)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    train = ["train", str(job.model), "--data", str(job.data), "--strategy", "fsdp", "--device", "cpu", *more]
    args = [sys.executable, *launcher, str(tmp_path / "codes.py"), str(tmp_path / "codes"), *train]
    done = subprocess.run(args, env=environment(), capture_output=True, text=True, timeout=150, cwd=tmp_path)
    codes = {path.name: path.read_text() for path in (tmp_path / "codes").iterdir()}
    errors = re.findall("^error: .*$", done.stderr, re.MULTILINE)
    assert len(errors) == 1 and codes.items() <= {"0": "2", "1": "2"}.items() and codes, done.stderr
    return str(errors[0])


def test_missing_shards_of_a_checkpoint(job: Job, tmp_path: Path) -> None:
    out = tmp_path / "out"
    finish(job.command(out, {"batch_size": 8, "devices": 2, "epochs": 1, **FSDP}), tmp_path)
    for kept in (out / "checkpoints").glob("*/__1_0.distcp"):
        kept.unlink()
    assert "__1_0.distcp is missing" in refused(job, tmp_path, "--out", str(out), "--resume", "--batch-size", "8")


def test_a_checkpoint_of_another_network(job: Job, tmp_path: Path) -> None:
    out = tmp_path / "out"
    finish(job.command(out, {"batch_size": 8, "devices": 2, "epochs": 1, "replace_head": 4, **FSDP}), tmp_path)
    more = ("--out", str(out), "--resume", "--batch-size", "8", "--replace-head", "5")
    assert "belongs to another model" in refused(job, tmp_path, *more)


def test_the_comparison_of_checkpoints_sees_damage(tmp_path: Path) -> None:
    with pytest.raises(OnnxgenError, match="damaged"):
        (tmp_path / "last.ckpt").mkdir()
        Store(tmp_path, lambda line: None).read()
