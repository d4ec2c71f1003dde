"""Names that a terminal's encoding lacks, names that are no UTF-8, and processes that are spawned."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT

SAMPLE = ROOT / "samples" / "mnist" / "mnist.onnx"


# The command several times in one process: its arguments come between words "then", its streams end with the exit code.
COMMANDS = """
import itertools, sys
from onnxgen.cli import main
for last, words in itertools.groupby(sys.argv[1:], "then".__eq__):
    try:
        if not last:
            main([*words])
    except SystemExit as error:
        for stream in (sys.stdout, sys.stderr):
            print("<then>" + str(error.code or 0), file=stream, flush=True)
"""


def onnxgen(folder: Path, *commands: Sequence[str | bytes], **environment: str) -> list[tuple[int, bytes, bytes]]:
    """The exit code of each command, and what it printed to both streams."""
    words = [word for command in commands for word in ("then", *command)]
    given = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run([sys.executable, "-c", COMMANDS, *words], cwd=folder, env=given, capture_output=True)
    out, err = (re.split(rb"<then>(\d+)\r?\n", printed) for printed in (done.stdout, done.stderr))
    assert out[1::2] == err[1::2] and len(out) == len(err) == 2 * len(commands) + 1 and out[-1] == err[-1] == b"", done
    return [(int(code), *printed) for code, *printed in zip(out[1::2], out[::2], err[::2], strict=False)]


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "cp437"])
def test_a_name_that_the_streams_encoding_lacks(encoding: str, tmp_path: Path) -> None:
    """Generating, inspecting, a missing file: the name is shown by its numbers."""
    shutil.copy(SAMPLE, tmp_path / "模型.onnx")
    commands = ["模型.onnx", "-o", "网络.py"], ["inspect", "模型.onnx"], ["缺少.onnx", "-o", "m.py"]
    ran = onnxgen(tmp_path, *commands, PYTHONIOENCODING=encoding)
    for (code, out, err), expected in zip(ran, (0, 0, 2), strict=True):
        assert code == expected and b"bug" not in err, err
        assert (b"\\u" if code == 0 else b"??.onnx: no such file") in out + err
    assert (tmp_path / "网络.py").is_file()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems' names are text")
def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    shutil.copy(SAMPLE, os.fsencode(tmp_path) + b"/in\xff.onnx")
    commands = [b"in\xff.onnx", "-o", "m.py"], [str(SAMPLE), "-o", b"out\xff.py"], [b"missing\xff.onnx", "-o", "n.py"]
    read, *refused = onnxgen(tmp_path, *commands)
    assert read[0] in (0, 2) and read[2].count(b"\n") == (read[0] == 2), read
    for code, _, err in refused:
        assert code == 2 and err.count(b"\n") == 1, err
    assert not (tmp_path / "n.py").exists()
