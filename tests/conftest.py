"""What all tests share: where the collection of real ONNX files lies, and what a worker may take of the machine."""

from __future__ import annotations

import gc
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("ONNXGEN_SHARED") or ROOT.parent / "shared")

os.environ.setdefault("ONNXGEN_STRICT", "1")  # a structure that changes the meaning is an error, not a plainer file

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch and onnxruntime are imported: a worker a core, no more
    os.environ.setdefault("OMP_NUM_THREADS", "1")


KEPT = "ONNXGEN_KEPT_EXPORTS"  # in the environment: the folder of the networks that this session has exported


def pytest_configure(config: pytest.Config) -> None:
    """One folder for all workers, which have the environment of the first process."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = os.environ[KEPT] = tempfile.mkdtemp(prefix="onnxgen-exports-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


# Tests whose graphs are many and unlike: every rewriting of them is computed before and after (`onnxgen.paranoid`).
CHECKED = (
    "tests.backend.test_backend", "tests.ops.", "tests.passes.", "tests.properties.", "tests.quantized.",
    "tests.scopes.test_nameless",
    "tests.whole.test_linear", "tests.whole.test_random_graphs", "tests.whole.test_real_models",
    "tests.whole.test_small_graphs",
)  # fmt: skip


@pytest.fixture(autouse=True)
def checked_passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ONNXGEN_PARANOID`, for some tests; what it says already counts for all: 1 is every test, 0 none."""
    module = getattr(request, "module", None)
    if module is not None and module.__name__.startswith(CHECKED) and "ONNXGEN_PARANOID" not in os.environ:
        monkeypatch.setenv("ONNXGEN_PARANOID", "1")


def pytest_collection() -> None:
    """Nothing is garbage while tests are collected: the search for it took a fifth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported and collected is here to stay: a search for garbage took a second, and some calls make one.

    Later ones are rarer than usual: libraries keep a million objects by the end, and looking through these again and
    again was a twentieth of the whole time.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _absent() -> str:
    return f"no collection of real ONNX files in {SHARED} (ONNXGEN_SHARED says where)"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with `models/` and `data/`; the test is skipped where there is none."""
    if not (SHARED / "models" / "manifest.json").is_file():
        pytest.skip(_absent())
    return SHARED


def shared_models(*categories: str) -> list[Any]:
    """Every file of the collection as a pytest parameter, a manifest entry with its absolute "path", for

        @pytest.mark.parametrize("entry", shared_models("net", "graph"))

    all categories if none is named. Where the collection is absent: one parameter that skips and says so.
    """
    manifest = SHARED / "models" / "manifest.json"
    if not manifest.is_file():
        return [pytest.param({}, id="absent", marks=pytest.mark.skip(reason=_absent()))]
    return [
        pytest.param({**entry, "path": manifest.parent / entry["file"]}, id=entry["file"])
        for entry in json.loads(manifest.read_text(encoding="utf-8"))
        if not categories or entry["category"] in categories
    ]
