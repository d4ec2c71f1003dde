"""Operators of the user's own: functions like those of `onnxgen.ops`, in a module that a generation names.

    import onnxgen

    @onnxgen.op("Swish", domain="com.acme")
    def swish(b, x, *, beta=1.0):
        return b("x * torch.sigmoid(beta * x)", x=x, beta=beta)

`plugged(options)` puts them before onnxgen's own for one generation; nothing of them is left after it.
docs/EXTENDING.md tells how they are written.
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
    """Let the operators of `options.plugins`, and of installed ones, count while the context lasts.

    Raises:
        OnnxgenError: a plugin can't be found or run, has no operator, or has one that another has, too.
    """
    from onnxgen.graph.operators import plugged_in
    from onnxgen.plugins.installed import installed
    from onnxgen.plugins.loading import load

    with plugged_in(load(options.plugins), installed) as found:
        yield found
