"""The digest that tells an edited module from one that was formatted anew; the same on every version of Python."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onnxgen.record.base import _older_digest, code_digest, is_digest

ROOT = Path(__file__).parents[2]
MODULE = '''"""A network."""

import torch

FINGERPRINT = "%s"


class Net:
    """Three layers."""

    def forward(self, x, *, scale=-0.5):
        """Scale."""
        y, z = self.a(x), f"{x!r:>{scale}} {scale:.2f}"
        return (y * scale)[..., 0], "it's"
'''
SAME = [
    ("y, z = self.a(x)", "(y, z) = self.a((x))"),
    ("return (y * scale)[..., 0], ", "# a comment\n        return (y * (scale))[\n            ..., 0\n        ], "),
    ('"it\'s"', "'it\\'s'"),
    ('"""Three layers."""', '"""Four layers."""'),
    ('        """Scale."""\n', ""),
    ("\n", "\r\n"),
    ("-0.5", "-5e-1"),
]
OTHER = [("y * scale", "scale * y"), ("-0.5", "-1"), ("-0.5", "0.5"), ("it's", "its"), ("!r", ""), ("0]", "0, 0]")]


@pytest.mark.parametrize(("old", "new"), SAME)
def test_layout_is_no_edit(old: str, new: str) -> None:
    assert old in MODULE
    edited = MODULE.replace(old, new)
    compile(edited, "net.py", "exec")
    assert code_digest(edited) == code_digest(MODULE)


@pytest.mark.parametrize(("old", "new"), OTHER)
def test_another_meaning_is_an_edit(old: str, new: str) -> None:
    assert old in MODULE
    assert code_digest(MODULE.replace(old, new)) != code_digest(MODULE)


def test_a_digest_that_was_recorded_stays_the_same() -> None:
    """Modules that were written by other versions hold theirs; another one would tell their users that they edited."""
    more = (
        "    def more(self, *a, b: int = 1, **c):\n        for i in a:\n            b += i if i else [j for j in c]\n"
    )
    more += "        with x as y, z:\n            assert not {1: u'a', **c}, ('b', b'c', 1j, None, ..., a[1:, 2])\n"
    assert code_digest(MODULE + more) == "6c5e00637851bebe"
    assert code_digest(MODULE + more) == code_digest(MODULE + more.replace("u'a'", "'a'"))


def test_the_fingerprint_is_not_in_it_and_older_ones_are_known() -> None:
    filled = [MODULE % (digest(MODULE % "") + "0" * 16) for digest in (code_digest, _older_digest)]
    assert code_digest(filled[0]) == code_digest(filled[1]) == code_digest(MODULE % "")
    for text in filled:
        assert is_digest(text.split('FINGERPRINT = "')[1][:32], text)
        assert not is_digest(text.split('FINGERPRINT = "')[1][:32], text.replace("y * scale", "y"))
    assert not is_digest("", MODULE % "")


def pythons() -> list[str]:
    """Other interpreters on this machine, from 3.10 on."""
    folders = [os.path.dirname(p) for p in glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python"))]
    names = [f"python3.{minor}" for minor in range(10, 16)]
    found = {n: p for n in names for p in (shutil.which(n), *(shutil.which(n, path=f) for f in folders)) if p}
    mine = f"python3.{sys.version_info.minor}"
    return [path for name, path in found.items() if name != mine and runs(path)]


def runs(path: str) -> bool:
    return subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0


def test_every_python_has_the_same_digests() -> None:
    """Over sources of the package: more kinds of statements than generated files have."""
    others = pythons()
    if not others:
        pytest.skip("no other Python is installed: digests of one version alone were computed")
    files = sorted(map(str, ROOT.glob("onnxgen/code/*.py")))
    code = "import sys\nfrom onnxgen.record.base import code_digest as d\nfor f in sys.stdin.read().split('\\n'):"
    code += "\n    print(d(open(f, encoding='utf-8').read()))"
    given = {"input": "\n".join(files), "capture_output": True, "text": True, "check": True}
    mine = [code_digest(Path(file).read_text(encoding="utf-8")) for file in files]
    for python in others:
        made = subprocess.run([python, "-S", "-c", code], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, **given)
        assert made.stdout.split() == mine, python
