"""Small ONNX files with the options that they are generated with: whatever some of the tests generate.

The tests are run for their files alone; whether they pass does not matter here.
"""

from __future__ import annotations

import hashlib
import pickle
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from onnxgen.options import Options

SOURCES = """
    test_idioms_activation test_idioms_attention test_idioms_exporters test_idioms_layout test_idioms_norm
    test_idioms_softmax test_idioms_spatial test_added_bias test_axes test_between test_carried test_conventions
    test_dropout test_dropout_pass test_dynamic_batch test_dynamic_batch_random test_expand test_golden test_growing
    test_hostile_names test_layout test_linear test_literals test_nameless test_names test_notes test_options_together
    test_origin test_random_graphs test_recurrent test_restore_batchnorm test_sequences_pass test_sequential_classes
    test_settled test_skip_init test_slices_pass test_small_graphs test_structure test_sublayers test_wayback test_zoo
    injection quantized ops/test_contrib.py ops/test_contrib_attention.py ops/test_contrib_fused.py
    ops/test_contrib_quantized.py ops/test_control.py ops/test_cached_attention.py ops/test_attention.py
    ops/test_layers.py ops/test_text_moved.py ops/test_gradient.py ops/test_rnn.py ops/test_sequence.py
    ops/test_optimize.py
    """.split()
EACH, LARGEST, SLOWEST = 4, 400_000, 0.3  # files a test function; bytes of a file; seconds of its generation
# what changes nothing of the code, or reads and writes other files
ELSEWHERE = ("weights", "templates", "plugins", "limits", "shard_size", "embed")


class Harvester:
    """Keeps a copy of the file at every generation that succeeds.

    Attributes:
        test: the test that is running.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.test, self.taken = folder, "", Counter[str]()

    def pytest_runtest_setup(self, item: Any) -> None:
        self.test = item.nodeid.partition("[")[0]

    def keep(self, path: Path, options: Options, seconds: float) -> None:
        if self.taken[self.test] >= EACH or seconds > SLOWEST or path.stat().st_size > LARGEST:
            return
        if any(getattr(options, name) != getattr(Options(), name) for name in ELSEWHERE):
            return
        name = hashlib.sha256(path.read_bytes() + repr(options).encode()).hexdigest()[:12]
        place = self.folder / name
        if place.exists():
            return
        place.mkdir(parents=True)
        shutil.copy(path, place / "net.onnx")
        (place / "options.pickle").write_bytes(pickle.dumps((self.test, options)))
        self.taken[self.test] += 1


def harvest(folder: Path) -> None:
    """Run the tests, and keep what they generate in `folder`, a folder a file."""
    import pytest

    from onnxgen import pipeline

    harvester, compose = Harvester(folder), pipeline.compose

    def watched(model: Any, module: Any, classes: Any, path: Path, out: Path, options: Options, *more: Any) -> Any:
        generated = compose(model, module, classes, path, out, options, *more)
        harvester.keep(path, options, sum(generated.report.stages.values()))
        return generated

    pipeline.compose = watched
    tests = Path(__file__).resolve().parents[2] / "tests"
    named = [tests / name if "/" in name or (tests / name).is_dir() else tests / f"{name}.py" for name in SOURCES]
    found = [str(path) for path in named if path.exists()]
    pytest.main(["-q", "--no-header", "-rN", "--tb=no", "-p", "no:cacheprovider", *found], plugins=[harvester])
