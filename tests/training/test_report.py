"""The files and the output of a run."""

from __future__ import annotations

import csv
import io
import logging
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional as F

from onnxgen.errors import counted
from onnxgen.training import report
from onnxgen.training.config import read_config
from onnxgen.training.data.arrays import Columns
from onnxgen.training.data.samples import Feeding
from onnxgen.training.loader import Loader
from onnxgen.training.losses import Objective
from onnxgen.training.report.metrics import Metrics
from onnxgen.training.report.page import page
from onnxgen.training.report.plots import confusion_matrix, curves
from onnxgen.training.report.progress import Dashboard, Lines, Progress, epoch_line, sparkline
from onnxgen.training.runs.metrics import best_row, duration, write_rows
from onnxgen.training.settings import Settings
from onnxgen.training.task import QUIET, LogEpoch, Task

HOSTILE = "</title><script>alert(1)</script> & [bold]$x_1$"
CLASSES = ("cat", HOSTILE, "dog")


def task() -> Task:
    """A task whose model never changes."""
    torch.manual_seed(0)
    objective = Objective(0, "", "y", "cross_entropy", classes=3)
    return Task(
        nn.Linear(4, 3), [objective], Feeding(("x",), {0: "y"}), lambda m, _: torch.optim.SGD(m.parameters(), 0)
    )


def samples() -> Columns:
    torch.manual_seed(1)
    return Columns({"x": torch.randn(40, 4), "y": torch.randint(3, (40,))}, {})


def facts(**changed: Any) -> report.Facts:
    known: dict[str, Any] = {"model": "Net", "file": Path("model.py"), "parameters": 15, "trained": 15}
    known |= {"data": "toys", "sizes": {"train": 40, "val": 40}, "classes": CLASSES, "monitor": "val_loss"}
    return report.Facts(**known | changed)


def train(
    out: Path,
    epochs: int = 3,
    callbacks: Any = (),
    show: str = "lines",
    checkpoint: Path | None = None,
    max_steps: int = -1,
) -> lightning.Trainer:
    """Train with 5 batches per epoch, or resume from a checkpoint."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    asked = Settings(epochs=epochs, out=out, resume=checkpoint is not None)
    report.begin(asked, facts(), {"model": "model.py", "data": "toys"})
    trainer = lightning.Trainer(
        callbacks=[LogEpoch(), *report.callbacks(asked, facts(), show), *callbacks],
        max_epochs=epochs,
        max_steps=max_steps,
        accelerator="cpu",
        **{**QUIET, "logger": report.loggers(asked)},
    )
    trainer.fit(task(), Loader(samples(), 8), Loader(samples(), 40), ckpt_path=checkpoint)
    return trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose model never changes, so that its metrics can be computed by hand."""
    out = tmp_path_factory.mktemp("run") / "out"
    train(out)
    counts = torch.tensor([[5, 1, 0], [0, 7, 2], [3, 0, 4]])
    outcome = report.Outcome(3.0, test={"test_loss": 0.25, "test_accuracy": 0.9}, confusion=counts)
    report.finish(Settings(epochs=3, out=out, lr=0.5), facts(notes=[HOSTILE]), outcome)
    return out


# ---- metrics.csv, TensorBoard ----------------------------------------------------------------------------------------


def test_the_csv_has_a_correct_row_for_each_epoch(run: Path) -> None:
    x, y = samples().columns.values()
    with torch.no_grad():
        scores = task().model(x)
    loss, right = F.cross_entropy(scores, y), (scores.argmax(1) == y).float().mean()
    rows = list(csv.DictReader(io.StringIO((run / "metrics.csv").read_text())))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"] and [row["step"] for row in rows] == ["5", "10", "15"]
    for row in rows:
        assert float(row["val_loss"]) == loss.item() and float(row["val_accuracy"]) == right.item()
        assert float(row["train_loss"]) == pytest.approx(loss.item(), rel=1e-5)


def test_tensorboard_has_the_values_of_the_csv(run: Path) -> None:
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    rows = report.read_rows(run / "metrics.csv")
    for name in ("train_loss", "val_loss", "val_accuracy"):
        assert [e.value for e in events.Scalars(name)] == [row[name] for row in rows]


def test_a_new_run_removes_the_files_of_an_old_one(tmp_path: Path) -> None:
    train(tmp_path, epochs=2)
    (tmp_path / "mine.txt").write_text("kept")
    (tmp_path / "loss.png").write_bytes(b"old")
    train(tmp_path, epochs=1)
    assert len(report.read_rows(tmp_path / "metrics.csv")) == 1
    assert not (tmp_path / "loss.png").exists() and (tmp_path / "mine.txt").exists()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert len(events.Scalars("val_loss")) == 1


def test_rows_are_saved_in_the_checkpoint(tmp_path: Path) -> None:
    """A resumed run has the rows up to its checkpoint, whatever a killed process had written after it."""
    trainer = train(tmp_path, epochs=2)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    rows = report.read_rows(tmp_path / "metrics.csv")
    write_rows(tmp_path / "metrics.csv", [*rows, {"epoch": 3, "step": 15, "val_loss": 99.0}])
    train(tmp_path, epochs=4, show="nothing", checkpoint=tmp_path / "two.ckpt")
    found = report.read_rows(tmp_path / "metrics.csv")
    assert [row["epoch"] for row in found] == [1, 2, 3, 4] and found[:2] == rows
    assert {row["val_loss"] for row in found} == {rows[0]["val_loss"]}
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("val_loss")] == [4, 9, 14, 19]


@pytest.mark.parametrize(
    ("monitor", "values", "best"),
    [
        ("val_loss", [3.0, 1.0, 1.0], 2),
        ("val_accuracy", [0.5, 0.9, 0.9], 2),
        ("val_loss", [math.nan, 2.0, 1.0], 3),
        ("val_loss", [math.nan], None),
        ("val_error", [3.0, 1.0, 2.0], 2),
        ("val_f1", [0.5, 0.9, math.inf], 2),
        ("val_accuracy_glossary", [0.5, 0.9, 0.7], 2),  # `glossary`, which has `loss` in it, is an output's name
        ("val_loss_accuracy", [3.0, 1.0, 2.0], 2),
        ("other", [], None),
    ],
)
def test_the_best_epoch(monitor: str, values: list[float], best: int | None) -> None:
    rows = [{"epoch": i + 1.0, monitor: value} for i, value in enumerate(values)] or [{"epoch": 1.0}]
    found = best_row(rows, monitor)
    assert (None if found is None else found["epoch"]) == best


def test_the_loss_decides_between_equal_epochs() -> None:
    values = [(0.5, 0.1), (0.9, 0.4), (0.9, math.nan), (0.9, 0.3), (0.9, 0.3), (0.8, 0.0)]
    rows = [{"epoch": i + 1.0, "val_accuracy": a, "val_loss": loss} for i, (a, loss) in enumerate(values)]
    found = best_row(rows, "val_accuracy")
    assert found is rows[3]


# ---- pictures, page --------------------------------------------------------------------------------------------------


def test_pictures_can_be_opened(run: Path) -> None:
    for name in ("loss", "accuracy", "confusion"):
        with Image.open(run / f"{name}.png") as picture:
            picture.load()
            assert min(picture.size) > 300 and len(picture.convert("L").getcolors(1 << 20)) > 20, "an empty picture"


@pytest.mark.parametrize("values", [[0.5], [0.5, math.nan, 0.1], [math.inf, 0.3], [0.2] * 500])
def test_curves_of_odd_values(values: list[float]) -> None:
    rows = [{"epoch": i + 1.0, "train_loss": value} for i, value in enumerate(values)]
    png = curves(rows, "loss", "val_loss")
    assert png is not None and png.startswith(b"\x89PNG")
    assert curves(rows, "accuracy", "val_loss") is None


def test_confusion_shows_the_classes_that_occur() -> None:
    """Those that are predicted only, too."""
    few = torch.tensor([[4, 0, 1], [0, 0, 0], [0, 2, 7]])
    places, names = [7, 500, 999], [f"class {number}" for number in range(1000)]
    many = torch.zeros(1000, 1000, dtype=torch.long)
    many[torch.tensor(places)[:, None], torch.tensor(places)] = few
    found = confusion_matrix(many, names, "test")
    assert found == confusion_matrix(few, [names[i] for i in places], "test: 3 of 1,000 classes occur")
    assert confusion_matrix(few[1:2, 1:2], ["one"], "test").startswith(b"\x89PNG"), "no sample at all"


@pytest.mark.parametrize("number", [2, 25, 50, 300])
def test_confusion_of_few_and_many_classes(number: int) -> None:
    counts = torch.eye(number, dtype=torch.long)
    assert confusion_matrix(counts, [HOSTILE * 9] * number, "test").startswith(b"\x89PNG")


class Page(HTMLParser):
    """Parses a page: its text and tags. The tags must be balanced."""

    VOID = {"meta", "img", "br", "hr", "link"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_self_contained_and_escapes_names(run: Path) -> None:
    text = (run / "report.html").read_text()
    page = Page(text)
    assert {tag for tag, _ in page.tags} & {"script", "link", "iframe"} == set()
    sources = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert len(sources) == 3 and all(source and source.startswith("data:image/png;base64,") for source in sources)
    assert "http" not in re.sub(r"base64,[^\"]*", "", text) and HOSTILE in page.text
    for expected in (
        "15 parameters",
        "90.00%",
        "best val loss, epoch 1",
        "onnxgen export model.py",
        f"--out {run}-again",
        "0.5",
    ):
        assert expected in page.text, expected


def test_the_duration_of_a_resumed_run_includes_all_epochs(tmp_path: Path) -> None:
    rows = [{"epoch": 1.0, "val_loss": 2.0, "seconds": 40.0}, {"epoch": 2.0, "val_loss": 1.0, "seconds": 30.0}]
    assert "1:10 min" in page(Settings(out=tmp_path), facts(), report.Outcome(31.0), rows, {})


# ---- what is shown ---------------------------------------------------------------------------------------------------


def test_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class First(lightning.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            print("a step")

    train(tmp_path, epochs=2, callbacks=[First()])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"training Net (15 parameters) on toys (40 train, 40 val) with cpu, to {tmp_path}"
    assert lines[1:6] == ["a step"] * 5
    values = r"loss [\d.]+, accuracy [\d.]+%"
    assert re.fullmatch(rf"epoch 1 of 2: train {values}; val {values} \(best\); .* s; [\d,.]+ samples/s", lines[6])
    assert lines[12].startswith("epoch 2 of 2: ") and "best" not in lines[12] and len(lines) == 13


def test_nothing_is_told_of_an_epoch_behind_its_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of one that ends within it, either."""
    monkeypatch.setattr(Lines, "every", 0.0)
    train(tmp_path, epochs=2, max_steps=8)
    told = [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    batches = [
        f"epoch {epoch} of 2, batch {batch} of 5" for epoch, last in ((1, 5), (2, 4)) for batch in range(1, last)
    ]
    assert told == [*batches[:4], "epoch 1 of 2", *batches[4:], "epoch 2 of 2, batch 3 of 5"]


def test_a_step_reads_nothing_from_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a value waits for everything queued on a GPU, so it happens by the clock and not at every step."""
    read: list[float] = []
    now = 0.0
    monkeypatch.setattr("onnxgen.training.report.progress.time.monotonic", lambda: now)
    shown = Progress(facts(), tmp_path, Metrics(tmp_path / "metrics.csv", "val_loss"))
    monkeypatch.setattr(shown, "_read_values", lambda *_: read.append(now))
    known: dict[str, Any] = {"max_epochs": 1, "num_training_batches": 100, "global_step": 0, "world_size": 1}
    known |= {"is_global_zero": True, "global_rank": 0, "strategy": None}
    trainer: Any = SimpleNamespace(**known)
    shown.on_train_start(trainer, None)
    for index in range(100):
        now = index / 100
        shown.on_train_batch_end(trainer, None, None, {"x": torch.zeros(8, 4)}, index)
    assert read == [0.5]


def test_the_dashboard(tmp_path: Path) -> None:
    from rich.console import Console

    metrics = Metrics(tmp_path / "metrics.csv", "val_loss")
    metrics.rows = [{"epoch": 1, "step": 5, "val_loss": 0.25, "val_accuracy": 0.5}]
    shown = Dashboard(facts(model=HOSTILE), tmp_path, metrics)
    shown.console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    shown.epoch, shown.epochs, shown.batch, shown.batches = 2, 3, 4, 5
    shown.loss, shown.rate, shown.left, shown.memory, shown.accuracy = 0.125, 1234.0, 61.0, 5 * 10**8, 0.75
    shown.losses.extend([1.0, 0.5, 0.125])
    shown.say(HOSTILE)
    shown.show()
    shown.close()
    text = shown.console.file.getvalue()
    for expected in (
        "2 of 3, batch 4 of 5",
        "0.125  █▄▁",
        "75.00%",
        "val loss 0.25",
        "1,234 samples/s, 500 MB",
        "1:01",
    ):
        assert expected in text, expected
    assert text.count("[bold]") == text.count("</title>") > 1, "names are no markup"


def test_the_reader_of_the_output_may_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run continues after the reader of its lines has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    shown = Lines(facts(), tmp_path, Metrics(tmp_path / "metrics.csv", "val_loss"))
    with os.fdopen(writer, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        shown.say("one")
        shown.say("two")


def test_a_signal_while_a_line_is_printed(tmp_path: Path) -> None:
    """The line of its handler comes next, and each line once."""
    from rich.console import Console

    class Interrupted(io.StringIO):
        def flush(self) -> None:
            if "two" not in self.getvalue() and not shown._said:
                shown.say("two")

    shown = Dashboard(facts(), tmp_path, Metrics(tmp_path / "metrics.csv", "val_loss"))
    shown.console = Console(file=Interrupted(), width=120, force_terminal=True, color_system=None)
    shown.say("one")
    assert shown.console.file.getvalue() == "one\ntwo\n"


def test_a_slow_run_has_a_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = Lines(facts(), tmp_path, Metrics(tmp_path / "metrics.csv", "val_loss"))
    shown.epoch, shown.epochs, shown.batch, shown.batches, shown.loss, shown.rate = 1, 2, 1, 6, 0.5, 0.34
    shown.show()
    assert "; 0.3 samples/s, " in capsys.readouterr().out
    row = {"epoch": 1.0, "step": 6.0, "val_loss": 0.5, "seconds": 70.0}
    ends = [epoch_line(row, "2", False, rate).rpartition("; ")[2] for rate in (0.34, 9.5, 10.4, 1234.5)]
    assert ends == ["0.3 samples/s", "9.5 samples/s", "10 samples/s", "1,234 samples/s"]


def test_the_speed_of_an_epoch_fits_its_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """40 samples in the seconds that stand beside it, however long what is between the epochs takes."""
    train(tmp_path, epochs=2)
    said = re.findall(r"epoch \d of 2: .*; ([\d,]+) samples/s", capsys.readouterr().out)
    took = [row["seconds"] for row in report.read_rows(tmp_path / "metrics.csv")]
    assert [float(rate.replace(",", "")) for rate in said] == pytest.approx([40 / s for s in took], abs=0.51)


def test_nouns_are_counted() -> None:
    found = [counted(number, noun) for number in (1, 2) for noun in ("class", "batch", "epoch")]
    assert found == ["1 class", "1 batch", "1 epoch", "2 classes", "2 batches", "2 epochs"]


def test_durations_and_sparklines() -> None:
    assert [duration(s) for s in (0.44, 12.4, 65, 7384, math.nan)] == ["0.4 s", "12 s", "1:05 min", "2:03:04 h", "?"]
    assert sparkline([]) == "" and sparkline([1.0]) == "▁" and sparkline([0.0, math.nan, 7.0]) == "▁█"


# ---- config.toml -----------------------------------------------------------------------------------------------------


def test_the_configuration_file_has_all_settings(run: Path) -> None:
    values = read_config(run / "config.toml")
    assert values.pop("model") == "model.py" and values.pop("data") == "toys"
    assert Settings(**values) == Settings(epochs=3, out=run)
