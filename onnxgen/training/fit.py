"""`fit`: train a model with Lightning's Trainer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from onnxgen._callable import callable_module
from onnxgen.common.timing import Still
from onnxgen.training.config import DIGITS, resolved
from onnxgen.training.finetune.batchnorm import held_if_singly, norms_before, without_norms
from onnxgen.training.launch import first_process, restarted
from onnxgen.training.prepare import Plan, prepare, quiet, seed_everything
from onnxgen.training.runs.alike import split_again
from onnxgen.training.runs.folder import RUNS, latest
from onnxgen.training.runs.learner import going_on_with
from onnxgen.training.runs.record import read_record, refuse_code
from onnxgen.training.settings import Settings, python_words

if TYPE_CHECKING:
    import lightning


@dataclass(repr=False)
class Result:
    """The result of a training run. A notebook shows it as a table of the epochs.

    Attributes:
        model: with the best weights, in eval mode, on the CPU, in its original dtypes. FSDP leaves the given model
            sharded; then this is another object, whose weights are mapped from the run's files. If no epoch was better
            than a trained model, the best weights are those that it began with.
        out: the folder of the run.
        history: the metrics of each epoch, as in `metrics.csv`.
        best_epoch: index of the best epoch in `history`, from 0.
        test: the metrics of the test part, if there is one.
        stopped: why the run ended ("epochs", "max_steps", "max_hours", "early stop", "interrupted").
    """

    model: nn.Module
    out: Path
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    test: dict[str, float] | None = None
    stopped: str = "epochs"

    def __repr__(self) -> str:
        from onnxgen.training.report.progress import scores

        rows = "".join(f"\n  epoch {row['epoch']:.0f}: {scores(row)}" for row in self.history)
        return f"<{self._facts()}>{rows}"

    def _repr_html_(self) -> str:
        from onnxgen.training.report.page import table

        best = self.history[self.best_epoch] if self.history else None
        return f"<p>{escape(self._facts())}</p>{table(self.history, best)}"

    def _facts(self) -> str:
        from onnxgen.training.report.progress import scores

        best = f"the best is epoch {self.history[self.best_epoch]['epoch']:.0f}, " if self.history else ""
        test = f", {scores(self.test, ('test',))}" if self.test else ""
        return f"{type(self.model).__name__}; stopped: {self.stopped}, {best}files in {self.out}{test}"


@python_words()
def fit(
    model: nn.Module | Path | str,
    data: Any = None,
    *,
    settings: Settings | None = None,
    callbacks: Sequence[lightning.Callback] = (),
    show: str = "auto",
    **overrides: Any,
) -> Result:
    """Train a model.

    The global generators of Python, numpy and torch are seeded with `seed`.

    Args:
        model: an `nn.Module`, trained in place, or the path of a generated file, or of a run to go on from.
        data: what `onnxgen.training.data.open_data` takes: a path, "digits", "module:function", arrays, datasets.
            Default: the digits; of a run its own data.
        settings, overrides: see `Settings`; `fit(model, data, epochs=3, lr=1e-3)`.
        callbacks: Lightning callbacks, in addition to those of every run.
        show: "live" (a panel that needs a terminal), "notebook" (a table and a curve), "lines", "nothing", or "auto":
            what suits the place.

    Raises:
        OnnxgenError: model, data and settings do not fit together (nothing was trained), or the loss became NaN.
    """
    before = Path(model) if isinstance(model, (str, Path)) and Path(model).is_dir() else None
    if settings is None and before is not None:
        own = going_on_with(before, data)
        refuse_code(own, overrides, before)
        settings = Settings(**own)
    settings, chosen = resolved(settings, overrides)
    settings = restarted(settings)
    if settings.resume and settings.out == RUNS:
        settings = replace(settings, out=latest(settings.name))
    if data is None:
        data = read_record(before).data_for(before) if before is not None else DIGITS
        refuse_code({"data": data}, (), before or Path())
    with quiet(), _preparing(show):
        seed_everything(settings.seed)
        plan = prepare(model, data, settings)
        plan.notes += chosen
        _ready_norms(plan, bool(chosen))
        plan.notes += [] if before is None else [split_again(before, plan.data)]
        from onnxgen.training.report.facts import file_of  # Lightning takes seconds, and is for a sound plan alone
        from onnxgen.training.running import run

    named = {"model": plan.file or file_of(plan.model), "data": data if isinstance(data, (str, Path)) else None}
    with quiet():
        return run(plan, callbacks, show, {name: str(value) for name, value in named.items() if value is not None})


def _preparing(show: str) -> AbstractContextManager[object]:
    """Say what goes on where a run prints lines."""
    kernel = hasattr(getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), "kernel")
    lines = show == "lines" or (show == "auto" and not kernel and not sys.stdout.isatty())
    if not (lines and first_process()):
        return nullcontext()
    return Still(lambda: "preparing the run", partial(print, flush=True))


def _ready_norms(plan: Plan, recipe: bool) -> None:
    """Measure or freeze the BatchNorms of a model that is fine-tuned, or runs on one sample at a time."""
    plan.notes += held_if_singly(plan.model)
    settings = plan.settings
    if settings.from_scratch:
        plan.notes += without_norms(plan.model)
        return
    notes, frozen = norms_before(plan.model, plan.train, plan.feeding, settings, recipe)
    plan.notes += notes
    plan.settings = replace(settings, freeze=(*settings.freeze, *frozen))


callable_module(__name__, fit)
