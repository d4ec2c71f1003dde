"""`onnxgen build --watch`, as a process of its own that files are saved under."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

from onnxgen.build_hooks import watch
from onnxgen.build_hooks.settings import Project
from onnxgen.cli import building, run
from tests.build_hooks.projects import LAYOUTS, save_model, write_project
from tests.conftest import ROOT
from tests.support import forked

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="another process can't be sent Ctrl-C there")

WROTE_ONE = "wrote src/pkg/one.safetensors and src/pkg/one.py"
WROTE_TWO = "wrote src/pkg/nets/two.safetensors and src/pkg/nets/two.py"
LONG = 60  # seconds that a busy machine gets


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXGEN_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with two models, the second with its data beside it."""
    return write_project(tmp_path / "project", LAYOUTS["src"])


# The command as it is, but for how long it waits for the rest of a file: before a build, and before it says what is
# wrong with it.
COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
from onnxgen.build_hooks import watch
if patience := float(sys.argv[1]):
    watch.PATIENCE_SECONDS, watch.QUIET_SECONDS, watch.TICK_MILLISECONDS = patience, 0.05, 50
from onnxgen.cli import main
main(["build", "--watch", *sys.argv[2:]])
"""


class Watching:
    """The command, running; `lines` is what it has said so far on both streams."""

    def __init__(self, root: Path, *options: str, patience: float = 0) -> None:
        self.said = root.with_name("said")
        words = ["-c", COMMAND, str(patience), *options, root]
        self.process = forked.start(words, self.said, self.said, cwd=ROOT, ours=True)
        self.taken = 0

    @property
    def lines(self) -> list[str]:
        said = self.said.read_text(encoding="utf-8") if self.said.exists() else ""
        return said[: said.rfind("\n") + 1].splitlines()

    def until(self, text: str) -> list[str]:
        """The new lines up to one with `text`, which is waited for."""
        end = time.monotonic() + LONG
        while not any(text in line for line in self.lines[self.taken :]):
            assert time.monotonic() < end and self.process.is_alive(), (text, self.lines)
            time.sleep(0.02)
        lines = self.lines
        last = next(i for i in range(self.taken, len(lines)) if text in lines[i])
        found = lines[self.taken : last + 1]
        self.taken = last + 1
        return found

    def stop(self) -> int | None:
        """Press Ctrl-C; returns the exit code."""
        os.kill(self.process.pid, signal.SIGINT)
        self.process.join(LONG)
        code: int | None = self.process.exitcode
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@pytest.fixture
def watching(root: Path, request: pytest.FixtureRequest) -> Iterator[Watching]:
    """The command on the project, everything built."""
    given = getattr(request.node, "callspec", None)
    found = Watching(root, patience=given.params.get("patience", 0.3) if given else 0.3)
    try:
        assert found.until("watching") == [WROTE_ONE, WROTE_TWO, "watching 4 files; Ctrl-C ends it"]
        yield found
    finally:
        found.kill()


def has(root: Path, module: str, model: str) -> bool:
    """Whether the sidecar of a module has the weights of an ONNX file."""
    stored = onnx.load(root / model).graph.initializer
    tensors = load_file((root / module).with_suffix(".safetensors"))
    return all(
        np.array_equal(tensors[t.name], onnx.numpy_helper.to_array(t, str((root / model).parent))) for t in stored
    )


def pair(root: Path, module: str) -> tuple[bytes, bytes]:
    return (root / module).read_bytes(), (root / module).with_suffix(".safetensors").read_bytes()


# ---- what is saved ---------------------------------------------------------------------------------------------------


def save_in_place(root: Path) -> None:
    save_model(root / "models/one.onnx", 10)


def save_beside(root: Path) -> None:
    """As careful programs save."""
    ready = root / "ready.onnx"
    save_model(ready, 11)
    os.replace(ready, root / "models/one.onnx")


def save_data(root: Path) -> None:
    data = root / "models/two.data"
    data.write_bytes(data.read_bytes()[::-1])


@pytest.mark.parametrize(
    ("save", "wrote", "module", "model"),
    [
        (save_in_place, WROTE_ONE, "src/pkg/one.py", "models/one.onnx"),
        (save_beside, WROTE_ONE, "src/pkg/one.py", "models/one.onnx"),
        (save_data, WROTE_TWO, "src/pkg/nets/two.py", "models/two.onnx"),
    ],
    ids=["in place", "beside", "its data"],
)
def test_what_a_saved_file_belongs_to_is_written(
    root: Path, watching: Watching, save: Callable[[Path], None], wrote: str, module: str, model: str
) -> None:
    """At the end, Ctrl-C is no error."""
    save(root)
    assert watching.until("wrote") == [wrote] and has(root, module, model)
    ended(root, watching)


def ended(root: Path, watching: Watching) -> None:
    """Nothing else was said, and nothing is left."""
    assert watching.stop() == 0
    assert watching.lines[watching.taken :] == []
    assert [p for p in root.rglob("*") if p.name.startswith(".")] == []


def test_templates(root: Path, watching: Watching) -> None:
    """Those that the settings name are watched when they are there."""
    settings = root / "pyproject.toml"
    settings.write_text(settings.read_text().replace('"src/pkg/one.py"', '"src/pkg/one.py"\ntemplates = "looks"'))
    watching.until("tool.onnxgen.models[0].templates")
    (root / "looks").mkdir()
    template = root / "looks" / "module.py.jinja"
    text = '{% extends "onnxgen/module.py.jinja" %}\n{% block imports %}\nLOOK = 1\n{% endblock %}\n'
    template.write_text(text)
    settings.touch()  # what the settings name that is not there is not watched
    assert watching.until("wrote")[-1] == WROTE_ONE and "\nLOOK = 1\n" in (root / "src/pkg/one.py").read_text()
    template.write_text(text.replace("1", "2"))
    assert watching.until("wrote") == [WROTE_ONE] and "\nLOOK = 2\n" in (root / "src/pkg/one.py").read_text()
    ended(root, watching)


def test_new_models(root: Path) -> None:
    """Those that a glob finds, and those that are new in the settings."""
    (root / "pyproject.toml").write_text('[[tool.onnxgen.models]]\nsource = "models/*.onnx"\noutput = "src/pkg/"\n')
    watching = Watching(root, "--json", patience=0.3)
    watching.until("{")
    save_model(root / "models/three.onnx", 3)
    told = json.loads(watching.until("written")[-1])
    assert [(m["status"], Path(m["source"]).name) for m in told["models"]] == [
        ("fresh", "one.onnx"),
        ("written", "three.onnx"),
        ("fresh", "two.onnx"),
    ]
    (root / "models/two.onnx").write_bytes(b"")
    told = json.loads(watching.until("failed")[-1])
    assert told["error"].startswith("pyproject.toml: tool.onnxgen.models[0].source: ") and len(told["problems"]) == 1
    watching.kill()


# ---- what is not whole -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pause", "patience"), [(0.1, 0), (0.25, 1.5)], ids=["as exporters write", "with long pauses"])
def test_a_file_that_is_written_slowly(root: Path, watching: Watching, pause: float, patience: float) -> None:
    """It is built once, when it is whole, and nothing is said of what it was before.

    In a long pause a build begins and fails; its error is not said, since more comes before the patience ends.
    """
    assert watch.QUIET_SECONDS > 0.1 and watch.PATIENCE_SECONDS > 1  # as patient is the command by itself
    save_model(root / "slow.onnx", 20)
    content = (root / "slow.onnx").read_bytes()
    with open(root / "models/one.onnx", "wb") as file:
        for part in range(4):
            time.sleep(pause if part else 0)
            file.write(content[part * len(content) // 4 : (part + 1) * len(content) // 4])
            file.flush()
    assert watching.until("src/pkg/one") == [WROTE_ONE]
    assert has(root, "src/pkg/one.py", "models/one.onnx")


def test_a_broken_file_keeps_the_last_good_module(root: Path, watching: Watching) -> None:
    good = pair(root, "src/pkg/one.py")
    whole = (root / "models/one.onnx").read_bytes()
    (root / "models/one.onnx").write_bytes(whole[:250])
    save_model(root / "models/two.onnx", 5, external=True)
    said = watching.until("error")
    assert (
        said[-1].startswith("error: pyproject.toml: tool.onnxgen.models[0].source: ") and "not a readable" in said[-1]
    )
    assert pair(root, "src/pkg/one.py") == good
    watching.until(WROTE_TWO)
    (root / "models/one.onnx").unlink()
    assert "tool.onnxgen.models[0].source: 'models/one.onnx' is missing" in watching.until("error")[-1]
    save_model(root / "models/one.onnx", 7)
    assert watching.until("wrote")[-1] == WROTE_ONE and has(root, "src/pkg/one.py", "models/one.onnx")


def test_settings_that_become_wrong(root: Path, watching: Watching) -> None:
    """The last good ones count until they are right again."""
    settings = root / "pyproject.toml"
    good = settings.read_text()
    settings.write_text(good.replace("source =", "soruce ="))
    assert "tool.onnxgen.models[0].soruce: unknown key -> did you mean source?" in watching.until("error")[0]
    save_model(root / "models/one.onnx", 10)
    assert WROTE_ONE in watching.until("wrote") and has(root, "src/pkg/one.py", "models/one.onnx")
    settings.write_text(good.replace('"src/pkg/one.py"', '"src/pkg/renamed.py"'))
    assert watching.until("renamed")[-1] == "wrote src/pkg/renamed.safetensors and src/pkg/renamed.py"
    assert watching.stop() == 0


def test_settings_that_go(root: Path, watching: Watching) -> None:
    settings = root / "pyproject.toml"
    good = settings.read_text()
    settings.write_text("[project]\n")
    assert "has no [tool.onnxgen]" in watching.until("has no")[-1]
    settings.write_text(good.replace('"src/pkg/one.py"', '"src/pkg/renamed.py"'))
    assert watching.until("renamed")[-1] == "wrote src/pkg/renamed.safetensors and src/pkg/renamed.py"
    assert watching.stop() == 0


def test_a_folder_that_goes_and_comes_back(root: Path, watching: Watching) -> None:
    """As when another branch is checked out."""
    (root / "models").rename(root / "away")
    assert "tool.onnxgen.models[0].source: 'models/one.onnx' is missing" in watching.until("error")[0]
    root.rename(root.with_name("gone"))
    assert f"there is no pyproject.toml in {root}" in watching.until("no pyproject")[-1]
    root.with_name("gone").rename(root)
    (root / "away").rename(root / "models")
    save_model(root / "models/one.onnx", 12)
    assert watching.until("wrote")[-1] == WROTE_ONE and has(root, "src/pkg/one.py", "models/one.onnx")
    assert watching.stop() == 0


def test_edits_are_kept(root: Path, watching: Watching) -> None:
    module = root / "src/pkg/one.py"
    module.write_text(module.read_text().replace("F.relu(", "F.gelu("))
    save_model(root / "models/one.onnx", 10)
    assert "merged your edits into the new module" in watching.until("wrote")[-1] and "F.gelu(" in module.read_text()
    module.write_text(module.read_text().replace("nn.Linear(4, 16)", "nn.Linear(4, 16, bias=True)"))
    edited = module.read_bytes()
    save_model(root / "models/one.onnx", 10, hidden=9)
    assert "src/pkg/one.py was edited by hand, and " in watching.until("error")[0]
    assert module.read_bytes() == edited and (root / "src/pkg/one.py.new").exists()


# ---- in this process -------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(watch, "TICK_MILLISECONDS", 50)


def test_a_change_while_building_is_not_lost(root: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = watch.build_project
    saved: list[int] = []

    def saves_meanwhile(project: Project, **options: Any) -> Any:
        built = whole(project, **options)
        if len(saved) < 2:
            saved.append(30 + len(saved))
            save_model(root / "models/one.onnx", saved[-1])
        return built

    monkeypatch.setattr(watch, "build_project", saves_meanwhile)
    rounds = watch.rounds(root, building.read)
    for number in range(3):
        assert [b.status for b in next(rounds).built] == ["written", "fresh" if number else "written"]
    assert saved == [30, 31] and has(root, "src/pkg/one.py", "models/one.onnx")
    rounds.close()


def test_force_counts_once(root: Path, quick: None) -> None:
    """Later edits are merged: who forces a build once does not give all further edits away."""
    assert run(["build", "-q", str(root)]) == 0
    module = root / "src/pkg/one.py"
    generated = module.read_text()
    module.write_text(generated.replace("F.relu(", "F.gelu("))
    save_model(root / "models/one.onnx", 10)
    rounds = watch.rounds(root, building.read, force=True)
    assert next(rounds).error is None and "F.gelu(" not in module.read_text()
    module.write_text(module.read_text().replace("F.relu(", "F.gelu("))
    save_model(root / "models/one.onnx", 11)
    assert next(rounds).built[0].status == "merged" and "F.gelu(" in module.read_text()
    rounds.close()


def test_without_watchfiles(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    assert run(["build", "--watch", str(root)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --watch needs watchfiles") and line.endswith(f" '{ROOT}[watch]'")
    assert not (root / "src/pkg/one.py").exists()
