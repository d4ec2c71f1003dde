"""A reader of texts as its file left it, asked as a run is: its file says its characters, and how it is fed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from onnxgen.errors import OnnxgenError
from onnxgen.record.labels import recorded_alphabet
from onnxgen.record.sidecar import metadata_of
from onnxgen.record.signature import recorded
from onnxgen.training.checkpoint.weights import save_weights
from onnxgen.training.data.images import wanted_axes
from onnxgen.training.data.presets import preset_of
from onnxgen.training.model import open_module
from onnxgen.training.prepare import prepare
from onnxgen.training.runs.folder import BEST
from onnxgen.training.runs.keep import kept, placed
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import CARDS


def _told(module: Path) -> tuple[str, tuple[int, ...]] | None:
    """Return a character that a network reads, and the shape of a picture that it takes; None if its file says not."""
    metadata = metadata_of(vars(open_module(module)))
    alphabet, found, signature = recorded_alphabet(metadata), preset_of(metadata), recorded(metadata)
    if alphabet is None or found is None or signature is None:
        return None
    dims = signature.inputs[0].dims or ()
    if len(dims) != 4 or wanted_axes(signature.inputs[0]) != "CHW":
        return None
    usual = (3, *(found.preset.size or (48, 320)))
    sizes = [size if isinstance(size, int) else other for size, other in zip(dims[1:], usual)]
    return alphabet.characters[0], (*sizes[1:], sizes[0])


def is_told(module: Path) -> bool:
    """Return True if `untouched` can make a run of a generated module."""
    return _told(module) is not None


@contextmanager
def untouched(module: Path) -> Iterator[Path]:
    """Make a folder like that of a run, for this context, of a generated module that was not trained here.

    Raises:
        OnnxgenError: the module's file doesn't say what the network reads, or how it is fed.
    """
    if (told := _told(module)) is None:
        what = f"{module} was not trained here, and its ONNX file says no characters, or not how images are fed"
        raise OnnxgenError(what, help=f"onnxgen evaluate {module} --data DATA; or train it, and predict with the run")
    character, shape = told
    task = next(card.name for card in CARDS.values() if card.classes == "characters")
    data = {"image": np.zeros((2, *shape), np.uint8), "text": np.array([character] * 2, dtype=object)}  # for its shapes
    with tempfile.TemporaryDirectory() as folder:
        (out := Path(folder) / module.stem).mkdir()
        plan = placed(prepare(module, data, Settings(task=task, val=0.0, out=out, device="cpu")))
        keeps = kept(plan, {})
        keeps.write(out)
        save_weights(plan.model, out / BEST, keeps.constants, keeps.metadata)
        yield out
