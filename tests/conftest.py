"""Settings shared by all tests: the folder of the real ONNX files, and the limits of a worker."""

from __future__ import annotations

import compileall
import gc
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import exporter, forked, generators

pytest_plugins = ["tests.support.tiers"]

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("ONNXGEN_SHARED") or ROOT.parent / "shared")

os.environ.setdefault("ONNXGEN_STRICT", "1")  # if a structure changes the result, raise instead of writing without it

if "PYTEST_XDIST_WORKER" in os.environ:  # one core for each worker; must be set before torch and onnxruntime load
    os.environ.setdefault("OMP_NUM_THREADS", "1")


KEPT = "ONNXGEN_KEPT_EXPORTS"  # in the environment: the folder of the networks that were exported
KINDS = 3  # of exports that are kept: by other packages, or of other networks


def pytest_configure(config: pytest.Config) -> None:
    """Name one folder for all workers, which inherit the environment of the first process, and compile onnxgen once.

    Start the server of forks for them, unless they run the tests of one folder or file, which may need none.

    Where Python may not write bytecode (PYTHONDONTWRITEBYTECODE), every process that a test starts would compile all of
    onnxgen that it imports, which takes as long as the imports themselves.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for package in ("onnxgen", "build_hooks"):
            compileall.compile_dir(ROOT / package, quiet=2)
        folder = ROOT / "build" / "exports"
        os.environ[KEPT] = str(folder)
        for old in sorted(folder.glob("*"), key=lambda kind: kind.stat().st_mtime)[:-KINDS]:
            shutil.rmtree(old, ignore_errors=True)
        places = [Path(place).resolve() for place in config.args]
        if config.getoption("numprocesses", None) and (len(places) > 1 or places[0] in (ROOT, ROOT / "tests")):
            forked.share()


# Tests with many different graphs: `onnxgen.paranoid` runs the graph before and after each rewrite.
CHECKED = (
    "tests.backend.test_backend", "tests.ops.", "tests.passes.", "tests.properties.", "tests.quantized.",
    "tests.scopes.test_nameless",
    "tests.whole.test_linear", "tests.whole.test_small_graphs",
)  # fmt: skip


@pytest.fixture(autouse=True)
def checked_passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set `ONNXGEN_PARANOID` for some tests. If it is already set, that applies to all tests: 1 to check, 0 not to."""
    module = getattr(request, "module", None)
    if module is not None and module.__name__.startswith(CHECKED) and "ONNXGEN_PARANOID" not in os.environ:
        monkeypatch.setenv("ONNXGEN_PARANOID", "1")


def pytest_runtest_setup() -> None:
    exporter.keep_tables()
    generators.begin()
    _freeze_imports()


def pytest_runtest_call() -> None:
    generators.begin()


IMPORTED = 200  # modules that were imported since objects were frozen, after which they are again
_COUNTED = [0]  # how many modules there were then


def _freeze_imports() -> None:
    """Freeze what libraries keep that a test was the first to import: each collection would go through it."""
    if len(sys.modules) > _COUNTED[0] + IMPORTED:
        _COUNTED[0] = len(sys.modules)
        gc.freeze()


def pytest_collection() -> None:
    """Disable garbage collection while tests are collected: there is no garbage, and it took a fifth of the time.

    Keep the bytecode of the tests, even with PYTHONDONTWRITEBYTECODE: to compile all of them, with pytest's assertions,
    takes half of the collection, in each worker of each run.
    """
    gc.disable()
    sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """Freeze the objects of imports and collected tests: a garbage collection took a second, and some calls start one.

    Later collections are rarer than usual: libraries keep a million objects in the end, and scanning them repeatedly
    took a twentieth of the whole time.
    """
    generators.note()
    sys.dont_write_bytecode = sys.flags.dont_write_bytecode == 1
    gc.enable()
    gc.freeze()  # without a collection: it takes a second to find what is no garbage
    gc.set_threshold(10_000, 20, 20)


def _absent() -> str:
    return f"no collection of real ONNX files in {SHARED} (ONNXGEN_SHARED says where)"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder with `models/` and `data/`. The test is skipped if there is none."""
    if not (SHARED / "models" / "manifest.json").is_file():
        pytest.skip(_absent())
    return SHARED


def shared_models(*categories: str) -> list[Any]:
    """Return the files of these categories as pytest parameters: manifest entries with their absolute "path".

        @pytest.mark.parametrize("entry", shared_models("net", "graph"))

    Without arguments, all categories. If the collection is absent, one parameter that skips with the reason.
    """
    manifest = SHARED / "models" / "manifest.json"
    if not manifest.is_file():
        return [pytest.param({}, id="absent", marks=pytest.mark.skip(reason=_absent()))]
    return [
        pytest.param({**entry, "path": manifest.parent / entry["file"]}, id=entry["file"])
        for entry in json.loads(manifest.read_text(encoding="utf-8"))
        if not categories or entry["category"] in categories
    ]
