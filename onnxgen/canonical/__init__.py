"""Two networks in one canonical form: proofs that they are the same function, and weights moved between them.

`torch.export` follows a module's Python; what it calls becomes terms (`capture.py`, `rules.py`), in a form in which
equal functions are the same object: sums of products (`algebra.py`), views as patterns of axes (`views.py`), sums over
axes with labels (`contractions.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onnxgen._callable import callable_module
from onnxgen.options import Options

if TYPE_CHECKING:
    from torch import nn

    from onnxgen.canonical.transplant import Report


def transplant(
    model: Path | str, module: nn.Module, *, runs: int = 3, seed: int = 0, options: Options | None = None
) -> Report:
    """See `onnxgen.canonical.transplant.transplant`."""
    from onnxgen.runtime.load import need_torch

    need_torch("transplant", "verify")
    from onnxgen.canonical.transplant import transplant as fill

    return fill(model, module, runs=runs, seed=seed, options=options)


_ = callable_module
