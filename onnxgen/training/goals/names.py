"""The names that settings may give: tasks, losses, metrics, optimizers and schedules. Nothing here imports torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path

from onnxgen.errors import OnnxgenError, Problems
from onnxgen.training.byname import FUNCTION, by_name
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import AUTO, CARDS, OUTPUTS, known
from onnxgen.training.tasks.card import LOSS_SETTINGS

CLASS_LOSSES = ("cross_entropy", "nll_loss", "multi_margin_loss")  # their target is a class index
BINARY_LOSSES = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
# All losses of torch.nn.functional that need only an output and a target.
LOSSES = (
    *CLASS_LOSSES,
    *BINARY_LOSSES,
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
)
ALIASES = {name.removesuffix("_loss"): name for name in LOSSES} | {
    "bce": "binary_cross_entropy",
    "bce_with_logits": "binary_cross_entropy_with_logits",
    "ce": "cross_entropy",
    "kl": "kl_div",
    "mae": "l1_loss",
}
# Metrics beside those of torchmetrics.
METRICS = ("loss", "accuracy", "agreement", *(name for card in CARDS.values() for name in card.metrics))
_NO_NUMBER = re.compile("ConfusionMatrix|EER|NegativePredictiveValue|ROC|Specificity|StatScores|.*(At|Curve).*")
_RENAMED = {"jaccard_index": "mean_iou"}  # the name that the field uses


def loss_name(text: str) -> str:
    """Return torch's name of a loss. The text may be in any case, without `_loss`, or one of `ALIASES`.

    Raises `OnnxgenError` if there is no such loss (the error lists near matches).
    """
    return by_name(text, {name: name for name in LOSSES} | ALIASES, "loss")


def snake(name: str) -> str:
    """Return the name of a class as that of a metric: `F1Score` is `f1_score`."""
    metric = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    return _RENAMED.get(metric, metric)


def check_names(settings: Settings, problems: Problems, classes: bool = False) -> None:
    """Add each name that stands for nothing, as far as the files of torch and torchmetrics tell it.

    Args:
        classes: what is measured are classes for certain, so that metrics of numbers stand for nothing.
    """
    if not FUNCTION.fullmatch(settings.task):
        _look_up(settings.task, (AUTO, OUTPUTS, *CARDS), "task", problems)
    for name in losses_asked(settings):
        with problems.gathered():
            loss_name(name)
    _look_up(settings.optimizer, _listed("torch", "optim/__init__.py", ("Optimizer",)), "optimizer", problems)
    if settings.schedule is not None:
        known = _listed("torch", "optim/lr_scheduler.py", ("LRScheduler",))
        _look_up(settings.schedule, known, "schedule", problems)
    if settings.metric or settings.monitor != AUTO:
        _check_metrics(settings, problems, classes)


def refuse_for_task(settings: Settings) -> None:
    """Refuse settings that a task with a loss of its own does not read. Raises `OnnxgenError`."""
    default, losses = Settings(), known(settings.task).losses
    for name in LOSS_SETTINGS:
        if not (name == "loss" and losses) and getattr(settings, name) != getattr(default, name):
            option = f"--{name.replace('_', '-')}"
            raise OnnxgenError(f"{option} does not go with --task {settings.task}", help=f"leave out {option}")


def losses_asked(settings: Settings) -> Iterator[str]:
    """Yield the names of losses of torch; those of a task are the task's own."""
    of_tasks = {name for card in CARDS.values() for name in card.losses} if settings.task == AUTO else set[str]()
    asked = [settings.loss] if isinstance(settings.loss, str) else settings.loss.values()
    if settings.task in (AUTO, OUTPUTS):
        yield from (name for name in asked if name.strip().lower() not in {AUTO, *of_tasks})


def _check_metrics(settings: Settings, problems: Problems, classes: bool) -> None:
    kinds = [_listed("torchmetrics", f"{kind}/__init__.py") for kind in ("classification", "regression")]
    if not all(kinds):
        return
    names = {re.sub("^(Binary|Multiclass|Multilabel)", "", name) for kind in kinds for name in kind}
    every = {*map(snake, names)}
    if classes:
        names = {name.removeprefix("Multiclass") for name in kinds[0] if name.startswith("Multiclass")}
    usual = tuple(snake(name) for name in names if not (classes and _NO_NUMBER.fullmatch(name)))
    known = {name.lower() for name in (*names, *map(snake, names))}
    for name in settings.metric:
        if name.strip().lower() not in known:
            _look_up(name, usual, "metric of classes" if classes else "metric", problems)
    _check_monitor(settings, every, problems)


def _check_monitor(settings: Settings, measured: Collection[str], problems: Problems) -> None:
    """Add a name of `--monitor` that is no metric. A part of the name may be that of an output."""
    part, _, rest = settings.monitor.partition("_")
    own = FUNCTION.fullmatch(settings.task) is not None  # its function names its metrics
    known = own or any(rest == name or rest.startswith(f"{name}_") for name in (*METRICS, *measured))
    if settings.monitor != AUTO and not (known and part in ("train", "val")):
        way = "there are train_loss, val_loss, and others that a run shows: val_accuracy, val_ and a name of --metric"
        problems.add(f"no metric is called {settings.monitor!r}", help=way)


def _look_up(name: str, known: tuple[str, ...], what: str, problems: Problems) -> None:
    if known:
        with problems.gathered():
            by_name(name, {one: one for one in known}, what)


def _listed(package: str, file: str, bases: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the classes that a file of a package lists in `__all__`, without these; () if it lists none."""
    spec = find_spec(package)
    path = Path(spec.origin).parent / file if spec is not None and spec.origin else None
    try:
        body = ast.parse(path.read_bytes()).body if path is not None else []
        assignments = [item for item in body if isinstance(item, ast.Assign)]
        lists = [item.value for item in assignments if getattr(item.targets[0], "id", "") == "__all__"]
        names = tuple(map(str, ast.literal_eval(lists[0]))) if lists else ()
    except (OSError, SyntaxError, ValueError):
        return ()
    return tuple(name for name in names if name[:1].isupper() and name not in bases)
