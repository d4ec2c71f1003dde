"""The part of a detector that is trained: the graph up to its raw maps, for batches of any size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onnxgen.options import Options


def of_task(path: Path, options: Options) -> Options:
    """Return options for the part that their task trains; without a task as they are.

    The raw maps become the outputs, and a fixed batch is freed.

    Raises:
        OnnxgenError: the file can't be read, or it is no detector that can be read.
    """
    if options.task is None:
        return options
    from onnxgen.heads.reading import find_tail  # imported here: other files need none of it
    from onnxgen.reader import read

    options = replace(options, task=None)
    model = read(path, options)
    fixed = any(v.shape is not None and v.shape.rank() == 4 and isinstance(v.shape[0], int) for v in model.graph.inputs)
    return replace(options, outputs=find_tail(model).maps, dynamic_batch=options.dynamic_batch or fixed)
