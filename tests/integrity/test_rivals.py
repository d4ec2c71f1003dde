"""Several processes write to one place, or to one folder, while others load: what loads is always one of them.

`long_rivals.py` has more of both. `python -m tests.integrity.many 200` has two hundred generate at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from onnxgen.errors import OnnxgenError
from onnxgen.runtime.load import from_pretrained, imported
from tests.integrity.pairs import SHARDS, built, write
from tests.integrity.rivals import generations_side_by_side, two_writers_and_a_reader


def test_two_writers_and_a_reader(tmp_path: Path) -> None:
    two_writers_and_a_reader(tmp_path, "one", "shards")


def test_a_shard_that_is_replaced_while_it_is_read(tmp_path: Path) -> None:
    """safetensors opens a file twice, for its header and for its elements: they may be of two writers."""
    first, second = (tmp_path / name / "model.py" for name in ("first", "second"))
    for seed, out in enumerate((first, second)):
        out.parent.mkdir()
        write(built(tmp_path, out, seed, SHARDS), out, SHARDS)
    with imported(first) as module:
        opens = module.safe_open

        @contextmanager
        def replaced(part: Path, framework: str) -> Iterator[Any]:
            with opens(part, framework) as header:
                metadata = header.metadata
                os.replace(second.parent / part.name, part)
                with opens(part, framework) as file:
                    yield SimpleNamespace(metadata=metadata, keys=file.keys, get_tensor=file.get_tensor)

        vars(module)["safe_open"] = replaced
        with pytest.raises(OnnxgenError, match="was replaced while it was read"):
            from_pretrained(module, first)


def test_generations_side_by_side() -> None:
    generations_side_by_side(4)
