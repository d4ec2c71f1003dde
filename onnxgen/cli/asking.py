"""`onnxgen predict RUN FILES...`, `onnxgen evaluate RUN` and `onnxgen runs`."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from onnxgen.cli import DIFFERENT
from onnxgen.cli.boxes import COLUMNS, cells, plain, summary
from onnxgen.cli.boxes import rows as box_rows
from onnxgen.cli.files import newest_run, refuse_overwriting
from onnxgen.cli.images import read_for, write_images
from onnxgen.cli.process import sympy_later
from onnxgen.cli.say import progress, table, tell, tell_json
from onnxgen.common.atomic import replacing
from onnxgen.common.names import identifier
from onnxgen.errors import OnnxgenError, Problem, counted
from onnxgen.training.config import need_data
from onnxgen.training.data.layout import SUFFIXES, files_meant
from onnxgen.training.data.looking import refuse_all
from onnxgen.training.runs.contract import BEST_SCORE, LIKELY_BOX, finds_nothing
from onnxgen.training.runs.folder import is_own_file, is_run, no_run, runs_beside
from onnxgen.training.runs.record import BOXES, Record, read_record

if TYPE_CHECKING:
    from onnxgen.training.evaluate import Measured
    from onnxgen.training.runs.answers import Answer, Prediction
    from onnxgen.training.runs.learner import Learner

MAX_SHOWN = 8  # numbers of an answer in the table
STDIN = "-"


def predict_command(files: tuple[str, ...], **options: Any) -> int:
    """Predict for files with the run or the generated module that is named before them. Returns the exit code."""
    run, files = _asked_of(files)
    if not _is_module(run):
        return _predict(run, files, **options)
    with ExitStack() as stack:
        with progress("loading PyTorch and Lightning", options["quiet"] or options["as_json"]), sympy_later():
            from onnxgen.training.runs.untouched import untouched

            run = stack.enter_context(untouched(_generated(run, stack)))
        return _predict(run, files, **options)


_UNTRAINED = (".py", ".onnx")  # what is asked as its file left it


def _is_module(path: Path) -> bool:
    return path.suffix in _UNTRAINED and path.is_file() and not is_own_file(path)


def _generated(path: Path, stack: ExitStack) -> Path:
    """Return the module of an ONNX file, which is gone with the stack; a module as it is."""
    if path.suffix == ".py":
        return path
    from onnxgen import generate

    out = Path(stack.enter_context(TemporaryDirectory())) / f"{identifier(path.stem, 'model')}.py"
    generate(path, out)
    return out


def _predict(
    run: Path,
    files: tuple[str, ...],
    *,
    top: int,
    min_score: float | None,
    max_overlap: float | None,
    across_classes: bool,
    max_new_tokens: int | None,
    temperature: float | None,
    soft: bool,
    out: Path | None,
    force: bool,
    device: str,
    weights: Path | None,
    **say: Any,
) -> int:
    """Predict for files, and print a table, or write it to `out` (.csv or .npz, or a folder for images).

    Returns the exit code.
    """
    record = read_record(run)  # an error about the folder comes before PyTorch is loaded
    _check_suffix(out)
    writing = {"max_new_tokens": max_new_tokens, "temperature": temperature}
    boxes = {"min_score": min_score, "max_overlap": max_overlap, "across_classes": across_classes or None}
    options = _asked(record, run, writing, boxes)
    names = _named(files, record)
    refuse_overwriting([out] if out is not None and out.suffix else [], map(Path, names), force)
    quiet, as_json = say["quiet"], say["as_json"]
    with progress("loading PyTorch", quiet or as_json):
        learner = _learner(run, device, weights)
    with progress("predicting", quiet or as_json):
        paths = [Path(name) for name in names]  # a text would be another thing to predict for
        predictions = learner.predict(paths, skip=True, soft=soft, **options)
    least = LIKELY_BOX if min_score is None else min_score
    if out is not None:
        _write(out, predictions, record, top, force)
    if as_json:
        tell_json([_plain(one, top) for one in predictions])
    elif out is not None and not quiet:
        tell(
            f"wrote {out}"
            + (f": {summary(predictions, top, least)}" if predictions[0].answer.boxes is not None else "")
        )
    elif out is None:
        _print(predictions, top, least)
    return _said_of(learner, quiet)


def _check_suffix(out: Path | None) -> None:
    if out is not None and out.suffix not in (".csv", ".npz", ""):
        way = "name a file that ends in .csv, or in .npz for whole outputs; for images a folder"
        raise OnnxgenError(f"can't write {out}", help=way)


def _said_of(learner: Learner, quiet: bool) -> int:
    """Tell what the values are, and what was left out. Returns the exit code."""
    for text in dict.fromkeys([*learner.notes, *([] if quiet else learner.fed)]):
        tell(f"note: {text}", to_errors=True)
    for text in learner.skipped:
        tell(f"skipped: {text}", to_errors=True)
    return DIFFERENT if learner.skipped else 0


def _asked_of(files: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """Return the run that is named before the files, else the newest one, which is told; and the files."""
    first = Path(files[0])
    if is_own_file(first) or (not first.exists() and len(files) == 1 and runs_beside(first)):
        raise no_run(first)
    is_data = first.is_file() and first.suffix not in _UNTRAINED or "*" in files[0] or files[0] == STDIN
    if is_run(first) or len(files) > 1 and not is_data:  # what is wrong with a run is told of it
        return first, files[1:]
    return newest_run("asking", always=True), files


def _named(files: Sequence[str], record: Record) -> list[str]:
    """Return the names of the files to predict for. Raises `OnnxgenError` if there are none."""
    names = [line.strip() for line in sys.stdin if line.strip()] if tuple(files) == (STDIN,) else list(files)
    if not names:
        way = "onnxgen predict RUN FILES...; - reads their names from stdin"
        raise OnnxgenError("no file to predict for", help=way)
    paths = [path for name in names for path in files_meant(name)] if not record.writes else []
    if paths and all(path.suffix.lower() in SUFFIXES for path in paths):
        refuse_all(paths)
    return names


def _asked(record: Record, run: Path, writing: Mapping[str, Any], boxes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are given. Raises `OnnxgenError` if one is for another kind of network."""
    options = {name: value for name, value in {**writing, **boxes}.items() if value is not None}
    finds = any(target.loss == BOXES for target in record.targets)
    for name in options:
        option = f"--{name.replace('_', '-')}"
        if name in boxes and not finds:
            raise OnnxgenError(f"{option} is for boxes, and {run} finds none", help="leave it out")
        if name in writing and not record.writes:
            raise OnnxgenError(f"{option} is for language models, and {run} is none", help="leave it out")
    return options


def evaluate_command(run: Path | None, **options: Any) -> int:
    """Evaluate a run or a generated module, and print its metrics and the number of samples. Returns the exit code."""
    run = run or newest_run("asking")
    if not _is_module(run):
        return _evaluate(run, **options)
    if options["data"] is None:
        raise OnnxgenError(f"{run} has no data of its own, as a run has", help="name some: --data DATA")
    with ExitStack() as stack:
        with progress("loading PyTorch and Lightning", options["quiet"] or options["as_json"]), sympy_later():
            from onnxgen.training.runs.untouched import is_told, untouched

            run = _generated(run, stack)
            told = is_told(run) and options["weights"] is options["task"] is None
            run = stack.enter_context(untouched(run)) if told else run
        return _evaluate(run, **options) if told else _evaluate_module(run, **options)


def _evaluate(
    run: Path,
    *,
    data: str | None,
    part: str | None,
    task: str | None,
    teacher: Path | None,
    device: str,
    weights: Path | None,
    **say: Any,
) -> int:
    record = read_record(run)
    if data is not None:
        need_data(data)
    quiet, as_json = say["quiet"], say["as_json"]
    with progress("loading PyTorch and Lightning", quiet or as_json):
        learner = _learner(run, device, weights, task=task, teacher=teacher)
    with progress("evaluating", quiet or as_json):
        learner.evaluate(data, part=part)
    measured = learner.measured
    assert measured is not None
    what = (f"the {learner.scored} part of " if learner.scored else "") + (data or str(record.data_for(run)))
    return _print_measured(record.name, what, measured, [*learner.notes, *([] if quiet else learner.fed)], **say)


def _evaluate_module(module: Path, *, data: str, part: str | None, weights: Path | None, **given: Any) -> int:
    """Measure a generated module as its file left it, or with other weights. Returns the exit code."""
    from onnxgen.training.evaluate import measure
    from onnxgen.training.settings import Settings

    need_data(data)
    say = {name: given.pop(name) for name in ("quiet", "as_json", "verbose") if name in given}
    with progress("evaluating", say["quiet"] or say["as_json"]):
        settings = Settings(val=0.0, weights=weights, **{name: v for name, v in given.items() if v is not None})
        measured = measure(module, data, part=part, settings=settings)
    return _print_measured(module.name, data, measured, [] if say["quiet"] else measured.fed, **say)


def _print_measured(
    name: str, what: str, measured: Measured, notes: Sequence[str], *, quiet: bool, as_json: bool, **_: Any
) -> int:
    unsure = finds_nothing(measured.metrics.get(BEST_SCORE, 1.0))
    for text in filter(None, (*measured.notes, *notes, unsure)):
        tell(f"note: {text}", to_errors=True)
    if as_json:
        tell_json({**measured.metrics, "samples": measured.samples, "skipped": measured.skipped})
    elif not quiet:
        from onnxgen.training.runs.metrics import number

        some = f"{measured.samples:,} of " if measured.whole != measured.samples else ""
        where = f"{name} on {some}{counted(measured.whole, 'sample')} of {what}"
        tell(f"{where}: " + ", ".join(f"{name} {number(name, v)}" for name, v in measured.metrics.items()))
    return DIFFERENT if measured.skipped else 0


def runs_command(folder: Path, *, html: Path | None, force: bool, **say: Any) -> int:
    """List the runs in a folder and compare them. Returns the exit code."""
    from onnxgen.training.runs.metrics import GENERATOR, compared, listed, page

    if html is not None:
        refuse_overwriting([html], (), force, ours=GENERATOR)
    runs, damaged = listed(folder)
    if not runs:
        none = Problem(f"there are no runs in {folder}", help="onnxgen train makes them in runs/")
        raise OnnxgenError(*map(Problem, damaged) if damaged else [none])
    for text in damaged:
        tell(f"note: left out, since {text}", to_errors=True)
    if html is not None:
        with replacing([html.parent]) as files, files.file(html) as file:
            file.write(page(folder, runs).encode())
    if say["as_json"]:
        tell_json([one.as_json() for one in runs])
    elif html is not None and not say["quiet"]:
        tell(f"wrote {html}")
    elif html is None:
        table(f"{counted(len(runs), 'run')} in {folder}", *compared(runs))
    return 0


def _learner(run: Path, device: str, weights: Path | None, **named: Any) -> Learner:
    with sympy_later():
        from onnxgen.training.runs.learner import load

    return load(run, device=device, weights=weights, **named)


# ---- what is printed -------------------------------------------------------------------------------------------------


def _print(predictions: Sequence[Prediction], top: int, least: float) -> None:
    if predictions[0].answer.boxes is not None:
        table(summary(predictions, top, least), ["file", *COLUMNS[1:]], cells(predictions, top))
        return
    several = len(predictions[0].answers) > 1
    rows = [
        [one.source, *([name] if several else []), *_cells(answer, top)]
        for one in predictions
        for name, answer in one.answers.items()
    ]
    table(counted(len(predictions), "prediction"), ["file", *(["output"] if several else []), "prediction", ""], rows)


def _cells(answer: Answer, top: int) -> tuple[str, str]:
    """Return what is predicted, and how sure that is."""
    if isinstance(answer.label, str):
        rest = answer.top(top)[1:] if answer.probabilities else []
        known = answer.probabilities.get(answer.label, answer.score)
        sure = "" if known is None else f"{known:.1%}"
        return answer.label.replace("\n", "\\n"), "  ".join([sure, *(f"{name} {p:.1%}" for name, p in rest)])
    if answer.label is not None and not answer.probabilities:  # the class of each position
        return " ".join(answer.label), ""
    if answer.label is not None:
        shown = answer.top(top) if top > 1 else [(name, answer.probabilities[name]) for name in answer.label]
        return ", ".join(answer.label) or "none", "  ".join(f"{name} {p:.1%}" for name, p in shown)
    if answer.value.size <= MAX_SHOWN:
        return " ".join(f"{v:.6g}" for v in answer.value.flatten().tolist()), ""
    way = "write it with -o FOLDER" if answer.is_image else "write them with -o FILE.npz"
    return f"{answer.value.dtype} {list(answer.value.shape)}", way


def _plain(one: Prediction, top: int) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for name, answer in one.answers.items():
        if answer.boxes is not None:
            answers[name] = {"boxes": plain(answer, top)}
            continue
        probabilities = dict(answer.top(top) if top > 1 else answer.probabilities.items())
        answers[name] = {"label": answer.label, "probabilities": probabilities, "value": answer.value.tolist()}
        answers[name] |= {} if answer.score is None else {"score": answer.score}
    return {"source": one.source, "outputs": answers}


def _write(out: Path, predictions: Sequence[Prediction], record: Record, top: int, force: bool) -> None:
    if not out.suffix:
        write_images(out, predictions, record, top, force)
        return
    refuse_overwriting([out], read_for(predictions), force)
    content = _npz(predictions) if out.suffix == ".npz" else _csv(predictions, top)
    with replacing([out.parent]) as files, files.file(out) as file:
        file.write(content)


def _csv(predictions: Sequence[Prediction], top: int) -> bytes:
    """Return a row for each sample: label and probabilities of each class, or numbers. Each box has a row."""
    if predictions[0].answer.boxes is not None:
        return _table(COLUMNS, box_rows(predictions, top))
    rows = []
    for one in predictions:
        row: dict[str, Any] = {"source": one.source}
        for name, answer in one.answers.items():
            before = f"{name}." if len(one.answers) > 1 else ""
            if answer.label is None and answer.value.size > MAX_SHOWN:
                what = f"output {name} has {answer.value.size:,} numbers for each sample, too many for a table"
                raise OnnxgenError(what, help="write them with -o FILE.npz")
            if answer.label is not None:
                row[f"{before}label"] = answer.label if isinstance(answer.label, str) else " ".join(answer.label)
                row |= {f"{before}p({label})": p for label, p in answer.probabilities.items()}
                row |= {} if answer.score is None else {f"{before}score": answer.score}
            else:
                values = answer.value.flatten().tolist()
                row |= {f"{before}value{n if len(values) > 1 else ''}": value for n, value in enumerate(values)}
        rows.append(row)
    return _table(list(dict.fromkeys(name for row in rows for name in row)), rows)


def _table(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")  # a name of a file that is not UTF-8 stays as it is


def _npz(predictions: Sequence[Prediction]) -> bytes:
    """Return the values of each output, stacked, and the sources. Boxes are joined; `image` is the source of each.

    Values of several shapes, such as those of sequences, are arrays of their own: `NAME.0` is that of the first source.
    """
    import numpy as np

    content = io.BytesIO()
    values = {n: [one.answers[n].value for one in predictions] for n in predictions[0].answers}
    if predictions[0].answer.boxes is not None:
        arrays: dict[str, Any] = {n: np.concatenate(parts) for n, parts in values.items()}
        arrays["image"] = np.repeat(np.arange(len(predictions)), [len(one.answer.value) for one in predictions])
    else:
        arrays = {n: np.stack(parts) for n, parts in values.items() if len({p.shape for p in parts}) == 1}
        apart = {n: parts for n, parts in values.items() if n not in arrays}
        arrays |= {f"{n}.{number}": part for n, parts in apart.items() for number, part in enumerate(parts)}
    np.savez(content, source=np.array([one.source for one in predictions]), **arrays)
    return content.getvalue()
