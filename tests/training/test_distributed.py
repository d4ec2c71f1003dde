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
from onnxgen.training.finetune.blocks import blocks
from onnxgen.training.launch import launched
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
    state: dict[str, Tensor] = {"w": torch.zeros(3)}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_file(state, tmp_path / name / "end.safetensors")
        state["w"][1] = 1e-3
    assert difference(tmp_path / "a", tmp_path / "b") == pytest.approx(1e-3)
