"""Tokenises the samples of each part, and leaves out those that can't be read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError, Problem, counted, one_line
from onnxgen.training.data.faults import LeftOut
from onnxgen.training.data.source import DataSource
from onnxgen.training.data.text.choosing import Chosen
from onnxgen.training.data.text.masking import IGNORED
from onnxgen.training.data.text.tokenizer import Tokenizing
from onnxgen.training.settings import Settings

MANY_UNKNOWN = 0.1  # of all tokens; more are noted
_SHOWN = 20  # problems in one error


@dataclass
class Encoded:
    """The token ids of a part.

    Attributes:
        kept: the indices of the samples.
        ids, types: of each sample.
        tags: the class index of each token, or -100; None if no labels of words were read.
        further: the further texts of each sample: one to predict, or those that are read apart from the first.
        classes: the names of the tags; () if they are numbers.
    """

    kept: Sequence[int]
    ids: list[list[int]]
    types: list[list[int]]
    tags: list[list[int]] | None = None
    further: Sequence[Encoded] = ()
    classes: tuple[str, ...] = ()


class Encoder:
    """Tokenises samples.

    Attributes:
        tags: the names of the tags, sorted; () if there are none, or if they are numbers.
    """

    def __init__(
        self,
        source: DataSource,
        tokenizing: Tokenizing,
        chosen: Chosen,
        limit: int | None,
        settings: Settings,
        others: bool,
        strict: bool,
    ) -> None:
        """`others`: the target is a text to predict. `strict`: a sample that can't be read is an error."""
        self.source, self.tokenizing, self.chosen = source, tokenizing, chosen
        self.limit, self.settings, self.others, self.strict = limit, settings, others, strict
        self._reads = (*chosen.texts, *([chosen.target] if others or chosen.words else []))
        for part, columns in source.raw.items():
            if missing := [name for name in self._reads if name not in columns]:
                raise OnnxgenError(f"the {part} part of {source.name} has no column {listed(missing)}", help="add it")
        self.tags = self._names() if chosen.words else ()
        self._cut = self._unknown = self._all = 0
        self._left_out: list[str] = []
        unknown = json.loads(tokenizing.text).get("model", {}).get("unk_token")
        self._unknown_id = tokenizing.tokenizer.token_to_id(unknown) if isinstance(unknown, str) else None

    def notes(self) -> list[str]:
        """Return facts about all parts."""
        found = list(self._left_out)
        if self._cut:
            found.append(f"{counted(self._cut, 'text')} cut to {counted(self.limit or 0, 'token')}")
        if self._unknown > MANY_UNKNOWN * self._all:
            what = f"{self._unknown:,} of {self._all:,} tokens are unknown to the tokenizer"
            found.append(f"{what}: is it the network's own?")
        return found

    def part(self, part: str) -> Encoded:
        """Tokenise a part.

        Raises:
            OnnxgenError: a sample can't be read and must be, or none can.
        """
        raw = self.source.raw[part]
        self._check_room()
        rows = [self._row(values) for values in zip(*(list(raw[name]) for name in self._reads), strict=True)]
        broken = {i: row for i, row in enumerate(rows) if isinstance(row, str)}
        kept = [i for i in range(len(rows)) if i not in broken]
        apart = len(self.chosen.texts) if self.chosen.apart else 2 if self.others else 1
        found = [self._encoded([rows[i][place] for i in kept]) for place in range(apart)]
        empty = {i for i, *each in zip(kept, *found) if not all(one.ids for one in each)}
        broken |= dict.fromkeys(empty, "no token in its text")
        self._report(part, broken, len(rows))
        some = [n for n, i in enumerate(kept) if i not in empty]
        samples = [kept[n] for n in some]
        made, *rest = (Encoded(samples, [x[n].ids for n in some], [x[n].type_ids for n in some]) for x in found)
        made.further = rest
        if self.chosen.words:
            made.tags = [self._aligned(found[0][n].word_ids, rows[kept[n]][1]) for n in some]
            made.classes = self.tags
        return made

    def blocks(self, part: str) -> Encoded:
        """Tokenise the lines of a part as one text, and cut it into blocks. A block of one token is left out."""
        text = "\n".join(self.source.raw[part][self.chosen.texts[0]])
        self.tokenizing.tokenizer.no_truncation()
        ids = self.tokenizing.tokenizer.encode(text, add_special_tokens=False).ids
        size = self.limit or len(ids)
        self._count(ids)
        made = [block for start in range(0, len(ids), size) if len(block := ids[start : start + size]) > 1]
        if not made:
            raise OnnxgenError(f"the {part} part of {self.source.name} has less than two tokens")
        return Encoded(range(len(made)), made, [[0] * len(block) for block in made])

    def _check_room(self) -> None:
        """Refuse a length that the tokenizer's own tokens fill: the library would not cut at all, or leave no text."""
        count = 1 if self.chosen.apart else len(self.chosen.texts)
        added = self.tokenizing.tokenizer.num_special_tokens_to_add(count > 1)
        if self.limit is not None and self.limit < added + count:
            what = f"{counted(self.limit, 'token')} leave no room for text: the tokenizer adds {added} of its own"
            raise OnnxgenError(what, help=f"--max-length {added + count} or more")

    def _names(self) -> tuple[str, ...]:
        """Return the names of all tags, sorted."""
        found: set[str] = set()
        for part, columns in self.source.raw.items():
            for i, row in enumerate(columns[self.chosen.target]):
                names = {tag for tag in _words(row) if isinstance(tag, str)}
                known = self.settings.classes
                if known and (unknown := sorted(names - {*known})):
                    what = f"{self._where(part, i)}: {listed(unknown)} is no class"
                    raise OnnxgenError(what, help=f"the classes are {listed(known)}")
                found |= names
        return tuple(sorted(found))

    def _row(self, values: Sequence[Any]) -> Any:
        """Return what is tokenised of a sample and its target, or the reason why it can't be."""
        texts = values[: len(self.chosen.texts)]
        if any(not _words(text) for text in texts):
            return "no text"
        if self.chosen.apart:
            return texts
        if self.others:
            return (texts[0], values[1]) if _words(values[1]) else "no text to predict"
        if not self.chosen.words:
            return (texts[0] if len(texts) == 1 else tuple(texts), None)
        words, tags = _words(texts[0]), _words(values[1])
        if len(words) != len(tags):
            return f"{counted(len(words), 'word')}, but {counted(len(tags), 'tag')}"
        whole = all(isinstance(tag, int) and not isinstance(tag, bool) and tag >= 0 for tag in tags)
        if not all(isinstance(tag, str) for tag in tags) if self.tags else not whole:
            return f"tags that are no {'text' if self.tags else 'class indices'}"
        return words, tags

    def _encoded(self, texts: list[Any]) -> list[Any]:
        words = bool(texts) and isinstance(texts[0], list)
        tokenizer = self._for_words() if words else self.tokenizing.tokenizer
        tokenizer.no_truncation()
        try:
            if self.limit is not None:
                tokenizer.enable_truncation(self.limit)
            found = tokenizer.encode_batch(texts, is_pretokenized=words)
        except Exception as error:  # the library raises `Exception` itself
            what = f"{self.tokenizing.path} can't tokenise {self.source.name}: {one_line(error, 200)}"
            raise OnnxgenError(what, help="a greater --max-length, or another --tokenizer") from None
        for one in found:
            self._cut += bool(one.overflowing)
            self._count(one.ids)
        return list(found)

    def _for_words(self) -> Any:
        """Return the tokenizer for words: one of bytes must put a space before each, as `add_prefix_space` does."""
        from tokenizers import Tokenizer

        found = json.loads(self.tokenizing.text)
        step = found.get("pre_tokenizer") or {}
        for one in [step, *step.get("pretokenizers", [])]:
            if one.get("type") == "ByteLevel":
                one["add_prefix_space"] = True
        made = Tokenizer.from_str(json.dumps(found))
        made.no_padding()
        return made

    def _aligned(self, places: Sequence[int | None], tags: Sequence[Any]) -> list[int]:
        """Return the class index for the first token of each word, and -100 for all other tokens."""
        index = {name: i for i, name in enumerate(self.tags)}
        before = [None, *places[:-1]]
        firsts = [place if place != last else None for place, last in zip(places, before)]
        return [IGNORED if i is None else index[tags[i]] if self.tags else int(tags[i]) for i in firsts]

    def _count(self, ids: Sequence[int]) -> None:
        self._unknown += 0 if self._unknown_id is None else ids.count(self._unknown_id)
        self._all += len(ids)

    def _report(self, part: str, broken: Mapping[int, str], count: int) -> None:
        """Raise the problems of samples that can't be read, or note that they are left out."""
        if not broken:
            return
        lines = [f"{self._where(part, i)}: {reason}" for i, reason in sorted(broken.items())]
        if self.strict or len(broken) == count:
            raise OnnxgenError(*(Problem(line, help="correct the data") for line in lines[:_SHOWN]))
        more = f", and {len(lines) - 1} more" if len(lines) > 1 else ""
        self._left_out.append(LeftOut(f"{counted(len(lines), 'sample')} left out: {lines[0]}{more}", len(lines)))

    def _where(self, part: str, index: int) -> str:
        rows = self.source.files.get(part)
        return f"{self.source.name}, {part}, row {index}" if rows is None else f"{rows.path}, line {rows.lines[index]}"


def _words(value: Any) -> list[Any]:
    """Return the words of a text, or the list that it is; [] for a missing value."""
    if isinstance(value, str):
        return value.split()
    return [] if value is None or isinstance(value, float) else list(value)
