"""A run, opened: its model, and what it needs to treat other data as in training."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor, nn

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError
from onnxgen.surgery.ports import signature_of
from onnxgen.training.config import is_path, is_there
from onnxgen.training.data import feed, open_data
from onnxgen.training.data.arrays import Tuples
from onnxgen.training.data.columns import from_columns, is_idx, tensor_of
from onnxgen.training.data.fitting import fit_to_model
from onnxgen.training.data.folder import open_images
from onnxgen.training.data.layout import SOUNDS, SUFFIXES, files_meant
from onnxgen.training.data.looking import looked
from onnxgen.training.data.opening import FILES, from_object, open_source
from onnxgen.training.data.samples import Data
from onnxgen.training.data.scaling import by_width, squeezed
from onnxgen.training.data.sounds import look_at_sound
from onnxgen.training.data.source import DataSource
from onnxgen.training.data.text.choosing import columns_of_texts, rename_text, text_columns, to_read
from onnxgen.training.data.text.roles import IDS, roles_of
from onnxgen.training.devices import choose, prepare_for
from onnxgen.training.evaluate import PREFERRED_PARTS, Measured, measure, predict
from onnxgen.training.goals.outputs import output_names
from onnxgen.training.model import as_tuple, fixed_batch, open_model
from onnxgen.training.runs.alike import (
    as_in_training,
    batched,
    files_of_each,
    finished,
    fits,
    need_classes,
    need_one_part,
    parts_of,
    told_seen,
    with_its_images,
    with_its_target,
    with_widths_of_training,
)
from onnxgen.training.runs.answers import Prediction, answer, compared, is_map
from onnxgen.training.runs.contract import LIKELY_BOX, MOST_OVERLAP, Finding
from onnxgen.training.runs.record import BOXES, going_on, is_same, read_record, refuse_code
from onnxgen.training.settings import Settings, run_words
from onnxgen.training.singly import run_singly
from onnxgen.training.stepwise import run_stepwise, steps_of_each, stepwise
from onnxgen.training.tasks import card_of

Named: TypeAlias = tuple[Data, list[str]]  # data, and a name for each sample


def load(
    run: Path | str,
    *,
    device: str = "auto",
    weights: Path | str | None = None,
    task: str | None = None,
    teacher: Path | str | None = None,
) -> Learner:
    """Open a run that `fit` or `onnxgen train` left.

    Args:
        run: its folder.
        device: where it predicts and evaluates; see `Settings.device`.
        weights: other weights than the best ones.
        task, teacher: needed to evaluate if the run was trained with a function or a module: see docs/RUNS.md.

    Raises:
        OnnxgenError: the folder is no run, or it has no module.
    """
    return Learner(Path(run), device, weights, task=task, teacher=teacher)


class Learner:
    """A trained model with its record.

    Attributes:
        run: the folder.
        record: see `Record`: classes, inputs, settings, results.
        model: in eval mode.
        settings: those of the run, for its data, which are not augmented.
        texts: the columns of text that it was trained on; () if it reads none.
        named: the settings that the user named, beside the record.
        skipped: what `predict` left out.
        notes: what `predict` and `evaluate` say of other data.
        fed: how they feed its images.
        scored: the part that `evaluate` took; "" if the data has no parts.
        measured: what `evaluate` found, of how many samples; None before. Of the run's own data, which is as it was in
            the training, nothing counts as skipped.
    """

    def __init__(
        self, run: Path, device: str = "auto", weights: Path | str | None = None, **named: Path | str | None
    ) -> None:
        self.run, self.record = run, read_record(run)
        self.named: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        self.settings = replace(self.record.settings_for(run), device=device, resume=False, augment="none")
        if self.named.get("task", self.settings.task) != self.settings.task:
            what = f"{run} was trained with the task {self.settings.task}, not {self.named['task']}"
            raise OnnxgenError(what, help="leave --task out, or name that one")
        self.settings = replace(self.settings, **self.named)
        if self.settings.teacher is not None and not self.settings.teacher.exists():
            if any(target.column for target in self.record.targets):  # the data's targets can be evaluated alone
                self.settings = replace(self.settings, teacher=None, teacher_features={})
        self.model: nn.Module = open_model(run, weights).eval()
        if self.settings.carry:
            run_stepwise(self.model, None, self.settings)
        fits(self.record, self.model, run, self.settings.const)
        self.texts: tuple[str, ...] = ()
        self.skipped: list[str] = []
        self.notes: list[str] = []
        self.fed: list[str] = []
        self.scored = ""
        self.measured: Measured | None = None
        if "tokenizer" in self.record.settings:
            name = roles_of(signature_of(self.model), ())[IDS].name
            self.texts = next((entry.columns for entry in self.record.inputs if entry.name == name), ())
            self.settings = replace(self.settings, inputs={**self.settings.inputs, name: "+".join(self.texts)})

    def __repr__(self) -> str:
        inputs = ", ".join(f"{i.name} {list(i.shape)}" for i in self.record.inputs)
        outputs = ", ".join(t.name + (f" of {t.classes} classes" if t.classes else "") for t in self.record.targets)
        return f"<run {self.record.name}: {self.record.model}, {inputs} -> {outputs}>"

    def predict(
        self,
        data: Any,
        *,
        min_score: float = LIKELY_BOX,
        max_overlap: float = MOST_OVERLAP,
        across_classes: bool = False,
        max_new_tokens: int = 50,
        temperature: float | None = None,
        soft: bool = False,
        skip: bool = False,
    ) -> list[Prediction]:
        """Return a prediction for each sample, in order. Images and tables are prepared as in training.

        Two texts, to a network that makes vectors of them, are a pair: its value is the cosine of their vectors.

        A language model continues texts: the label is what comes next, the value has its token ids. It needs
        transformers.

        Args:
            data: a file (an image, a table, text, arrays), a folder, a pattern ("photos/*.jpg"), or a list of them; a
                PIL image or a list of them; an array, of one sample or of several; a DataFrame; a dict of columns, by
                input or by column. If the run reads text, a list of texts or of pairs of them.
            min_score: boxes with a lower score are left out.
            max_overlap: a box is left out if a better one of its class overlaps it by a greater IoU.
            across_classes: a better one of another class counts, too.
            max_new_tokens: the most tokens with which a language model continues a text.
            temperature: None takes the most probable token each time. Else tokens are drawn, with the run's seed.
            soft: of maps of classes, return the probability of each class (see `Answer.soft`).
            skip: leave out images and sounds that can't be read; `skipped` says which, and why.

        Raises:
            OnnxgenError: there is no such data, it can't be read, or it does not fit the model.
        """
        with run_words(self._takes):
            if self.record.writes:
                return self._continued(data, max_new_tokens, temperature)
            opened, finding = self._opened(data, skip), Finding(min_score, max_overlap, across_classes)
            return [one for fitted, names in opened for one in self._each(fitted, names, finding, soft)]

    def evaluate(self, data: Any = None, *, part: str | None = None) -> dict[str, float]:
        """Return losses and metrics; `measured` says of which samples.

        Args:
            data: by default the data of the run, of which the held back part is evaluated. A copy of it is the same.
            part: "test", "val" or "train". Default: of the run's own data the test part, else the validation part. Of
                other data as in `evaluate`.

        Raises:
            OnnxgenError: the run has no part that it was not trained on, its data has changed, or data does not fit.
        """
        own = self.record.data_for(self.run)
        named = {*self.named, *([] if data is None else ["data"])}
        refuse_code({"data": own, "task": self.settings.task, "teacher": self.settings.teacher}, named, self.run)
        with run_words(self._takes):
            if data is None or is_same(data, own) or self._is_copy(data):
                held = self._held(own if data is None else data, part)
                self.scored = self._part(part)
                self.notes += squeezed(held.parts[self.scored])
                measured = measure(self.model, held, part=self.scored, settings=self.settings)
                self.measured = replace(measured, skipped=0, whole=measured.samples)
                return measured.metrics
            settings = replace(self.settings, val=0.0, test=0.0)
            source = open_source(data, settings, texts=self.texts)
            settings = with_its_target(source, settings)
            fitted = self._fitted(source, settings)
            part = part or next((name for name in PREFERRED_PARTS if name in fitted.parts), "")
            self.scored = part if len(fitted.parts) > 1 else ""
            self.notes += squeezed(fitted.parts[part]) if part in fitted.parts else []
            self.notes += told_seen(self.run, fitted, part, feed(fitted, self.model, settings).inputs)
            self.measured = measure(self.model, fitted, part=part or None, settings=settings)
            return self.measured.metrics

    @property
    def _takes(self) -> str:
        """Advice: what data is like that of the training."""
        if self.texts:
            return f"give texts in {listed(self.texts)}, as in the training"
        kinds = ("images" if i.image else f"{i.dtype} {list(i.shape)}" for i in self.record.inputs)
        inputs = ", ".join(
            f"columns {listed(i.columns)}" if i.columns else f"{i.column} ({kind})"
            for i, kind in zip(self.record.inputs, kinds)
        )
        return f"give data like that of the training, without gaps: {inputs}"

    @property
    def held_back(self) -> str:
        """The part of the run's data that it was not trained on: "test", else "val"; "" if there is none."""
        return next((name for name in ("test", "val") if name in self.record.parts), "")

    def held(self, data: Any = None, part: str | None = None) -> Data:
        """Return the data of the run, split as it was; `data` and `part` as in `evaluate`.

        Raises:
            OnnxgenError: the data is gone, or it is not the same any more.
        """
        own = self.record.data_for(self.run)
        refuse_code({"data": own}, {*self.named, *([] if data is None else ["data"])}, self.run)
        return self._held(own if data is None else data, part)

    def _part(self, part: str | None) -> str:
        """Return the part of the run's own data to evaluate: never the training part, unless asked for."""
        chosen = part or self.held_back
        if not chosen:
            what = f"{self.record.name} was trained on all of its data, so none of it can tell how good the model is"
            raise OnnxgenError(what, help="give other data with --data, or ask for the training samples: --part train")
        return chosen

    def _is_copy(self, data: Any) -> bool:
        """Return True if data, split as that of the run, has the same parts: a copy, or the same in another place."""
        try:
            opened = open_data(data, self.model, self.settings)
        except OnnxgenError:  # other data may have no such column, or be too small for these parts
            return False
        return parts_of(opened) == self.record.parts

    def _held(self, own: Any, part: str | None) -> Data:
        """Return the data of the run, split as it was. Raises `OnnxgenError` if it is not the same any more."""
        if isinstance(own, str) and not own:
            raise OnnxgenError("the run's data was a Python object", help="give the data: evaluate(data)")
        if isinstance(own, str) and is_path(own) and not is_there(own):
            what = f"the data of {self.run} is gone: there is no {own}"
            raise OnnxgenError(what, help="say where it is now, with --data; in Python: evaluate(data)")
        opened = open_data(own, self.model, self.settings)
        with_widths_of_training(opened, feed(opened, self.model, self.settings), self.record)
        name = self._part(part)
        samples, then = opened.parts.get(name), self.record.parts.get(name)
        if samples is None or then is None:
            raise OnnxgenError(f"the data of the run has no part {name}", help=f"it has {', '.join(self.record.parts)}")
        from onnxgen.training.runs.keep import part as described  # it imports Lightning, which takes seconds

        if described(samples) != then:
            named = own if isinstance(own, (str, Path)) else "the data"
            what = f"{named} has changed since the run: its {name} part is not the same"
            raise OnnxgenError(what, help="evaluate other data by naming it")
        return opened

    def _each(self, data: Data, names: Sequence[str], finding: Finding, soft: bool) -> list[Prediction]:
        """Return what is predicted for each sample, in order. Lines of one width are fed together."""
        part, samples = next(iter(data.parts.items()))
        self.notes += squeezed(samples)
        predictions: list[tuple[int, Prediction]] = []
        for rows, some in by_width(samples):
            setattr(of_width := replace(data), part, some)
            predictions += zip(rows, self._predicted(of_width, [names[row] for row in rows], finding, soft))
        return [one for _, one in sorted(predictions, key=lambda pair: pair[0])]

    def _predicted(self, data: Data, names: Sequence[str], finding: Finding, soft: bool) -> Iterator[Prediction]:
        outputs = as_tuple(predict(self.model, data, settings=self.settings))
        samples = next(iter(data.parts.values()))
        if isinstance(samples, Tuples):
            first, *others = map(legible, next(iter(data.joined.values())))
            self.notes += [f"each value is the cosine of the vectors of {first} and {', '.join(others)}"]
            vectors = dict(zip(output_names(self.model, len(outputs)), outputs))
            return compared(names, vectors, self.settings.target)
        parts = card_of(self.settings.task).parts
        boxes = next((target for target in self.record.targets if target.loss == BOXES), None)
        if parts and boxes is not None:
            return parts.predicted(samples, names, boxes, outputs, finding)
        lengths = steps_of_each(stepwise(self.model), samples, self.record.inputs[0].column)
        return self._answered(names, outputs, soft, lengths)

    def _answered(
        self, names: Sequence[str], outputs: Sequence[Any], soft: bool, lengths: Sequence[int] | None = None
    ) -> Iterator[Prediction]:
        """Yield what each output that was trained says of each sample; else what all say.

        `lengths`: the steps of each sample, if those behind them are none of its own.
        """
        ports = output_names(self.model, len(outputs))
        targets = {target.output: target for target in self.record.targets}
        states = {ports.index(state.output) for state in self.record.states}
        if soft and not any(is_map(outputs[n], target) for n, target in targets.items()):
            raise OnnxgenError(f"soft masks are of maps of classes, and {self.run} makes none", help="leave out --soft")
        tensors = [n for n, output in enumerate(outputs) if isinstance(output, Tensor)]
        shown = [n for n in tensors if n in targets] or tensors
        for n, target in targets.items():
            need_classes(outputs[n], target)
        for row, name in enumerate(names):
            of_row = {n: outputs[n].narrow(targets[n].batch if n in targets else 0, row, 1) for n in shown}
            if lengths is not None:
                of_row = {n: x if n in states else x[:, : lengths[row]] for n, x in of_row.items()}
            yield Prediction(
                name, {ports[n]: answer(of_row[n], targets.get(n), soft, lengths is not None) for n in shown}
            )

    def _continued(self, data: Any, new: int, temperature: float | None) -> list[Prediction]:
        from onnxgen.training.generation.continuing import TEXT, continued

        samples = list(self._texts(data))
        settings, device = self.settings, choose(self.settings.device, self.settings.imports)
        assert settings.tokenizer is not None
        model = prepare_for(self.model, device).to(device.torch_device)
        options: dict[str, Any] = {"seed": settings.seed, "batch_size": fixed_batch(model) or settings.batch}
        texts = [text for _, text in samples]
        answers = continued(model, settings.tokenizer, texts, new=new, temperature=temperature, **options)
        return [Prediction(name, {TEXT: answer}) for (name, _), answer in zip(samples, answers)]

    # Opening data.

    def _texts(self, data: Any) -> Iterator[tuple[str, str]]:
        """Yield a name and the text of each sample: each line of a .txt file is one."""
        if isinstance(data, (list, tuple)) and data and _are_lines(data):
            yield from ((str(row), text) for row, text in enumerate(data))
            return
        paths = _files(data)
        for path in [None] if paths is None else paths:
            source = from_object(data, "data") if path is None else self._read(path)
            if not isinstance(source, DataSource):
                raise OnnxgenError(f"{path or 'the data'} holds no texts", help=self._takes)
            for row, text in enumerate(self._column_of_text(source)):
                if not isinstance(text, str) or not text.strip():
                    raise OnnxgenError(f"{source.name}, row {row}: no text", help="remove the row, or give it a text")
                yield (str(row) if path is None else f"{path}:{row}"), text

    def _column_of_text(self, source: DataSource) -> Sequence[Any]:
        rename_text(source, self.texts)
        if len(self.texts) != 1 or self.texts[0] not in text_columns(source):
            raise OnnxgenError(f"{source.name} has no column of text {listed(self.texts)}", help=self._takes)
        column: Sequence[Any] = next(iter(source.raw.values()))[self.texts[0]]
        return column

    def _opened(self, data: Any, skip: bool = False) -> Iterator[Named]:
        if self.texts and isinstance(data, (list, tuple)) and _are_texts(data):
            columns = columns_of_texts(data, self.texts, card_of(self.settings.task).compares)
            yield self._fitted(from_columns(columns, "the texts")), list(map(str, range(len(data))))
            return
        paths = _files(data)
        if not paths:
            yield self._objects(data)
            return
        paths = readable(paths, self.skipped) if skip else paths
        images = _with(SUFFIXES, paths)
        if len(images) == len(paths):
            yield self._fitted(open_images(images)), list(map(str, images))
            return
        for path in paths:
            if path in images:
                yield self._fitted(open_images([path])), [str(path)]
            else:
                fitted = self._fitted(self._read(path))
                samples = next(iter(fitted.parts.values()))
                files = files_of_each(samples)
                rows = (f"{path}:{row}" for row in range(len(samples)))
                yield fitted, [*rows] if files is None else [str(file) for file, *_ in files]

    def _read(self, path: Path) -> DataSource | Data:
        return open_source(path, replace(self.settings, strict=True), targets=False, texts=self.texts)

    def _objects(self, data: Any) -> Named:
        """Open PIL images, an array, a DataFrame, a list of numbers, or a dict of columns."""
        images = data if isinstance(data, (list, tuple)) else [data]
        if images and all(hasattr(image, "getbands") for image in images):
            return self._fitted(open_images(images)), list(map(str, range(len(images))))
        if isinstance(data, (Tensor, np.ndarray, list, tuple)):
            entry = self.record.inputs[0]
            data = {entry.column: batched(tensor_of(data, "the data"), entry)}
        if data is None or isinstance(data, (bool, int, float)):
            raise OnnxgenError(f"the data is {data}", help="give files, images, an array, a table or a dict of columns")
        if isinstance(data, Mapping):
            columns = {entry.name: entry.column for entry in self.record.inputs}
            data = {columns.get(str(name), str(name)): values for name, values in data.items()}
        fitted = self._fitted(from_object(data, "data"))
        return fitted, list(map(str, range(len(next(iter(fitted.parts.values()))))))

    def _fitted(self, source: DataSource | Data, with_targets: Settings | None = None) -> Data:
        """Make data fit the model, as in training. `with_targets` are the settings to evaluate; without, to predict."""
        targets = with_targets is not None
        if isinstance(source, Data):
            return source
        if not targets:
            need_one_part(source)
        if self.texts:
            rename_text(source, self.texts)
        as_in_training(source, self.record)
        settings = with_targets or replace(self.settings, val=0.0, test=0.0)
        if self.texts and card_of(self.settings.task).compares and not targets:
            ids = roles_of(signature_of(self.model), ())[IDS].name
            settings = replace(settings, inputs={**settings.inputs, ids: "+".join(to_read(source, self.texts))})
        settings = with_its_images(source, self.record, settings)
        run_stepwise(self.model, source, settings)
        run_singly(self.model, source, settings)
        fitted = fit_to_model(source, self.model, settings, targets=targets)
        self.fed = finished(fitted, feed(fitted, self.model, settings, targets=False), self.record)
        return fitted


def going_on_with(run: Path, data: Any) -> dict[str, Any]:
    """Return the settings with which a run goes on (see `going_on`). A copy of its data is its data."""
    if data is None or is_same(data, read_record(run).data_for(run)):
        return going_on(run, None)
    return going_on(run, None if Learner(run)._is_copy(data) else data)


def _is_path(item: Any) -> bool:
    return isinstance(item, (str, Path))


def _files(data: Any) -> list[Path] | None:
    """Return the files that data names; None if it is no path, or list of paths."""
    items = data if isinstance(data, list) else [data]
    return [path for item in items for path in files_meant(item)] if all(map(_is_path, items)) else None


def _are_texts(items: Sequence[Any]) -> bool:
    """Return True if some of the items are no files, and none is named as one."""
    files = all(_is_path(item) and Path(item).is_file() for item in items)
    return not files and not any(isinstance(item, Path) for item in items)


def _are_lines(items: Sequence[Any]) -> bool:
    """Return True if all items are texts, and none of them names a file."""
    return all(isinstance(item, str) and not Path(item).is_file() for item in items)


def _with(endings: Collection[str], paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if path.suffix.lower() in endings]


KNOWN = (*SUFFIXES, *SOUNDS, *FILES)  # what has one of these endings is data, and an error if it does not fit


def readable(paths: Sequence[Path], skipped: list[str]) -> list[Path]:
    """Return the files without those images and sounds that can't be read, for which a sentence is added to `skipped`.

    So are files beside images and sounds that are no data at all, as a pattern may find them.

    Raises:
        OnnxgenError: none is left.
    """
    images, sounds = _with(SUFFIXES, paths), _with(SOUNDS, paths)
    seen = looked(Path(), images) if images else {}
    seen |= looked(Path(), sounds, look_at_sound, "sounds") if sounds else {}
    others = [path for path in paths if path.suffix.lower() not in KNOWN and not is_idx(path)] if seen else []
    bad = dict.fromkeys(others, "it is neither an image nor a sound")
    bad |= {path: why for path, why in seen.items() if isinstance(why, str)}
    faults = [f"{path} can't be read: {why}" for path, why in bad.items()]
    left = [path for path in paths if path not in bad]
    if not left:
        raise OnnxgenError(*faults)
    skipped += faults
    return left
