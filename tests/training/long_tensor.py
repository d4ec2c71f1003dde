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

CONV = f"""<ir_version: 9, opset_import: ["" : 17]>
conv (float[n, 1, 5, 5] x) => (float[n, 3, 1, 1] y)
<float[3, 1, 5, 5] w = {{{", ".join(["1.5"] * 75)}}}> {{ y = Conv(x, w) }}"""


@pytest.mark.parametrize("layout", [(1, 2), (2, 2)])
def test_outputs_and_gradients_are_those_of_one_process(layout: tuple[int, int], tmp_path: Path) -> None:
    """Of one group also with dropout, and of networks whose three heads two processes can't share."""
    nets = ("bert", "gpt2", "encoder") if layout == (1, 2) else ("bert", "gpt2-4-heads", "llama")
    for row in measure(tmp_path, nets, [layout]):
        assert float(row["outputs"]) < 1e-5 and float(row["gradients"]) < 1e-5, row


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A Llama-like network, and tokens for it; the last batch has 5 samples."""
    folder = tmp_path_factory.mktemp("language")
    module, tokens = written("llama", folder), np.random.default_rng(0).integers(0, 59, (37, 8))
    parts = {"x_train": tokens[:29], "y_train": tokens[:29], "x_val": tokens[29:], "y_val": tokens[29:]}
    np.savez(folder / "tokens.npz", **parts)
    return Job.of(module, folder / "tokens.npz")


def test_2x2_1_and_2_processes_continue_each_other(language: Job, tmp_path: Path) -> None:
    """Blocks are computed again in the backward pass. Weights, curves and files are those of one process."""
    out, one = tmp_path / "out", tmp_path / "one"
    given: dict[str, Any] = {"optimizer": "adamw", "optimizer_args": {}, "clip": 0.5}
    finish(language.command(one, {**given, "batch_size": 8, "epochs": 3}), tmp_path)
    for epochs, devices, size in ((1, 4, 2), (2, 1, 1), (3, 2, 2)):
        layout = {"devices": devices, "tensor_parallel": size, "batch_size": 8 * size // devices}
        more = {"epochs": epochs, "resume": epochs > 1, "gradient_checkpointing": True}
        finish(language.command(out, {**given, **layout, **more, "strategy": "fsdp"}), tmp_path)
        best, handed_back = load_file(out / "best.safetensors"), load_file(out / "result0.safetensors")
        assert best.keys() == handed_back.keys() and all(torch.equal(best[key], handed_back[key]) for key in best)
    assert difference(out, one) < 1e-5 and difference(out / "best.safetensors", one / "best.safetensors") < 1e-5
    np.testing.assert_allclose(rows(out), rows(one), rtol=1e-5)


def test_nothing_to_divide_ends_every_process(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(CONV), tmp_path / "conv.onnx")
    generate(tmp_path / "conv.onnx", tmp_path / "conv.py")
    np.savez(tmp_path / "data.npz", x=np.ones((8, 1, 5, 5), np.float32), y=np.ones((8, 3, 1, 1), np.float32))
    job, out = Job.of(tmp_path / "conv.py", tmp_path / "data.npz"), ("--out", str(tmp_path / "out"))
    assert "has nothing that --tensor-parallel 2 divides" in refused(job, tmp_path, "--tensor-parallel", "2", *out)


def test_a_size_that_does_not_divide_the_processes_ends_every_process(language: Job, tmp_path: Path) -> None:
    error = refused(language, tmp_path, "--tensor-parallel", "3")
    assert "--tensor-parallel 3 does not divide the number of processes, 2" in error
