"""Shows a run while it trains, and writes its results to its folder.

callbacks = report.callbacks(settings, facts)
report.begin(settings, facts, {"model": "model.py", "data": "digits"})
trainer = lightning.Trainer(callbacks=callbacks, logger=report.loggers(settings), ...)
trainer.fit(...)
report.finish(settings, facts, report.Outcome(seconds, confusion=task.confusion))
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import lightning
import torch
from lightning.pytorch.utilities import rank_zero_only

from onnxgen._version import __version__
from onnxgen.common.atomic import replacing
from onnxgen.common.names import visible
from onnxgen.errors import OnnxgenError
from onnxgen.record.sidecar import files_there
from onnxgen.training.config import write_config
from onnxgen.training.data.text.tokenizer import KEPT
from onnxgen.training.recipes import CURVE, FIGURES
from onnxgen.training.report.facts import Facts, Outcome, facts_of
from onnxgen.training.report.metrics import TENSORBOARD, Metrics, loggers, need_packages
from onnxgen.training.report.page import Notebook, in_notebook, page
from onnxgen.training.report.plots import confusion_matrix, curves
from onnxgen.training.report.progress import Dashboard, Lines, Progress
from onnxgen.training.runs.folder import BEST, CONFIG, LAST
from onnxgen.training.runs.metrics import read_rows
from onnxgen.training.settings import Settings

__all__ = ["SHOWS", "Facts", "Metrics", "Outcome", "begin", "callbacks", "facts_of", "finish", "loggers", "read_rows"]

SHOWS = {"live": Dashboard, "notebook": Notebook, "lines": Lines, "nothing": Progress}
CURVES = ("loss", "accuracy")  # over the epochs
PICTURES = (*CURVES, "metric", "confusion", "examples")


def callbacks(settings: Settings, facts: Facts, show: str = "auto") -> tuple[Metrics, Progress]:
    """Return the callback that writes `metrics.csv`, and the one that shows the run.

    Args:
        show: "live" (a panel that needs a terminal), "notebook" (a table and a curve), "lines", "nothing", or "auto":
            what suits the place.

    Raises:
        OnnxgenError: `show` has another value, or a package for the report is missing.
    """
    need_packages(settings)
    if show not in ("auto", *SHOWS):
        raise OnnxgenError(f"show must be auto or one of {', '.join(SHOWS)}, not {show!r}")
    if show == "auto":
        show = "notebook" if in_notebook() else "live" if sys.stdout.isatty() else "lines"
    metrics = Metrics(settings.out / "metrics.csv", facts.monitor, settings.early_stop, facts.gentler)
    return metrics, SHOWS[show](facts, settings.out, metrics)


@rank_zero_only
def begin(settings: Settings, facts: Facts, named: Mapping[str, str]) -> None:
    """Make the run's folder and write `config.toml`.

    Unless the run is resumed, the files of an older run in the folder are removed.

    Args:
        named: the `model` and `data` of the run, if they are files or names.

    Raises:
        OSError: the folder can't be made or written.
    """
    out = settings.out
    out.mkdir(parents=True, exist_ok=True)
    names = ["metrics.csv", "report.html", CURVE, FIGURES, *KEPT, *(f"{picture}.png" for picture in PICTURES)]
    stale = [
        *map(out.joinpath, names),
        *files_there(out / BEST),
        *files_there(out / LAST),
        *(out / TENSORBOARD).glob("events.out.tfevents.*"),
    ]
    for path in [] if settings.resume else stale:
        path.unlink(missing_ok=True)
    versions = f"onnxgen {__version__}, torch {torch.__version__}, lightning {lightning.__version__}"
    write_config(out / CONFIG, settings, named, (facts.line(out), versions))


@rank_zero_only
def finish(settings: Settings, facts: Facts, outcome: Outcome) -> None:
    """Write the pictures and `report.html`, from `metrics.csv` and the facts about the run.

    Raises:
        OSError: they can't be written; the older files stay.
    """
    out = settings.out
    rows = read_rows(out / "metrics.csv")
    pictures = {name: curves(rows, name, facts.monitor) for name in CURVES}
    monitored = facts.monitor.partition("_")[2]
    if monitored not in CURVES:
        pictures["metric"] = curves(rows, monitored, facts.monitor)
    if outcome.confusion is not None:
        pictures["confusion"] = confusion_matrix(outcome.confusion, facts.classes, outcome.confused)
    if (out / CURVE).is_file():  # of the range test, before the run or before it was resumed
        pictures["lr"] = (out / CURVE).read_bytes()
    pictures["examples"] = outcome.examples
    drawn = {name: png for name, png in pictures.items() if png is not None}
    text = visible(page(settings, facts, outcome, rows, drawn))
    with replacing([out]) as files:
        for name, png in drawn.items():
            with files.file(out / f"{name}.png") as file:
                file.write(png)
        with files.file(out / "report.html") as file:
            file.write(text.encode())
