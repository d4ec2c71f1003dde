"""`--logger`: Lightning's loggers in the run's folder; wandb and mlflow only where they are installed."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from onnxgen.errors import OnnxgenError
from onnxgen.training import fit
from onnxgen.training.report.metrics import loggers
from onnxgen.training.settings import Settings
from tests.training.test_fit_options import CPU, net, points

GIVEN: dict[str, Any] = {"batch_size": 10, "val": 0.2, **CPU}


def logged(path: Path, name: str) -> list[float]:
    with path.open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


def test_csv_has_the_metrics_of_each_epoch_and_those_of_a_resumed_run(tmp_path: Path) -> None:
    first = fit(net(), points(), epochs=2, out=tmp_path, loggers=("csv", "tensorboard"), **GIVEN)
    whole = fit(net(), points(), epochs=3, out=tmp_path, loggers="csv", resume=True, **GIVEN)
    versions = sorted((tmp_path / "csv").iterdir())
    found = [logged(version / "metrics.csv", "train_loss") for version in versions]
    assert found[0] == pytest.approx([row["train_loss"] for row in first.history])
    assert found[1] == pytest.approx([row["train_loss"] for row in whole.history[2:]])
    assert len(list((tmp_path / "tensorboard").glob("events*"))) == 1
    fit(net(), points(), epochs=1, out=tmp_path, loggers="none", **GIVEN)  # replaces the run with its logs
    assert not (tmp_path / "csv").exists() and not list((tmp_path / "tensorboard").glob("events*"))


def test_each_logger_is_made_once(tmp_path: Path) -> None:
    assert [type(one) for one in loggers(Settings(out=tmp_path))] == [TensorBoardLogger]
    several = Settings(out=tmp_path, loggers=("csv", "tensorboard", "csv"))
    assert [type(one) for one in loggers(several)] == [CSVLogger, TensorBoardLogger]
    assert loggers(Settings(loggers=("none",))) == []


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_told_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("onnxgen.common.paths.find_spec", lambda module: None if module == name else object())
    with pytest.raises(OnnxgenError, match=rf"the module {name} is not installed -> pip install .*\[{name}\]"):
        fit(net(), points(), epochs=1, out=tmp_path / "run", loggers=name, **GIVEN)
    assert not (tmp_path / "run").exists()
    with pytest.raises(OnnxgenError, match="loggers must be one of tensorboard, csv, wandb, mlflow, none, not 'wanda'"):
        Settings(loggers=("wanda",))


def test_wandb_logs_offline_and_a_resumed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: its logger was not tested")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    fit(net(), points(), epochs=1, out=tmp_path, loggers="wandb", **GIVEN)
    wandb.finish()
    fit(net(), points(), epochs=2, out=tmp_path, loggers="wandb", resume=True, **GIVEN)
    wandb.finish()
    files = [path.name for path in (tmp_path / "wandb").glob("offline-run-*/*.wandb")]
    assert files and len(set(files)) == 1  # run-ID.wandb


def test_mlflow_logs_to_the_folder_and_a_resumed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: its logger was not tested")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    fit(net(), points(), epochs=1, out=tmp_path, loggers="mlflow", **GIVEN)
    whole = fit(net(), points(), epochs=2, out=tmp_path, loggers="mlflow", resume=True, **GIVEN)
    client = mlflow.tracking.MlflowClient(f"file:{tmp_path / 'mlruns'}")
    (experiment,) = client.search_experiments(filter_string="name = 'onnxgen'")
    (run,) = client.search_runs([experiment.experiment_id])
    found = client.get_metric_history(run.info.run_id, "train_loss")
    assert [one.value for one in found] == pytest.approx([row["train_loss"] for row in whole.history])
    assert run.info.run_name == tmp_path.name
