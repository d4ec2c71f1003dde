"""The loggers of a run: Lightning's, which write the metrics to the run's folder or to a server."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from onnxgen.common.paths import need
from onnxgen.training.settings import Settings

TENSORBOARD, CSV, WANDB, MLFLOW = "tensorboard", "csv", "wandb", "mlruns"  # folders of a run
PACKAGES = ("tensorboard", "matplotlib")  # of every run
PROJECT = "onnxgen"  # of wandb, and the experiment of mlflow, unless the environment names another


def need_packages(settings: Settings) -> None:
    """Raise `OnnxgenError` if a package for the report or a logger is not installed."""
    need((*PACKAGES, *(name for name in settings.loggers if name in ("wandb", "mlflow"))))


def loggers(settings: Settings) -> list[Logger]:
    """Return the loggers that the settings name. A resumed run goes on in the folder's logs; a new one removes them.

    wandb and mlflow take project, server and mode from their own environment variables.
    """
    if not settings.resume:
        _remove(settings.out)
    return [_MADE[name](settings.out, settings.resume) for name in dict.fromkeys(settings.loggers) if name in _MADE]


@rank_zero_only
def _remove(out: Path) -> None:
    """Remove the logs of an earlier run, except TensorBoard's, which `report.begin` removes."""
    for folder in (CSV, WANDB, MLFLOW):
        shutil.rmtree(out / folder, ignore_errors=True)


def _tensorboard(out: Path, resume: bool) -> Logger:
    return TensorBoardLogger(out, name="", version=TENSORBOARD, default_hp_metric=False)


def _csv(out: Path, resume: bool) -> Logger:
    """Each start of the run has its own `version_N`, since Lightning's logger begins an existing file again."""
    return CSVLogger(out, name=CSV)


def _wandb(out: Path, resume: bool) -> Logger:
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    names = sorted((out / WANDB).glob("*run-*-*"), key=lambda path: path.stat().st_mtime)
    before = names[-1].name.rpartition("-")[2] if resume and names else None
    return WandbLogger(out.name, out, project=project, id=before, resume="allow" if before else None)


def _mlflow(out: Path, resume: bool) -> Logger:
    """Without a server in the environment, the run is in the folder."""
    where = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not where:
        where = f"file:{(out / MLFLOW).resolve()}"
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow 3 asks for this
    before = [path.name for path in (out / MLFLOW).glob("*/*") if re.fullmatch(r"[0-9a-f]{32}", path.name)]
    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    return MLFlowLogger(experiment, out.name, where, run_id=before[0] if resume and before else None)


_MADE: dict[str, Callable[[Path, bool], Logger]] = {
    "tensorboard": _tensorboard,
    "csv": _csv,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
