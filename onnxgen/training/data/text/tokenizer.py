"""Opens a `tokenizer.json`, and what Hugging Face's files beside it say; tokenises samples with it.

`Encoder` tokenises the samples of each part, and leaves out those that can't be read. For a masked
language model, `Masked` masks tokens anew in each epoch (Devlin et al. 1810.04805).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onnxgen.common.built import json_object
from onnxgen.common.names import legible, listed
from onnxgen.common.paths import installing
from onnxgen.errors import OnnxgenError, Problem, counted, one_line
from onnxgen.record.sidecar import sidecar_of, space_of
from onnxgen.training.data.faults import LeftOut
from onnxgen.training.data.samples import uniform
from onnxgen.training.data.source import DataSource
from onnxgen.training.data.text.choosing import Chosen
from onnxgen.training.runs.folder import TOKENIZER
from onnxgen.training.settings import Settings

WAY = "name a tokenizer.json, or a folder with one: save_pretrained of a fast tokenizer of transformers writes it"
PADS, _MASKS = ("[PAD]", "<pad>"), ("[MASK]", "<mask>")
GENERATION = "generation_config.json"
KEPT = ("tokenizer_config.json", GENERATION)
_BESIDE = (KEPT[0], "config.json", GENERATION)  # a later file counts more
_NO_LIMIT = 1 << 30  # transformers writes 1e30 as `model_max_length` if there is none


@dataclass(frozen=True)
class Tokenizing:
    """A tokenizer, as it was read.

    Attributes:
        tokenizer: of the library `tokenizers`, without truncation and padding.
        path: its file, and `text` the contents.
        limit: the greatest number of tokens, as the file or `tokenizer_config.json` says; None if they don't.
        pad: the id of the padding token; 0 if there is none.
        facts: the entries of the configuration files beside it.
    """

    tokenizer: Any
    path: Path
    text: str
    limit: int | None
    pad: int
    facts: Mapping[str, Any]

    def kept(self) -> dict[str, str]:
        """Return the files that a run keeps, by name: the tokenizer's, and how texts end and begin."""
        beside = [path for name in KEPT if (path := self.path.with_name(name)).is_file()]
        return {TOKENIZER: self.text} | {path.name: path.read_text(encoding="utf-8") for path in beside}

    def id_of(self, token: str) -> int | None:
        """Return the id of a token, which may also be given as its number; None if there is no such token."""
        number: int | None = self.tokenizer.token_to_id(token)
        if number is None and token.isdecimal() and int(token) < self.tokenizer.get_vocab_size():
            return int(token)
        return number

    @property
    def mask(self) -> int | None:
        """The id of the mask token."""
        return self._special("mask_token", _MASKS)

    @property
    def specials(self) -> frozenset[int]:
        """The ids of the special tokens."""
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    def start(self, asked: str | None) -> int:
        """Return the id with which a decoder starts: the one asked for, else `decoder_start_token_id` of the files.

        BART has its end token there, T5 and Marian their padding. Raises `OnnxgenError` if there is no such token, or
        nothing says which it is.
        """
        known = self.facts.get("decoder_start_token_id")
        number = self.id_of(asked) if asked is not None else known if isinstance(known, int) else None
        if number is None and asked is not None:
            what = f"--decoder-start {legible(asked)}: the tokenizer has no such token"
            raise OnnxgenError(what, help=str(self.path))
        if number is None:
            what = "no generation_config.json beside the tokenizer says with which token the decoder starts"
            raise OnnxgenError(what, help="--decoder-start TOKEN: </s> for BART, <pad> for T5 and Marian")
        return number

    def _special(self, name: str, usual: tuple[str, ...]) -> int | None:
        own = self.facts.get(name)
        own = own.get("content") if isinstance(own, Mapping) else own
        for token in (own, *usual):
            if isinstance(token, str) and (number := self.tokenizer.token_to_id(token)) is not None:
                return int(number)
        return None


def tokenizer_file(asked: Path | None, model: nn.Module) -> Path | None:
    """Return the file that is asked for, else the one beside the module or its weights; None if there is none.

    Raises:
        OnnxgenError: what is asked for does not exist.
    """
    if asked is not None:
        path = asked / TOKENIZER if asked.is_dir() else asked
        if not path.is_file():
            raise OnnxgenError(f"there is no file {path}", help=WAY)
        return path
    return next((path for folder in beside(model) if (path := folder / TOKENIZER).is_file()), None)


def beside(model: nn.Module) -> list[Path]:
    """Return the folders of a generated module and its weights."""
    space = space_of(model)
    space = space if "FINGERPRINT" in space else {}
    weights = sidecar_of(space)
    folders = [Path(str(space["__file__"])).parent] if space.get("__file__") else []
    return folders + ([weights.parent] if weights is not None else [])


def open_tokenizer(path: Path) -> Tokenizing:
    """Read a tokenizer. Raises `OnnxgenError` if the package `tokenizers` is missing, or the file is no tokenizer."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise OnnxgenError("text needs the package tokenizers", help=installing("text")) from None
    try:
        text = path.read_text(encoding="utf-8")
        json.loads(text)
        tokenizer = Tokenizer.from_str(text)
    except OSError as error:
        raise OnnxgenError(f"{path} can't be read: {error.strerror}", help=WAY) from None
    except Exception as error:  # the library raises `Exception` itself
        raise OnnxgenError(f"{path} is no tokenizer: {one_line(error, 200)}", help=WAY) from None
    facts: dict[str, Any] = {}
    for name in _BESIDE:
        facts |= _facts(path.with_name(name))
    limits = [(tokenizer.truncation or {}).get("max_length"), facts.get("model_max_length")]
    known = [tokenizing for tokenizing in limits if isinstance(tokenizing, int) and 0 < tokenizing < _NO_LIMIT]
    pad = (tokenizer.padding or {}).get("pad_id")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizing = Tokenizing(tokenizer, path, text, min(known) if known else None, 0, facts)
    pad = tokenizing._special("pad_token", PADS) if pad is None else pad
    return Tokenizing(tokenizer, path, text, tokenizing.limit, pad or 0, facts)


def _facts(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json_object(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        what = f"{path} can't be read: {one_line(error, 200)}"
        raise OnnxgenError(what, help="remove it, or save it again") from None


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
        notes = list(self._left_out)
        if self._cut:
            notes.append(f"{counted(self._cut, 'text')} cut to {counted(self.limit or 0, 'token')}")
        if self._unknown > MANY_UNKNOWN * self._all:
            what = f"{self._unknown:,} of {self._all:,} tokens are unknown to the tokenizer"
            notes.append(f"{what}: is it the network's own?")
        return notes

    def part(self, part: str) -> Encoded:
        """Tokenise a part. Raises `OnnxgenError` if a sample can't be read and must be, or none can."""
        self._check_room()
        rows, encodings = self._tokenised(part)
        kept = [*rows]
        each = [
            Encoded(kept, [by_row[i].ids for i in kept], [by_row[i].type_ids for i in kept]) for by_row in encodings
        ]
        encoded, encoded.further = each[0], each[1:]
        if self.chosen.words:
            encoded.tags = [self._aligned(encodings[0][i].word_ids, tags) for i, (_, tags) in rows.items()]
            encoded.classes = self.tags
        return encoded

    def _tokenised(self, part: str) -> tuple[dict[int, Any], list[dict[int, Any]]]:
        """Return what is read of each sample that can be read, by its index, and the encoding of each of its texts."""
        raw = self.source.raw[part]
        rows = dict(enumerate(map(self._row, zip(*(list(raw[name]) for name in self._reads), strict=True))))
        broken = {i: row for i, row in rows.items() if isinstance(row, str)}
        read = [i for i in rows if i not in broken]
        count = len(self.chosen.texts) if self.chosen.apart else 2 if self.others else 1
        encodings = [dict(zip(read, self._encoded([rows[i][place] for i in read]))) for place in range(count)]
        empty = (i for i in read if not all(by_row[i].ids for by_row in encodings))
        broken |= dict.fromkeys(empty, "no token in its text")
        self._report(part, broken, len(rows))
        return {i: row for i, row in rows.items() if i not in broken}, encodings

    def blocks(self, part: str) -> Encoded:
        """Tokenise the lines of a part as one text, and cut it into blocks. A block of one token is left out."""
        if (size := self.limit) is None:
            way = "--max-length 128; the network must have as many positions"
            raise OnnxgenError(f"how long are the blocks that {self.source.name} is cut into?", help=way)
        text = "\n".join(self.source.raw[part][self.chosen.texts[0]])
        self.tokenizing.tokenizer.no_truncation()
        ids = self.tokenizing.tokenizer.encode(text, add_special_tokens=False).ids
        self._count(ids)
        blocks = [block for start in range(0, len(ids), size) if len(block := ids[start : start + size]) > 1]
        if not blocks:
            raise OnnxgenError(f"the {part} part of {self.source.name} has less than two tokens")
        return Encoded(range(len(blocks)), blocks, [[0] * len(block) for block in blocks])

    def _check_room(self) -> None:
        """Refuse a length that the tokenizer's own tokens fill: the library would not cut at all, or leave no text."""
        count = 1 if self.chosen.apart else len(self.chosen.texts)
        added = self.tokenizing.tokenizer.num_special_tokens_to_add(count > 1)
        if self.limit is not None and self.limit < added + count:
            what = f"{counted(self.limit, 'token')} leave no room for text: the tokenizer adds {added} of its own"
            raise OnnxgenError(what, help=f"--max-length {added + count} or more")

    def _names(self) -> tuple[str, ...]:
        tags: set[str] = set()
        for part, columns in self.source.raw.items():
            for i, row in enumerate(columns[self.chosen.target]):
                names = {tag for tag in _words(row) if isinstance(tag, str)}
                known = self.settings.classes
                if known and (unknown := sorted(names - {*known})):
                    what = f"{self._where(part, i)}: {listed(unknown)} is no class"
                    raise OnnxgenError(what, help=f"the classes are {listed(known)}")
                tags |= names
        return tuple(sorted(tags))

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
        if not all(map(self._is_tag, tags)):
            return f"tags that are no {'text' if self.tags else 'class indices'}"
        return words, tags

    def _is_tag(self, tag: Any) -> bool:
        """Return True for a text if tags have names, else for a class index."""
        return isinstance(tag, str) if self.tags else isinstance(tag, int) and not isinstance(tag, bool) and tag >= 0

    def _encoded(self, texts: list[Any]) -> list[Any]:
        words = bool(texts) and isinstance(texts[0], list)
        tokenizer = self._for_words() if words else self.tokenizing.tokenizer
        tokenizer.no_truncation()
        try:
            if self.limit is not None:
                tokenizer.enable_truncation(self.limit)
            encodings = tokenizer.encode_batch(texts, is_pretokenized=words)
        except Exception as error:  # the library raises `Exception` itself
            what = f"{self.tokenizing.path} can't tokenise {self.source.name}: {one_line(error, 200)}"
            raise OnnxgenError(what, help="a greater --max-length, or another --tokenizer") from None
        for one in encodings:
            self._cut += bool(one.overflowing)
            self._count(one.ids)
        return list(encodings)

    def _for_words(self) -> Any:
        """Return the tokenizer for words: one of bytes must put a space before each, as `add_prefix_space` does."""
        from tokenizers import Tokenizer

        config = json.loads(self.tokenizing.text)
        step = config.get("pre_tokenizer") or {}
        for one in [step, *step.get("pretokenizers", [])]:
            if one.get("type") == "ByteLevel":
                one["add_prefix_space"] = True
        tokenizer = Tokenizer.from_str(json.dumps(config))
        tokenizer.no_padding()
        return tokenizer

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


MASKED_SHARE, KEPT_SHARE, RANDOM_SHARE = 0.15, 0.1, 0.1  # of all tokens; of these left, or replaced by any
IGNORED = -100
_STREAM = 15


@dataclass(frozen=True)
class Masked:
    """Masks token ids, or makes their labels; both draw the same tokens for a sample, its index and a seed.

    Attributes:
        dtype, shape: of a sample.
        mask: the id of the mask token.
        vocabulary: tokens that replace others have smaller ids.
        specials: ids that are never masked.
        labels: True for the column of labels, which has -100 at all tokens that were not drawn.
        frozen: True to draw the same in each epoch (for a validation).
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    mask: int
    vocabulary: int
    specials: frozenset[int]
    labels: bool
    frozen: bool

    def __call__(self, x: Tensor, indices: Sequence[int], seed: int) -> Tensor:
        """Return the ids of samples [n, length] with some of them masked, or their labels."""
        length = x.shape[1]
        drawn = torch.from_numpy(uniform(0 if self.frozen else seed, indices, 3 * length, _STREAM))
        chosen, way, other = drawn[:, :length], drawn[:, length : 2 * length], drawn[:, 2 * length :]
        masked = (chosen < MASKED_SHARE) & (x != IGNORED)
        masked &= ~torch.isin(x, torch.tensor(sorted(self.specials), dtype=x.dtype))
        if self.labels:
            return torch.where(masked, x, IGNORED).to(self.dtype)
        any_token = (other * self.vocabulary).long().to(x.dtype)
        new = torch.where(way < RANDOM_SHARE, any_token, torch.full_like(x, self.mask))
        return torch.where(masked & (way < 1 - KEPT_SHARE), new, x).to(self.dtype)
