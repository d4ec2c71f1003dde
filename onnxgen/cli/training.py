"""`onnxgen train model.py --data DATA`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from onnxgen.cli import INTERRUPTED
from onnxgen.cli.say import progress, tell, tell_json
from onnxgen.common.paths import installing, python_file
from onnxgen.errors import OnnxgenError, counted
from onnxgen.training.checkpoint.folder import CONFIG, holds_a_run, need_run
from onnxgen.training.config import DIGITS, read_config
from onnxgen.training.settings import Settings


def train_command(
    model: Path | None,
    given: dict[str, Any],
    *,
    data: str | None,
    config: Path | None,
    quiet: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Train and say what came of it; returns the exit code.

    Args:
        given: settings that the command line names itself: they win over those of `config`.
    """
    said = {"model": model, "data": data}
    values = {**_configured(config, given), **given, **{k: v for k, v in said.items() if v is not None}}
    run: dict[str, str] = {name: str(values.pop(name)) for name in said if name in values}
    settings = Settings(**values)
    _check(run, settings)
    with progress("loading PyTorch and Lightning", quiet or as_json):
        fit = _fit()
    try:
        result = fit(run["model"], run["data"], settings=settings, show="nothing" if quiet or as_json else "auto")
    except SystemExit:  # so Lightning answers a second Ctrl-C
        raise KeyboardInterrupt from None
    if first_process():
        _tell(result, quiet, as_json)
    return INTERRUPTED if result.stopped == "interrupted" else 0


def _configured(config: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """The values of the configuration file: the one that was named, or that of the run to go on with."""
    if config is not None:
        return read_config(config)
    of_run = Path(given.get("out") or Settings().out) / CONFIG
    return read_config(of_run) if given.get("resume") and of_run.is_file() else {}


def _check(run: dict[str, str], settings: Settings) -> None:
    """What can be told without PyTorch, which takes seconds to load."""
    if settings.resume and first_process():  # others may come when the first one has begun
        need_run(settings.out)
    if "model" not in run:
        raise OnnxgenError("no model is named", help="onnxgen train model.py --data DATA")
    if not Path(run["model"]).is_file():
        raise OnnxgenError(f"there is no file {run['model']}", help="name the module that onnxgen generated")
    if settings.weights is not None and not settings.weights.is_file():
        raise OnnxgenError(f"there is no file {settings.weights}")
    if run["model"].endswith(".onnx"):
        made = Path(run["model"]).with_suffix(".py")
        raise OnnxgenError(
            f"{run['model']} is no Python file", help=f"first: onnxgen {run['model']} -o {made}; then train {made}"
        )
    python_file(Path(run["model"]))
    data = run.setdefault("data", DIGITS)
    if data != DIGITS and ":" not in data and not Path(data).exists():
        raise OnnxgenError(f"there is no data at {data}", help="name a file, a folder, module:function or digits")
    if not settings.resume and settings.out != Settings().out and first_process() and holds_a_run(settings.out):
        raise OnnxgenError(
            f"{settings.out} holds a run already", help="--resume goes on with it; else name another --out"
        )


def first_process() -> bool:
    """Of several that a launcher started, as it tells them: only the first speaks and writes."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))


def _fit() -> Any:
    """`onnxgen.training.fit`, or the way to install what it needs."""
    try:
        import lightning  # noqa: F401

        from onnxgen.training import fit
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("onnxgen"):
            raise
        raise OnnxgenError(f"training needs {error.name}", help=installing("train")) from None
    return fit


def _tell(result: Any, quiet: bool, as_json: bool) -> None:
    """The last lines, or the object."""
    from onnxgen.training.report.progress import number

    files = sorted(path.name for path in result.out.iterdir())
    if as_json:
        told = {name: getattr(result, name) for name in ("stopped", "best_epoch", "history", "test")}
        tell_json({"out": str(result.out), "files": files, **told})
    elif not quiet:
        if result.test:
            shown = ", ".join(f"{name.removeprefix('test_')} {number(name, v)}" for name, v in result.test.items())
            tell(f"test: {shown}")
        if result.stopped == "interrupted":
            whole = counted(len(result.history), "whole epoch")
            tell(f"stopped after {whole}; onnxgen train --resume --out {result.out} goes on")
        tell(f"in {result.out}: {', '.join(files)}")
