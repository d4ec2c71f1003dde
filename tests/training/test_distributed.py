"""Two processes train the same weights as one process with the global batch; what a launcher says is read.

`long_distributed.py` has the other strategies and launchers, and two nodes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.training import open_model
from onnxgen.training.finetune.freezing import blocks
from onnxgen.training.launch import first_process, launched, restarted
from onnxgen.training.settings import Settings
from tests.training.processes import Job, difference, first_alone_wrote, match


def test_two_processes_match_one_process(job: Job) -> None:
    match(job, "ddp")


def test_only_the_first_process_writes(job: Job) -> None:
    first_alone_wrote(job, "ddp")


def test_each_generated_block_is_sharded_separately(job: Job) -> None:
    model = open_model(job.model)
    kinds = {type(model.get_submodule(path)).__name__ for path in blocks(model)}
    assert "Block" in kinds, kinds


TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "6"}
SLURM = {"SLURM_NTASKS_PER_NODE": "4", "SLURM_NNODES": "2", "SLURM_NTASKS": "8", "SLURM_JOB_NAME": "train"}
PODS = {"MASTER_ADDR": "job-0", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "3"}


@pytest.mark.parametrize("environment, expected", [(TORCHRUN, (2, 3)), (SLURM, (4, 2)), (PODS, (1, 3)), ({}, (1, 1))])
def test_the_numbers_of_started_processes_are_read(environment: dict[str, str], expected: tuple[int, int]) -> None:
    found = launched(Settings(), environment)
    assert (found.devices, found.nodes) == expected
    assert launched(found, environment) == found
    if environment:
        with pytest.raises(OnnxgenError, match="leave out --devices"):
            launched(Settings(devices=7), environment)


HERE = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "NODE_RANK": "1"}


@pytest.mark.parametrize(
    ("nodes", "environment", "wanted"),
    [
        (1, {"NODE_RANK": "1"}, "NODE_RANK is 1, but --nodes is 1 -> --nodes N"),
        (2, {**HERE, "NODE_RANK": "2"}, "NODE_RANK is 2, but --nodes is 2"),
        (2, {"MASTER_ADDR": "10.0.0.1", "NODE_RANK": "0"}, "--nodes 2, but MASTER_PORT is not set -> set MASTER_ADDR"),
        (2, {}, "--nodes 2, but MASTER_ADDR and MASTER_PORT and NODE_RANK are not set"),
        (1, {**SLURM, "SLURM_NTASKS": "2", "SLURM_NNODES": "1"}, "SLURM started 2 processes on 1 node -> .*per-node"),
        (1, {"SLURM_NTASKS": "2", "SLURM_NNODES": "2"}, "SLURM started 2 processes on 2 nodes -> start them with"),
    ],
)
def test_what_would_train_alone_or_wait_for_ever_is_refused(
    nodes: int, environment: dict[str, str], wanted: str
) -> None:
    with pytest.raises(OnnxgenError, match=wanted):
        launched(Settings(nodes=nodes), environment)


def test_one_process_of_a_run_is_the_first() -> None:
    assert launched(Settings(nodes=2), HERE) == Settings(nodes=2)
    assert not first_process(HERE) and not first_process(PODS) and first_process({**HERE, "NODE_RANK": "0"})
    assert launched(Settings(), {"SLURM_NTASKS": "1", "SLURM_NNODES": "1"}) == Settings()  # as sbatch sets them


def test_a_command_that_is_started_again_goes_on_if_there_is_a_checkpoint(tmp_path: Path) -> None:
    asked = Settings(restartable=True, out=tmp_path)
    assert not restarted(asked).resume
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "previous.ckpt").touch()
    assert restarted(asked).resume and not restarted(Settings(out=tmp_path)).resume
    with pytest.raises(OnnxgenError, match="--restartable needs the folder of the run -> --out"):
        restarted(Settings(restartable=True))


def test_an_interactive_slurm_shell_is_ignored() -> None:
    assert launched(Settings(), {**SLURM, "SLURM_JOB_NAME": "bash"}) == Settings()


def test_the_comparison_detects_differences(tmp_path: Path) -> None:
    state: dict[str, Tensor] = {"w": torch.zeros(3)}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_file(state, tmp_path / name / "end.safetensors")
        state["w"][1] = 1e-3
    assert difference(tmp_path / "a", tmp_path / "b") == pytest.approx(1e-3)
