"""Plugins of a project: they count for what is fresh, go into an sdist, and are found wherever a build runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxgen import ModelGen, OnnxgenError
from onnxgen.build_hooks.build import build_project
from onnxgen.build_hooks.freshness import content_of, own_files, watched
from onnxgen.build_hooks.settings import Entry, read_project
from onnxgen.common.cache import Cache
from tests.plugins.nets import SWISH, net, saved, written

SETTINGS = """\
[tool.onnxgen]
plugins = ["plugins/ops.py"]

[[tool.onnxgen.models]]
source = "models/net.onnx"
output = "src/pkg/net.py"
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with a plugin; the process is somewhere else."""
    monkeypatch.setenv("ONNXGEN_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    root = tmp_path / "project"
    written(root / "pyproject.toml", SETTINGS)
    written(root / "plugins/ops.py", SWISH)
    saved(net(), root / "models/net.onnx")
    yield root


def entry(root: Path) -> Entry:
    project = read_project(root)
    assert project is not None
    return project.entries[0]


def built(root: Path) -> list[str]:
    project = read_project(root)
    assert project is not None
    return [b.status for b in build_project(project)]


def test_a_changed_plugin_rebuilds(root: Path) -> None:
    assert built(root) == ["written"] and built(root) == ["fresh"]
    written(root / "plugins/ops.py", SWISH.replace("torch.sigmoid", "torch.softmax"))
    assert built(root) == ["written"] and built(root) == ["fresh"]
    assert "torch.softmax" in (root / "src/pkg/net.py").read_text()


def test_a_package_counts_as_a_whole(root: Path) -> None:
    written(root / "pyproject.toml", SETTINGS.replace("plugins/ops.py", "plugins/acme/"))
    written(root / "plugins/acme/__init__.py", "from . import layers\n")
    written(root / "plugins/acme/layers.py", SWISH)
    assert built(root) == ["written"] and built(root) == ["fresh"]
    (root / "plugins/acme/__pycache__").mkdir(exist_ok=True)
    (root / "plugins/acme/__pycache__/x.pyc").touch()
    assert built(root) == ["fresh"]
    written(root / "plugins/acme/layers.py", SWISH.replace("torch.sigmoid", "torch.tanh") + "# longer\n")
    assert built(root) == ["written"] and "torch.tanh" in (root / "src/pkg/net.py").read_text()


def test_a_module_by_name_counts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are found without importing it, or the package that it lies in."""
    site = root.parent / "site"
    written(site / "acme_pkg/__init__.py", "raise RuntimeError('imported')\n")
    written(site / "acme_pkg/ops.py", SWISH)
    monkeypatch.syspath_prepend(str(site))
    written(root / "pyproject.toml", SETTINGS.replace("plugins/ops.py", "acme_pkg.ops"))
    before = content_of(entry(root)).key
    assert content_of(entry(root)).key == before
    written(site / "acme_pkg/ops.py", SWISH + "\n")
    assert content_of(entry(root)).key != before
    assert list(own_files(entry(root))) == []


def test_a_key_has_no_places(root: Path) -> None:
    other = root.parent / "deep/copy"
    shutil.copytree(root, other)
    assert content_of(entry(root)).key == content_of(entry(other), Cache(root.parent / "empty")).key


def test_the_files_of_a_project(root: Path) -> None:
    """What an sdist must have, and what is watched: a file that is missing may come back."""
    assert [path.relative_to(root).as_posix() for path in own_files(entry(root))] == ["plugins/ops.py"]
    os.remove(root / "plugins/ops.py")
    assert list(watched(entry(root))) == [root / "plugins/ops.py"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('plugins = "ops.py"', r'^pyproject\.toml: tool\.onnxgen\.plugins: must be a list like \["plugins/ops\.py"\]'),
        ('plugins = [""]', r"^pyproject\.toml: tool\.onnxgen\.plugins: must be a list like"),
        ('plugins = ["../ops.py"]', r"models\[0\]\.plugins: '\.\./ops\.py' lies outside the project"),
        ('plugins = ["/ops.py"]', r"models\[0\]\.plugins: '/ops\.py' is absolute"),
        ('plugins = ["no.py"]', r"models\[0\]\.plugins: no\.py: there is no such file"),
        (
            'plugins = ["no_such_module"]',
            r"models\[0\]\.plugins: no_such_module: there is no such module -> install it",
        ),
        ('plugins = ["src/pkg/"]', r"models\[0\]\.plugins: src/pkg holds src/pkg/net\.py, which is generated with it"),
    ],
)
def test_bad_settings(root: Path, settings: str, said: str) -> None:
    written(root / "src/pkg/__init__.py", SWISH)
    written(root / "src/pkg/net.py", "")
    written(root / "pyproject.toml", SETTINGS.replace('plugins = ["plugins/ops.py"]', settings))
    with pytest.raises(OnnxgenError, match=said):
        built(root)


def test_a_plugin_that_fails_names_its_key(root: Path) -> None:
    written(root / "plugins/ops.py", "1 / 0\n")
    with pytest.raises(OnnxgenError, match=r"^pyproject\.toml: tool\.onnxgen\.models\[0\]\.plugins: .*ZeroDivision"):
        built(root)


def test_a_model_may_have_its_own(root: Path) -> None:
    written(root / "mine.py", SWISH.replace("torch.sigmoid", "torch.tanh"))
    written(root / "pyproject.toml", SETTINGS + 'plugins = ["mine.py"]\n')
    assert built(root) == ["written"] and "torch.tanh" in (root / "src/pkg/net.py").read_text()


def test_model_gen(root: Path) -> None:
    models = ModelGen(root).input("models/net.onnx").out_dir("src/pkg").plugins(["plugins/ops.py"])
    assert [b.status for b in models.run()] == ["written"] and models.check()
    assert built(root) == ["fresh"], "the same as the settings"
