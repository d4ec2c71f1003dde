"""How far down the road a case is taken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

from onnxgen.lowering.lower import lower
from onnxgen.options import Options
from onnxgen.pipeline import generate, read_and_simplify
from onnxgen.reader import parsing, read
from onnxgen.scopes import find_blocks
from tests.fuzz.cases import Place
from tests.support.clean_source import assert_safe

VARIANTS = (
    Options(),
    Options(flat=True),
    Options(annotate=True, allow_unsupported=True),
    Options(embed=True),
    Options(dtype="float16", shard_size=64),
    Options(dynamic_batch=True, restore_batchnorm=True),
    Options(quantized="qat"),
    Options(quantized="float", dropout={"**": 0.1}),
)


def variant(data: bytes) -> Options:
    """Options that a case is generated with: most have none."""
    chosen = sum(data[-16:]) % (2 * len(VARIANTS))
    return VARIANTS[chosen] if chosen < len(VARIANTS) else VARIANTS[0]


def reader(place: Place, data: bytes) -> None:
    """The file is read; every other as if it were large."""
    with patch.multiple(parsing, MIN_FILE_BYTES=0, MIN_TENSOR_BYTES=64) if sum(data[:16]) % 2 else nullcontext():
        read(place.put(data), Options())


def lowering(place: Place, data: bytes) -> None:
    """It is read, simplified and lowered to PyTorch's words."""
    options = variant(data)
    model = read_and_simplify(place.put(data), options)
    find_blocks(model, options)
    lower(model, options, "Net")


def pipeline(place: Place, data: bytes) -> None:
    """Module and weights are written; the module has nothing but harmless syntax."""
    out = place.out / "net.py"
    generate(place.put(data), out, variant(data))
    assert_safe(out.read_text(encoding="ascii"))


Target = Callable[[Place, bytes], None]
TARGETS: dict[str, Target] = {"reader": reader, "lowering": lowering, "pipeline": pipeline}
SOURCES = str(Path(__file__).parents[2] / "onnxgen")
