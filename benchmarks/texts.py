"""The text of every ONNX file below some folders, to be compared with that of another tree.

python -m benchmarks.texts FOLDER... --json before.json       # in the one tree
python -m benchmarks.texts FOLDER... --against before.json    # in the other: prints the files that differ
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.common import arguments
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.pipeline import build


def text_of(path: Path) -> str:
    """The generated source, or the refusal."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return build(path, Options(), Path(folder) / "net.py").source
        except OnnxgenError as error:
            return f"refused: {error}".replace(folder, "")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--against", metavar="FILE", type=Path, help="the texts of another tree")
    asked = parser.parse_args()
    texts = {str(path): text_of(path) for folder in asked.folders for path in sorted(folder.rglob("*.onnx"))}
    if asked.json:
        asked.json.write_text(json.dumps(texts), encoding="utf-8")
    before = json.loads(asked.against.read_text(encoding="utf-8")) if asked.against else texts
    differ = [path for path, text in texts.items() if before.get(path) != text]
    print(*differ, f"{len(texts)} texts, {len(differ)} differ", sep="\n")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
