"""The inputs and outputs of a model in memory."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.record.module import metadata_of, space_of
from onnxgen.record.signature import Port, Signature, recorded
from onnxgen.surgery.returned import as_returned


def signature_of(model: nn.Module) -> Signature:
    """Return the inputs and outputs of a model, in the order of `forward`.

    The sidecar of a generated module has them; outputs that were added by hand are called as their variables. For any
    other module only the names of the arguments are known: dtypes and dims are None, and there are no outputs.
    """
    metadata: Mapping[str, str] = {}
    with suppress(OnnxgenError):
        metadata = metadata_of(space_of(model))
    if (found := recorded(metadata)) is not None:
        return replace(found, outputs=as_returned(found.outputs, type(model), metadata))
    required = (p for p in inspect.signature(model.forward).parameters.values() if p.default is p.empty)
    names = [p.name for p in required if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return Signature(tuple(Port(name, None, None) for name in names), ())
