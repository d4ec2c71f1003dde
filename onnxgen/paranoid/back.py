"""Check weight provenance: untrained weights must give the file's own numbers, of a quantised file its integers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxgen.errors import OnnxgenError
from onnxgen.record.way_back import WayBack
from onnxgen.weights.dequantised import Dequantised, DequantisedTensor
from onnxgen.weights.provenance import Source, rebuild

if TYPE_CHECKING:
    from onnxgen.output.compose import Generated

HALF_RTOL = 1e-2  # relative precision of an 8-bit mantissa


def lost(model: ir.Model, generated: Generated) -> Iterator[str]:
    """Yield, for float tensors that the file stores as integers, why they would not be written back.

    A tensor that is not trained need not be: it is a constant of the module.
    """
    way_back = WayBack.from_metadata(generated.metadata)
    record, how = way_back.tensors, way_back.quantised
    trained = generated.report.trainable
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if not isinstance(tensor, DequantisedTensor):
            continue
        name = value.name or ""
        if name in record:
            if name not in how or Dequantised.of_record(how[name]) != tensor.how:
                yield f"{name!r}: the weights do not record its integers"
            elif why := _changed(tensor, name, record, generated):
                yield f"{name!r} {why}"
        elif trained.get(name, (False, ""))[0]:
            yield f"{name!r} is trained, but is not written back"


def altered(generated: Generated) -> Iterator[str]:
    """Yield, for tensors that the state dict is made of unchanged, how an export without training would differ."""
    way_back = WayBack.from_metadata(generated.metadata)
    record, how = way_back.tensors, way_back.quantised
    sources = [found for found in generated.tensors.values() if isinstance(found, Source)]
    pieces = {piece.name: piece.tensor for source in sources for piece in (*source.pieces, *source.empty)}
    for name in (record.keys() & pieces.keys()) - how.keys():
        try:
            floats = np.asarray(rebuild(record, name, partial(_numbers, generated), pieces[name].numpy()))
        except (KeyError, OnnxgenError) as error:
            yield f"{name!r} can't be written back: {error}"
            continue
        original = np.asarray(pieces[name].numpy())
        exact = floats.dtype == original.dtype and floats.tobytes() == original.tobytes()
        if not exact and not _is_near(floats, original) or floats.shape != original.shape:
            yield f"{name!r} is written back as other numbers"


def _numbers(generated: Generated, key: str) -> Any:
    found = generated.tensors[key]
    return found.numpy() if isinstance(found, Source) else found


def _is_near(floats: Any, original: Any) -> bool:
    """Return True if the numbers are close. For `--dtype` and folded BatchNorms, exact equality is not expected."""
    if original.dtype.kind not in "fV" or floats.shape != original.shape:
        return False
    held = np.isfinite(floats.astype(np.float64))  # a narrower type may not hold numbers this large
    wide = original.astype(np.float64)[held]
    return bool(np.allclose(floats.astype(np.float64)[held], wide, HALF_RTOL, HALF_RTOL * np.abs(wide).max(initial=0)))


def _changed(tensor: DequantisedTensor, name: str, record: Mapping[str, Any], generated: Generated) -> str:
    """Describe how an export of an untrained tensor would differ; empty if it would not."""
    read: list[Any] = []

    def state(key: str) -> Any:
        read.append(_numbers(generated, key))
        return read[-1]

    def stored(key: str) -> Any:
        return tensor.stored[key].numpy()

    original = np.asarray(tensor.numpy())
    floats = np.asarray(rebuild(record, name, state, original))
    if any(one.dtype.itemsize < original.dtype.itemsize for one in read):  # by `--dtype`: only close
        return "" if _is_near(floats, original) else "is written back as other floats"
    if not np.array_equal(floats, original.astype(floats.dtype), equal_nan=True):  # compares shapes, too
        return "is written back as other floats"
    before = stored(tensor.how.tensor)
    made = tensor.how.integers(floats, stored, stored)
    same = made.shape == before.shape and made.dtype == before.dtype and made.tobytes() == before.tobytes()
    return "" if same else "is written back as other integers"
