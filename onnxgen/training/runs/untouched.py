"""A reader of texts as its file left it, asked as a run is: its file says its characters, and how it is fed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from onnxgen.errors import OnnxgenError
from onnxgen.record.labels import recorded_alphabet
from onnxgen.surgery.ports import signature_of
from onnxgen.training.checkpoint.weights import save_weights
from onnxgen.training.data.presets import preset_of
from onnxgen.training.goals.outputs import recorded_metadata
from onnxgen.training.model import open_model
from onnxgen.training.prepare import prepare
from onnxgen.training.runs.folder import BEST
from onnxgen.training.runs.keep import kept, placed
from onnxgen.training.settings import Settings


def _told(module: Path) -> tuple[str, tuple[int, ...]] | None:
    """Return a character that a network reads, and the shape of a picture that it takes; None if its file says not."""
    model = open_model(module)
    metadata, dims = recorded_metadata(model), signature_of(model).inputs[0].dims or ()
    alphabet, found = recorded_alphabet(metadata), preset_of(metadata)
    if alphabet is None or found is None or len(dims) != 4:
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
    data = {"image": np.zeros((2, *shape), np.uint8), "text": np.array([character] * 2, dtype=object)}  # for its shapes
    with tempfile.TemporaryDirectory() as folder:
        (out := Path(folder) / module.stem).mkdir()
        plan = placed(prepare(module, data, Settings(val=0.0, out=out, device="cpu")))
        keeps = kept(plan, {})
        keeps.write(out)
        save_weights(plan.model, out / BEST, keeps.constants, keeps.metadata)
        yield out
