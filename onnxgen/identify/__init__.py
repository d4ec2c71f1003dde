"""Which known architecture an ONNX file is: `onnxgen identify`.

    answer = onnxgen.identify("net.onnx")
    answer.networks[0].build      # 'torchvision.models.resnet18(num_classes=10)'

The steps of the file (`steps.py`, `reading.py`) are compared with those of known networks: of the table of libraries'
networks (`table.py`), and of families with free sizes (`families.py`). All steps of the body must be there, and no
others; else the answer is that none is known. `benchmarks/` makes the tables: no library is needed here, nor torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxgen._callable import callable_module
from onnxgen.errors import OnnxgenError

if TYPE_CHECKING:
    from onnxgen.identify.answering import Answer

LIBRARIES = ("torchvision", "timm", "transformers", "published")  # where known networks are from


def identify(path: Path | str, libraries: Sequence[str] = LIBRARIES) -> Answer:
    """Tell which known architecture a file is.

    Args:
        path: the ONNX file.
        libraries: where known networks are from.

    Raises:
        OnnxgenError: the file can't be read, or a library is not known.
    """
    wrong = [name for name in libraries if name not in LIBRARIES]
    if wrong:
        raise OnnxgenError(f"there is no table of {', '.join(wrong)}", help=f"known are {', '.join(LIBRARIES)}")
    from onnxgen.identify.answering import answer
    from onnxgen.identify.reading import steps_of

    return answer(steps_of(Path(path)), libraries)


callable_module(__name__, identify)
