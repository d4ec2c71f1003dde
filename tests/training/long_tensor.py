"""Runs of several processes that divide layers: results beside one process, checkpoints, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.tensor import measure, written
from onnxgen.pipeline import generate
from tests.training.long_sharded import refused
from tests.training.processes import Job, difference, finish, rows
from tests.zoo import ZOO
from tests.zoo.export import export

TENSOR: dict[str, Any] = {"strategy": "fsdp", "tensor_parallel": 2, "optimizer": "adamw", "optimizer_args": {}}
ONE: dict[str, Any] = {"optimizer": "adamw", "optimizer_args": {}, "batch_size": 8, "clip": 0.5}

CONV = f"""<ir_version: 9, opset_import: ["" : 17]>
conv (float[n, 1, 5, 5] x) => (float[n, 3, 1, 1] y)
<float[3, 1, 5, 5] w = {{{", ".join(["1.5"] * 75)}}}> {{ y = Conv(x, w) }}"""


@pytest.mark.parametrize("layout", [(1, 2), (2, 2)])
def test_outputs_and_gradients_are_those_of_one_process(layout: tuple[int, int], tmp_path: Path) -> None:
    """Also those of networks whose heads two processes can't share, and with the same dropout."""
    for row in measure(tmp_path, ("bert", "gpt2", "gpt2-4-heads", "llama", "encoder"), [layout]):
        assert float(row["outputs"]) < 1e-5 and float(row["gradients"]) < 1e-5, row


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A Llama-like network, and tokens for it; the last batch has 5 samples."""
    folder = tmp_path_factory.mktemp("language")
    module, tokens = written("llama", folder), np.random.default_rng(0).integers(0, 59, (37, 8))
    parts = {"x_train": tokens[:29], "y_train": tokens[:29], "x_val": tokens[29:], "y_val": tokens[29:]}
    np.savez(folder / "tokens.npz", **parts)
    return Job.of(module, folder / "tokens.npz")


@pytest.fixture(scope="module")
def whole(language: Job) -> Path:
    """The run of one process."""
    finish(language.command(out := language.folder / "one", ONE), language.folder)
    return out


def test_two_by_two_processes_train_and_one_goes_on(language: Job, whole: Path, tmp_path: Path) -> None:
    """Blocks are computed again in the backward pass. Weights, curves and files are those of one process."""
    out, given = tmp_path / "out", {**ONE, **TENSOR, "devices": 4, "batch_size": 4, "gradient_checkpointing": True}
    finish(language.command(out, {**given, "epochs": 1}), tmp_path)
    first = load_file(out / "best.safetensors")
    handed_back = load_file(out / "result3.safetensors")
    assert first.keys() == handed_back.keys() and all(torch.equal(first[key], handed_back[key]) for key in first)
    finish(language.command(out, {**ONE, "strategy": "fsdp", "resume": True}), tmp_path)
    assert difference(out, whole) < 1e-5 and difference(out / "best.safetensors", whole / "best.safetensors") < 1e-5
    np.testing.assert_allclose(rows(out), rows(whole), rtol=1e-5)


def test_one_process_trains_and_two_by_two_go_on(language: Job, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    finish(language.command(out, {**ONE, "strategy": "fsdp", "epochs": 1}), tmp_path)
    finish(language.command(out, {**ONE, **TENSOR, "devices": 4, "batch_size": 4, "resume": True}), tmp_path)
    assert difference(out, whole) < 1e-5 and difference(out / "best.safetensors", whole / "best.safetensors") < 1e-5
    np.testing.assert_allclose(rows(out), rows(whole), rtol=1e-5)


def test_dropout_of_two_processes_is_that_of_one(tmp_path: Path) -> None:
    """What is divided, and what each process computes whole, draws the numbers of one process."""
    export(ZOO["gpt2"], tmp_path / "gpt2.onnx", "legacy", 17, training=True, keep=False)
    generate(tmp_path / "gpt2.onnx", tmp_path / "gpt2.py")
    assert "Dropout(0.1)" in (tmp_path / "gpt2.py").read_text()
    tokens = np.random.default_rng(0).integers(0, 61, (24, 8))
    np.savez(tmp_path / "tokens.npz", x_train=tokens[:16], y_train=tokens[:16], x_val=tokens[16:], y_val=tokens[16:])
    job = Job.of(tmp_path / "gpt2.py", tmp_path / "tokens.npz")
    finish(job.command(one := tmp_path / "one", ONE), tmp_path)
    finish(job.command(two := tmp_path / "two", {**ONE, **TENSOR, "devices": 2}), tmp_path)
    assert difference(one, two) < 1e-5


def test_nothing_to_divide_ends_every_process(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(CONV), tmp_path / "conv.onnx")
    generate(tmp_path / "conv.onnx", tmp_path / "conv.py")
    np.savez(tmp_path / "data.npz", x=np.ones((8, 1, 5, 5), np.float32), y=np.ones((8, 3, 1, 1), np.float32))
    job = Job.of(tmp_path / "conv.py", tmp_path / "data.npz")
    assert "has nothing that --tensor-parallel 2 divides" in refused(job, tmp_path, "--tensor-parallel", "2")


def test_a_size_that_does_not_divide_the_processes_ends_every_process(language: Job, tmp_path: Path) -> None:
    error = refused(language, tmp_path, "--tensor-parallel", "3")
    assert "--tensor-parallel 3 does not divide the number of processes, 2" in error
