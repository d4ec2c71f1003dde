"""`onnxgen train model.py --data DATA`."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from onnxgen.cli import INTERRUPTED
from onnxgen.cli.say import progress, tell, tell_json
from onnxgen.common.paths import like, python_file
from onnxgen.errors import OnnxgenError, Problem, Problems, counted
from onnxgen.training.config import DIGITS, NOT_SETTINGS, need_data, read_config
from onnxgen.training.data.glance import glance
from onnxgen.training.launch import first_process, restarted
from onnxgen.training.runs.folder import CONFIG, NAME, RUNS, holds_a_run, is_own_file, latest, need_run, no_run
from onnxgen.training.runs.record import going_on, need_same_code, read_record, refuse_code
from onnxgen.training.settings import Settings, command_words


def train_command(
    model: Path | None,
    options: dict[str, Any],
    wrong: Sequence[Problem] = (),
    *,
    data: str | None,
    config: Path | None,
    quiet: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Train and print a summary. Returns the exit code.

    Args:
        options: settings of the command line, which overrule those of `config`.
        wrong: what is wrong with others of them.

    Raises:
        OnnxgenError: all that is wrong with options, files and, as far as it is seen without PyTorch, the data.
    """
    problems = Problems()
    for problem in wrong:
        problems.add(problem)
    chosen = _chosen(options, config, problems, model=model, data=data)
    before = _trained_on(model, chosen)
    values = {**(_of_run(before, data, chosen) if before is not None else {}), **chosen}
    run = {name: str(values[name]) for name in NOT_SETTINGS if name in values}
    settings = _sound(_of_settings(values), problems)
    if "model" in run or not problems.found:  # a configuration file that can't be read may name it
        _check(run, settings, problems, quiet or as_json)
    problems.raise_if_any()
    with progress("loading PyTorch and Lightning", quiet or as_json):
        fit = _fit()
    if before is not None and data is not None:  # it may be a copy of the run's data, which takes PyTorch to tell
        from onnxgen.training.runs.learner import going_on_with

        values = {**going_on_with(before, data), **chosen}
    show = "nothing" if quiet or as_json else "auto"
    with _interrupted():  # with what was given, so that a recipe sets the rest
        result = fit(run["model"], run["data"], settings=Settings(), show=show, **_of_settings(values))
    if first_process():
        _tell(result, quiet, as_json)
    return INTERRUPTED if result.stopped == "interrupted" else 0


def _chosen(options: dict[str, Any], config: Path | None, problems: Problems, **named: Any) -> dict[str, Any]:
    """Return settings, model and data of the command line, and of a configuration file what these leave open."""
    if options.get("resume") and "out" not in options:
        options = {**options, "out": latest(options.get("name", ""))}
    chosen = {**_restarted(options), **{name: value for name, value in named.items() if value is not None}}
    with problems.gathered():
        chosen = {**_configured(config, chosen), **chosen}
    return chosen


def _restarted(options: dict[str, Any]) -> dict[str, Any]:
    """Return what the command line gives; a job that was started again goes on (`--restartable`)."""
    places = {name: options[name] for name in ("restartable", "resume", "out") if name in options}
    return {**options, "resume": True} if restarted(Settings(**places)).resume else options


def _trained_on(model: Path | None, chosen: Mapping[str, Any]) -> Path | None:
    """Return the run that is named as the model, also by a configuration file that names no data; else None."""
    if model is None and not chosen.get("resume") and "data" not in chosen:
        model = Path(chosen["model"]) if "model" in chosen else None
    return model if model is not None and model.is_dir() else None


def _of_run(before: Path, data: str | None, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings and the data of the run that is trained on. Code that it names is not run unasked."""
    base = {**going_on(before, data), "data": read_record(before).data_for(before)}
    refuse_code(base, chosen, before)
    return base


@contextmanager
def _interrupted() -> Iterator[None]:
    """Interrupt the command where Lightning would end the program.

    So it answers a second Ctrl-C, and with a class of its own SIGTERM before the first step.
    """
    try:
        yield
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt) or type(error) is not SystemExit:
            raise KeyboardInterrupt from None
        raise


def _of_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in NOT_SETTINGS}


def _configured(config: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the configuration file: the given one, or that of the run to resume.

    What the latter names outside of its folder is not run unasked, as what a record names.
    """
    if config is not None:
        return read_config(config)
    of_run = Path(options.get("out") or Settings().out) / CONFIG
    if not options.get("resume") or not of_run.is_file():
        return {}
    settings = read_config(of_run)
    refuse_code(settings, options, of_run.parent)
    if "model" in settings and "model" not in options:
        way = f"if you trust it, name it yourself: onnxgen train {settings['model']} --resume --out {of_run.parent}"
        need_same_code(Path(settings["model"]), of_run.parent, way)
    return settings


def _sound(values: Mapping[str, Any], problems: Problems) -> Settings:
    """Return the settings, after all that is wrong with them was added to the problems: then without those."""
    valid: list[Settings] = []
    with problems.gathered():
        valid.append(restarted(Settings(**values)))
    if valid:
        return valid[0]
    sound = {}
    for name, value in values.items():
        with suppress(OnnxgenError):
            Settings(**{name: value})
            sound[name] = value
    with suppress(OnnxgenError):
        return Settings(**sound)
    return Settings()  # some of them exclude each other


def _check(run: dict[str, str], settings: Settings, problems: Problems, quiet: bool) -> None:
    """Check everything that needs no PyTorch, which takes seconds to load."""
    if settings.resume and first_process():  # other processes may start after the first one has begun
        with problems.gathered():
            need_run(settings.out)
        if problems.found and "model" not in run:  # which only that run would name
            return
    _check_files(settings, problems)
    before = len(problems.found)
    with problems.gathered():
        _check_model(run)
    sound = len(problems.found) == before
    if "data" not in run and first_process() and not quiet and not problems.found:
        tell("no --data is given: trains on the digits, 1,797 images of 8x8 that come with scikit-learn")
    data = run.setdefault("data", DIGITS)
    with problems.gathered():
        need_data(data)
        if sound:
            glance(Path(run["model"]), data, settings)


def _check_files(settings: Settings, problems: Problems) -> None:
    if settings.weights is not None and not settings.weights.is_file():
        problems.add(f"there is no file {settings.weights}")
    if settings.teacher is not None and not settings.teacher.exists():
        problems.add(f"there is no teacher {settings.teacher}", help="--teacher names an ONNX file or a module")
    if not settings.resume and settings.out != RUNS and first_process() and holds_a_run(settings.out):
        problems.add(f"{settings.out} already has a run", help="continue it with --resume, or name another --out")


def _check_model(run: Mapping[str, str]) -> None:
    """Refuse a MODEL that is missing, or is no module and no run. Raises `OnnxgenError`."""
    if "model" not in run:
        raise OnnxgenError("MODEL is missing", help="onnxgen train model.py --data DATA")
    model = Path(run["model"])
    if is_own_file(model) and model.suffix != ".py":
        raise no_run(model)
    if not model.is_file() and not model.is_dir():
        raise OnnxgenError(f"there is no file or folder {model}", help=like(model, NAME))
    if not model.is_dir():
        python_file(model)
    elif not run.get("data", DIGITS):
        raise OnnxgenError(f"the data of {model} was a Python object", help="name data with --data")


def _fit() -> Any:
    """Return `fit`, which takes seconds to import, with advice that names options. Raises `ModuleNotFoundError`."""
    from onnxgen.training.fit import fit

    return command_words()(inspect.unwrap(fit))


def _next(out: Path) -> str:
    """Return the command to try next; "" if the run has no module to ask."""
    record = read_record(out)
    if not record.module and not record.settings.get("lora"):
        return ""
    held = {"test", "val"} & record.parts.keys() and record.data
    command = shlex.join(["onnxgen", "evaluate" if held else "predict", str(out)])
    return command if held else f"{command} FILES"


def _tell(result: Any, quiet: bool, as_json: bool) -> None:
    """Print the last lines, or the JSON object."""
    from onnxgen.training.runs.metrics import number

    files = sorted(path.name for path in result.out.iterdir())
    if as_json:
        summary = {name: getattr(result, name) for name in ("stopped", "best_epoch", "history", "test")}
        tell_json({"out": str(result.out), "files": files, **summary})
    elif not quiet:
        if result.test:
            shown = ", ".join(f"{name.removeprefix('test_')} {number(name, v)}" for name, v in result.test.items())
            tell(f"test: {shown}")
        if result.stopped == "interrupted":
            whole = counted(len(result.history), "whole epoch")
            tell(f"stopped after {whole}; continue with: onnxgen train --resume --out {result.out}")
        tell(f"in {result.out}: {', '.join(files)}")
        if result.stopped != "interrupted" and (next_one := _next(result.out)):
            tell(f"next: {next_one}")
