"""The pictures of the README, from a real run on `samples/mnist/mnist.onnx`.

    python -m docs.pictures [FOLDER]      default: docs/images

`mnist.svg` has the operators of the graph beside the source that is generated from it. `session.svg` has the commands
`onnxgen` and `onnxgen verify` and what they print. It needs onnxruntime and PyTorch, as `verify` does.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "samples" / "mnist" / "mnist.onnx"
COMMANDS = ("onnxgen mnist.onnx -o model.py", "onnxgen verify mnist.onnx model.py")


def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        shutil.copy(SAMPLE, place)
        said = [run(command, place) for command in COMMANDS]
        source = Path(place, "model.py").read_text(encoding="utf-8")
    (folder / "mnist.svg").write_text(side_by_side(source), encoding="utf-8")
    (folder / "session.svg").write_text(session(said), encoding="utf-8")


def run(command: str, place: str) -> str:
    """What a command prints, run by this very Python."""
    words = [sys.executable, "-m", "onnxgen", *command.split()[1:]]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\n")


def side_by_side(source: str) -> str:
    """The operators of the graph, with what they take of the file, beside the generated class."""
    console = recorder(98)
    both = Table.grid(padding=(0, 4))
    both.add_row(Text("mnist.onnx: the graph", style="bold"), Text("model.py: what onnxgen writes", style="bold"))
    both.add_row(Text(), Text())
    found = re.search(r"^class .*?(?=\n\n\nWEIGHTS = )", source, re.DOTALL | re.MULTILINE)
    assert found is not None
    both.add_row(operators(), Syntax(found[0].rstrip(), "python", theme="monokai", background_color="default"))
    console.print(both)
    return svg(console, "mnist", "from an ONNX graph to PyTorch source")


def operators() -> Table:
    """The nodes of the graph in order: operator, and the stored tensors that it takes."""
    graph = onnx.load(SAMPLE, load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    rows = Table.grid(padding=(0, 2))
    for node in graph.node:
        taken = sorted({name.rpartition(".")[0] for name in node.input if name in stored and "." in name})
        rows.add_row(Text(node.op_type, style="cyan"), Text(", ".join(taken), style="yellow"))
    return rows


def session(said: list[str]) -> str:
    """Each command behind a prompt, and below it what it printed."""
    console = recorder(106)
    for command, text in zip(COMMANDS, said, strict=True):
        console.print(Text("$ ", style="green").append(command, style="bold"))
        console.print(Text(text + "\n"))
    return svg(console, "session", "onnxgen")


def recorder(width: int) -> Console:
    return Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")


def svg(console: Console, name: str, title: str) -> str:
    """The picture, the same bytes each time; its font is the reader's own, and nothing is fetched to show it."""
    text = console.export_svg(title=title, theme=MONOKAI, unique_id=name)
    text = re.sub(r"\s*@font-face \{.*?\}", "", text, flags=re.DOTALL)
    text = text.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace")
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
