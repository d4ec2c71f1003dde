"""Opens a `tokenizer.json`, and what Hugging Face's files beside it say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from onnxgen.common.json_text import json_object
from onnxgen.common.names import legible
from onnxgen.common.paths import installing
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.record.module import sidecar_of, space_of
from onnxgen.training.runs.folder import TOKENIZER

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
        found: int | None = self.tokenizer.token_to_id(token)
        if found is None and token.isdecimal() and int(token) < self.tokenizer.get_vocab_size():
            return int(token)
        return found

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

        BART has its end token there, T5 and Marian their padding.

        Raises:
            OnnxgenError: there is no such token, or nothing says which it is.
        """
        known = self.facts.get("decoder_start_token_id")
        found = self.id_of(asked) if asked is not None else known if isinstance(known, int) else None
        if found is None and asked is not None:
            raise OnnxgenError(
                f"--decoder-start {legible(asked)}: the tokenizer has no such token", help=str(self.path)
            )
        if found is None:
            what = "no generation_config.json beside the tokenizer says with which token the decoder starts"
            raise OnnxgenError(what, help="--decoder-start TOKEN: </s> for BART, <pad> for T5 and Marian")
        return found

    def _special(self, name: str, usual: tuple[str, ...]) -> int | None:
        said = self.facts.get(name)
        said = said.get("content") if isinstance(said, Mapping) else said
        for token in (said, *usual):
            if isinstance(token, str) and (found := self.tokenizer.token_to_id(token)) is not None:
                return int(found)
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
    """Read a tokenizer.

    Raises:
        OnnxgenError: the package `tokenizers` is missing, or the file is no tokenizer.
    """
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
    known = [found for found in limits if isinstance(found, int) and 0 < found < _NO_LIMIT]
    pad = (tokenizer.padding or {}).get("pad_id")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    found = Tokenizing(tokenizer, path, text, min(known) if known else None, 0, facts)
    pad = found._special("pad_token", PADS) if pad is None else pad
    return Tokenizing(tokenizer, path, text, found.limit, pad or 0, facts)


def _facts(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json_object(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise OnnxgenError(
            f"{path} can't be read: {one_line(error, 200)}", help="remove it, or save it again"
        ) from None
