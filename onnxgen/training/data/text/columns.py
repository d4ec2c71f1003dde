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

    Raises:
        OnnxgenError: there is no tokenizer, the choice of columns is open, or a sample can't be read.
    """
    ports = fed(model)
    columns = list(source.fields)
    roles, labels = roles_of(ports, columns), card_of(settings.task).labels
    if labels == "other" and DECODER not in roles:
        what = (
            f"--task {settings.task}: the model has no input {DECODER} (it has {listed(p.name for p in ports.inputs)})"
        )
        raise OnnxgenError(what, help="export encoder and decoder as one network")
    if not roles:
        if settings.tokenizer is not None and not set(columns) & {port.name for port in ports.inputs}:
            what = f"--tokenizer: the model has no input for token ids (it has {listed(p.name for p in ports.inputs)})"
            raise OnnxgenError(what, help="leave it out")
        return None
    named = settings.inputs.get(roles[IDS].name, roles[IDS].name)
    if named in columns and named not in source.text:  # token ids
        return _labelled(source, roles, settings, labels) if labels and targets else None
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


def _labelled(source: DataSource, roles: Mapping[str, Port], settings: Settings, labels: str) -> Text | None:
    """Add the labels of token ids that the data has, for the next tokens."""
    ids, mask = (settings.inputs.get(roles[r].name, roles[r].name) if r in roles else "" for r in (IDS, MASK))
    if labels != "next" or LABELS in source.fields:
        return None
    for part, samples in source.parts.items():
        if isinstance(samples, Columns):
            targets = samples.columns[ids].long()
            targets = targets.masked_fill(samples.columns[mask] == 0, IGNORED) if mask in samples.columns else targets
            source.parts[part] = samples.with_column(LABELS, targets)
    return None


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
        chosen, source, fixed = self.chosen, self.source, fixed_length(self.roles)
        asked = self.settings.max_length or self.tokenizing.limit
        limit = min((n for n in (asked, fixed) if n is not None), default=None)
        if self.labels == "masked" and self.tokenizing.mask is None:
            raise OnnxgenError(f"{self.tokenizing.path} has no mask token", help="--task language-model")
        start = self.tokenizing.start(self.settings.decoder_start) if DECODER in self.roles else None
        others, strict = self.labels == "other" and self.targets, self.settings.strict or not self.targets
        encoder = Encoder(source, self.tokenizing, chosen, limit, self.settings, others, strict)
        running = source.running and self.labels in ("next", "masked")
        if running and limit is None:
            way = "--max-length 128; the network must have as many positions"
            raise OnnxgenError(f"how long are the blocks that {source.name} is cut into?", help=way)
        parts = {part: encoder.blocks(part) if running else encoder.part(part) for part in source.parts}
        length = fixed or self._length(parts, limit)
        for part, encoded in parts.items():
            source.parts[part] = self._made(part, encoded, length, start, running)
        self._note(encoder, length, running)
        taken = {*chosen.texts, *([chosen.target] if chosen.words or self.labels == "other" else [])}
        source.text = (source.text - taken) | ({chosen.target} if encoder.tags else frozenset())
        source.unfit = {name: problem for name, problem in source.unfit.items() if name not in taken}
        source.raw, source.target = {}, "" if self.labels else chosen.target or source.target
        joined = {port.name: list(chosen.texts) for port in self.roles.values()}
        replaced = self.labels == "other"
        ids = self.roles[IDS].name
        roles = {port.name: role.partition(" ")[0] for role, port in self.roles.items()}
        members = {name: tuple(_of_member(text, name) for text in chosen.texts) for name in roles if chosen.apart}
        score = chosen.target if chosen.apart else ""
        return Text(
            self.tokenizing, ids, joined, limit, start, self.labels == "masked", replaced, roles, members, score
        )

    def _length(self, parts: Mapping[str, Encoded], limit: int | None) -> int:
        """Return the longest of all texts. For tags of words it differs from the number of classes."""
        longest = max(len(ids) for encoded in parts.values() for one in self._members(encoded) for ids in one.ids)
        scores = [port.dims[2] for port in self.ports.outputs if port.dims and len(port.dims) == 3]
        if self.chosen.words and longest in scores:  # else either axis of the output could be the classes
            longest += 1 if limit is None or longest < limit else -1
        return longest

    def _members(self, encoded: Encoded) -> list[Encoded]:
        """Return what each column of texts is, if they are read apart."""
        return [encoded, *encoded.further] if self.chosen.apart else [encoded]

    def _made(self, part: str, encoded: Encoded, length: int, start: int | None, running: bool) -> Columns:
        samples, chosen = in_columns(self.source.parts[part]), self.chosen
        kept = torch.tensor(encoded.kept, dtype=torch.int64)
        drop = {*chosen.texts, *([chosen.target] if chosen.words or self.labels == "other" else [])}
        columns = {} if running else {n: c[kept] for n, c in samples.columns.items() if n not in drop}
        rows = None if running else kept if samples.rows is None else samples.rows[kept]
        for text, one in zip(chosen.texts, self._members(encoded)):
            inputs = self._inputs(one, length, start)
            columns |= {_of_member(text, name): column for name, column in inputs.items()} if chosen.apart else inputs
        classes = {name: names for name, names in samples.classes.items() if name in columns}
        if encoded.tags is not None:
            columns[chosen.target] = _padded(encoded.tags, length, IGNORED)
            classes |= {chosen.target: encoded.classes} if encoded.classes else {}
        if self.labels in ("next", "masked") and self.targets:
            columns[LABELS] = _padded(encoded.ids, length, IGNORED)
            if self.labels == "masked":
                special = torch.tensor(sorted(self.tokenizing.specials), dtype=torch.int64)
                columns[LABELS] = columns[LABELS].masked_fill(torch.isin(columns[LABELS], special), IGNORED)
        return Columns(columns, classes, rows)

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

    def _note(self, encoder: Encoder, length: int, running: bool) -> None:
        name, texts = self.roles[IDS].name, " and ".join(map(legible, self.chosen.texts))
        texts += ", each on its own," if self.chosen.apart else ""
        how = f"{counted(length, 'token')}" + (f", target {legible(self.chosen.target)}" if self.chosen.target else "")
        what = "blocks" if running else "texts"
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
