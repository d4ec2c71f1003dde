"""samples/package, as its README says: installed by a build of its own, and run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import onnxruntime
from sklearn.datasets import load_digits

from tests.build_hooks.projects import make_venv, pip, run
from tests.build_hooks.test_sample_package import README, SAMPLE
from tests.build_hooks.wheelhouse import clean_environment, environment, isolated
from tests.docs.blocks import blocks

READ = """
import json, sys
import digits, torch
images = torch.tensor(json.loads(sys.stdin.read()))
print(json.dumps({"file": digits.trained().__class__.__module__, "read": digits.read(images)}))
"""


def test_it_is_installed_and_reads(wheelhouse: Path, tmp_path: Path) -> None:
    """The folder of wheels stands for what the README's first command makes."""
    assert all(command in README for command in ("pip install --find-links wheels .", "python -m digits"))
    project, python = tmp_path / "package", make_venv(tmp_path / "venv")
    tracked = subprocess.run(["git", "ls-files", "."], cwd=SAMPLE, capture_output=True, text=True)
    names = tracked.stdout.split() or [str(p.relative_to(SAMPLE)) for p in SAMPLE.rglob("*") if p.is_file()]
    for name in names:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SAMPLE / name, project / name)
    built = isolated(environment(tmp_path / "cache", wheelhouse))
    pip("install", "--no-deps", project, cwd=tmp_path, env=built, python=python)
    (package,) = (tmp_path / "venv").rglob("site-packages/digits")
    assert {p.name for p in package.iterdir()} == {"__init__.py", "__main__.py", "network.py", "network.safetensors"}

    paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]  # torch of the test environment
    env = {**clean_environment(), "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    printed = run(python, "-m", "digits", cwd=tmp_path, env=env)
    (shown,) = (block.text for block in blocks(SAMPLE / "README.md") if block.kind == "text")
    assert printed.split() == shown.split() and "This is a 4." in printed

    images = (load_digits().images / 16).astype(np.float32)[:200]
    done = subprocess.run(
        [python, "-c", READ], input=json.dumps(images.tolist()), cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    session = onnxruntime.InferenceSession(SAMPLE / "models/digits.onnx", providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"images": images[:, None]})
    found = json.loads(done.stdout)
    assert found["read"] == scores.argmax(1).tolist() and found["file"] == "digits.network"
