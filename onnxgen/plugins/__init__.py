"""Operators of users: functions like those of `onnxgen.ops`, in a module that an option names.

    import onnxgen

    @onnxgen.op("Swish", domain="com.acme")
    def swish(b, x, *, beta=1.0):
        return b("x * torch.sigmoid(beta * x)", x=x, beta=beta)

`plugged(options)` makes them take precedence over onnxgen's own operators for one generation. docs/EXTENDING.md
describes how to write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from onnxgen.options import Options

if TYPE_CHECKING:
    from onnxgen.graph.operators import Plugged


@contextmanager
def plugged(options: Options) -> Iterator[Plugged]:
    """Use the operators of `options.plugins` and of installed plugins in this context.

    Raises:
        OnnxgenError: a plugin can't be found or run, has no operator, or has the same operator as another.
    """
    from onnxgen.graph.operators import plugged_in
    from onnxgen.plugins.finding import installed
    from onnxgen.plugins.loading import load

    with plugged_in(load(options.plugins), installed) as operators:
        yield operators
