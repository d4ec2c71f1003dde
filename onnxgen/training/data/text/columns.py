"""Turns columns of text into the columns of token ids that a network takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, counted
from onnxgen.record.signature import Port, Signature
from onnxgen.training.data.arrays import Columns, in_columns
from onnxgen.training.data.feeding import fed
from onnxgen.training.data.source import DataSource
from onnxgen.training.data.text.choosing import Chosen, choose
from onnxgen.training.data.text.roles import (
    BRANCH,
    DECODER,
    DECODER_MASK,
    IDS,
    MASK,
    PAST,
    POSITIONS,
    TYPES,
    fixed_length,
    past_shape,
    roles_of,
)
from onnxgen.training.data.text.tokenizer import (
    IGNORED,
    Encoded,
    Encoder,
    Masked,
    Tokenizing,
    open_tokenizer,
    tokenizer_file,
)
from onnxgen.training.goals.language import LABELS
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import card_of

WITHOUT = "--tokenizer tokenizer.json, or a folder with one"


@dataclass(frozen=True)
class Text:
    """How texts became token ids.

    Attributes:
        tokenizing: the tokenizer; None if the data has token ids.
        ids: the column of token ids, which has the name of its input.
        joined: the columns of text, by the name of each column that was made of them.
        limit: the greatest number of tokens; None if there is none.
        start: the id with which a decoder starts; None if there is no decoder.
        masks: True if tokens are masked.
        replaced: True if the target was text that is predicted token by token.
        roles: what each input of text is for, by its name (`roles.py`).
        members: by input, the columns that were made of each text of a tuple; {} if there are no tuples.
        score: the column that says how alike the texts of a pair are; "" if none does.
    """

    tokenizing: Tokenizing | None
    ids: str
    joined: Mapping[str, list[str]] = field(default_factory=dict)
    limit: int | None = None
    start: int | None = None
    masks: bool = False
    replaced: bool = False
    roles: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    score: str = ""

    def applied(self, settings: Settings) -> Settings:
        """Return the settings for the columns that were made: these have the names of their inputs."""
        inputs = {name: column for name, column in settings.inputs.items() if name not in self.joined}
        return replace(settings, inputs=inputs, target=None if self.replaced else settings.target)

    def kept(self, settings: Settings) -> Settings:
        """Return the settings with what was found, so that other data is treated in the same way."""
        if self.tokenizing is None:
            return settings
        start = settings.decoder_start
        if self.start is not None:  # by its name: another token may be called like its number
            start = self.tokenizing.tokenizer.id_to_token(self.start) or str(self.start)
        return replace(settings, tokenizer=self.tokenizing.path, max_length=self.limit, decoder_start=start)

    def masked(self, steps: Mapping[str, Any], part: str) -> dict[str, Masked]:
        """Return the steps that mask the token ids of a part, and keep the labels of masked ones."""
        if not self.masks or self.tokenizing is None or self.tokenizing.mask is None:
            return {}
        specials = self.tokenizing.specials | {self.tokenizing.pad}
        size, mask = self.tokenizing.tokenizer.get_vocab_size(), self.tokenizing.mask
        return {
            name: Masked(steps[name].dtype, steps[name].shape, mask, size, specials, name == LABELS, part != "train")
            for name in (self.ids, LABELS)
        }


def fit_text(source: DataSource, model: nn.Module, settings: Settings, targets: bool) -> Text | None:
    """Replace the columns of text by those that the model's inputs take. Return None if the model reads no text.

    Raises `OnnxgenError` if there is no tokenizer, the choice of columns is open, or a sample can't be read.
    """
    ports = fed(model)
    columns, names = [*source.fields], [port.name for port in ports.inputs]
    roles, labels = roles_of(ports, columns), card_of(settings.task).labels
    if labels == "other" and DECODER not in roles:
        what = f"--task {settings.task}: the model has no input {DECODER} (it has {listed(names)})"
        raise OnnxgenError(what, help="export encoder and decoder as one network")
    if not roles:
        if settings.tokenizer is not None and not {*columns} & {*names}:
            what = f"--tokenizer: the model has no input for token ids (it has {listed(names)})"
            raise OnnxgenError(what, help="leave it out")
        return None
    named = settings.inputs.get(roles[IDS].name, roles[IDS].name)
    if named in columns and named not in source.text:  # token ids
        if labels == "next" and targets:
            _add_labels(source, roles, settings)
        return None
    chosen = choose(source, ports, roles[IDS], settings, targets, labels)
    if chosen is None:
        return None
    path = tokenizer_file(settings.tokenizer, model)
    if path is None:
        if roles[IDS].name != IDS and not labels:
            return None
        what = f"input {legible(roles[IDS].name)!r} takes token ids, but column {legible(chosen.texts[0])!r} is text"
        raise OnnxgenError(what, help=WITHOUT)
    return _Fit(source, ports, roles, settings, labels, chosen, open_tokenizer(path), targets).text()


def _add_labels(source: DataSource, roles: Mapping[str, Port], settings: Settings) -> None:
    """Add the labels of token ids that the data has, for the next tokens, unless it has them."""
    ids, mask = (settings.inputs.get(roles[r].name, roles[r].name) if r in roles else "" for r in (IDS, MASK))
    for part, samples in source.parts.items() if LABELS not in source.fields else ():
        if isinstance(samples, Columns):
            labels = samples.columns[ids].long()
            labels = labels.masked_fill(samples.columns[mask] == 0, IGNORED) if mask in samples.columns else labels
            source.parts[part] = samples.with_column(LABELS, labels)


@dataclass
class _Fit:
    """The state of one `fit_text`."""

    source: DataSource
    ports: Signature
    roles: Mapping[str, Port]
    settings: Settings
    labels: str
    chosen: Chosen
    tokenizing: Tokenizing
    targets: bool

    def text(self) -> Text:
        if self.labels == "masked" and self.tokenizing.mask is None:
            raise OnnxgenError(f"{self.tokenizing.path} has no mask token", help="--task language-model")
        source, limit = self.source, self.limit
        start = self.tokenizing.start(self.settings.decoder_start) if DECODER in self.roles else None
        others, strict = self.labels == "other" and self.targets, self.settings.strict or not self.targets
        encoder = Encoder(source, self.tokenizing, self.chosen, limit, self.settings, others, strict)
        parts = {part: encoder.blocks(part) if self.running else encoder.part(part) for part in source.parts}
        length = fixed_length(self.roles) or self._length(parts)
        for part, encoded in parts.items():
            source.parts[part] = self._columns(part, encoded, length, start)
        self._note(encoder, length)
        tags = {self.chosen.target} if encoder.tags else frozenset[str]()
        source.text = (source.text - self.taken) | tags
        source.unfit = {name: problem for name, problem in source.unfit.items() if name not in self.taken}
        source.raw, source.target = {}, "" if self.labels else self.chosen.target or source.target
        return self._described(start)

    @property
    def limit(self) -> int | None:
        """The greatest number of tokens; None if there is none."""
        asked = self.settings.max_length or self.tokenizing.limit
        return min((n for n in (asked, fixed_length(self.roles)) if n is not None), default=None)

    @property
    def running(self) -> bool:
        """True if the lines are one text, which is cut into blocks."""
        return self.source.running and self.labels in ("next", "masked")

    @property
    def taken(self) -> set[str]:
        """The columns of text that are replaced."""
        target = self.chosen.words or self.labels == "other"
        return {*self.chosen.texts, *([self.chosen.target] if target else [])}

    def _described(self, start: int | None) -> Text:
        chosen, ports = self.chosen, self.roles.values()
        texts = chosen.texts if chosen.apart else ()
        return Text(
            self.tokenizing,
            self.roles[IDS].name,
            {port.name: list(chosen.texts) for port in ports},
            self.limit,
            start,
            masks=self.labels == "masked",
            replaced=self.labels == "other",
            roles={port.name: role.partition(" ")[0] for role, port in self.roles.items()},
            members={port.name: tuple(_of_member(text, port.name) for text in texts) for port in ports if texts},
            score=chosen.target if chosen.apart else "",
        )

    def _columns(self, part: str, encoded: Encoded, length: int, start: int | None) -> Columns:
        samples, chosen = in_columns(self.source.parts[part]), self.chosen
        kept = torch.tensor(encoded.kept, dtype=torch.int64)
        columns = {} if self.running else {n: c[kept] for n, c in samples.columns.items() if n not in self.taken}
        rows = None if self.running else kept if samples.rows is None else samples.rows[kept]
        for text, one in zip(chosen.texts, self._members(encoded)):
            inputs = self._inputs(one, length, start)
            columns |= {_of_member(text, name): column for name, column in inputs.items()} if chosen.apart else inputs
        classes = {name: names for name, names in samples.classes.items() if name in columns}
        if encoded.tags is not None:
            columns[chosen.target] = _padded(encoded.tags, length, IGNORED)
            classes |= {chosen.target: encoded.classes} if encoded.classes else {}
        if self.labels in ("next", "masked") and self.targets:
            columns[LABELS] = self._labels(encoded, length)
        return Columns(columns, classes, rows)

    def _labels(self, encoded: Encoded, length: int) -> Tensor:
        """Return the tokens to predict, [n, length]: for masks none of the special ones."""
        labels = _padded(encoded.ids, length, IGNORED)
        if self.labels == "next":
            return labels
        special = torch.tensor(sorted(self.tokenizing.specials), dtype=torch.int64)
        return labels.masked_fill(torch.isin(labels, special), IGNORED)

    def _length(self, parts: Mapping[str, Encoded]) -> int:
        """Return the longest of all texts. For tags of words it differs from the number of classes."""
        longest = max(len(ids) for encoded in parts.values() for one in self._members(encoded) for ids in one.ids)
        scores = [port.dims[2] for port in self.ports.outputs if port.dims and len(port.dims) == 3]
        if self.chosen.words and longest in scores:  # else either axis of the output could be the classes
            longest += 1 if self.limit is None or longest < self.limit else -1
        return longest

    def _members(self, encoded: Encoded) -> list[Encoded]:
        """Return what each column of texts is, if they are read apart."""
        return [encoded, *encoded.further] if self.chosen.apart else [encoded]

    def _inputs(self, encoded: Encoded, length: int, start: int | None) -> dict[str, Tensor]:
        pad, count = self.tokenizing.pad, len(encoded.ids)
        mask = _padded([[1] * len(ids) for ids in encoded.ids], length, 0)
        by_role = {IDS: _padded(encoded.ids, length, pad), MASK: mask, TYPES: _padded(encoded.types, length, 0)}
        by_role[POSITIONS] = (mask.cumsum(1) - 1).clamp_min(0)
        by_role[BRANCH] = torch.zeros(count, dtype=torch.bool)
        if start is not None:
            others = encoded.further[0].ids if self._predicts(encoded) else [[start]] * count
            longest = fixed_length(self.roles, DECODER) or max(map(len, others))
            labels = _padded(others, longest, IGNORED)
            shifted = torch.cat([torch.full((count, 1), start), labels[:, :-1]], 1)
            by_role |= {
                DECODER: shifted.masked_fill(shifted == IGNORED, pad),
                DECODER_MASK: (shifted != IGNORED).long(),
            }
            by_role |= {LABELS: labels} if self._predicts(encoded) else {}
        columns = {port.name: by_role[role] for role, port in self.roles.items() if role in by_role}
        for role, port in self.roles.items():
            if role.startswith(PAST):
                columns[port.name] = torch.zeros(count, *past_shape(port))
        return columns | ({LABELS: by_role[LABELS]} if LABELS in by_role else {})

    def _predicts(self, encoded: Encoded) -> bool:
        """Return True if the further text of each sample is the one to predict."""
        return bool(encoded.further) and not self.chosen.apart

    def _note(self, encoder: Encoder, length: int) -> None:
        name, texts = self.roles[IDS].name, " and ".join(map(legible, self.chosen.texts))
        texts += ", each on its own," if self.chosen.apart else ""
        how = f"{counted(length, 'token')}" + (f", target {legible(self.chosen.target)}" if self.chosen.target else "")
        what = "blocks" if self.running else "texts"
        self.source.notes.append(f"{name} is made of {texts} with {self.tokenizing.path}: {what} of {how}")
        self.source.notes += encoder.notes()


def _of_member(text: str, name: str) -> str:
    """Return the column that one text of a tuple makes for an input."""
    return f"{text}.{name}"


def _padded(rows: Sequence[Sequence[int]], length: int, value: int) -> Tensor:
    """Return rows [n, length] (int64), filled up with a value, or cut."""
    padded = np.full((len(rows), length), value, dtype=np.int64)
    for line, row in zip(padded, rows):
        line[: len(row)] = row[:length]
    return torch.from_numpy(padded)
