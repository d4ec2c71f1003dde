"""Drawn edits of a module, and a changed ONNX file: each edit is in the new module, or in a file with conflicts."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import black
import numpy as np
import onnx
import pytest

from tests.output.edits import EDITS, Edit, Place, network, new_method

torch = pytest.importorskip("torch")
ort = pytest.importorskip("onnxruntime")

CHANGES = {
    "weights": network(seed=1),
    "shapes": network(width=9),
    "a layer more": network(layers=4),
    "a layer less": network(layers=2),
    "an activation": network(first="Sigmoid"),
    "options": network(),
}
DROPOUT = ("--dropout", "fc0=0.5")
CONFLICT = "<<<<<<< model.py, edited\n"


def formatted(text: str) -> str:
    return black.format_str(text, mode=black.Mode(line_length=120, magic_trailing_comma=False))


def added(before: str, after: str) -> Counter[str]:
    """The lines that are in the second text only, without what each generation fills in."""
    lines = [
        Counter(line.strip() for line in text.split("\n") if "FINGERPRINT" not in line) for text in (before, after)
    ]
    return lines[1] - lines[0]


def holds(text: str, base: str, changed: str) -> bool:
    """All that was added to the base is in the text, as it was written or as black formats it."""
    if added(base, changed) <= added("", text):
        return True
    return CONFLICT not in text and added(formatted(base), formatted(changed)) <= added("", formatted(text))


@pytest.mark.parametrize("seed", range(40))
def test_an_edit_is_never_lost(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    change = rng.choice(list(CHANGES))
    drawn = sorted(rng.sample(list(EDITS), rng.randint(1, 3)), key=list(EDITS).index)  # formatting comes last
    place = Place(tmp_path)
    base = edited = place.out.read_text()
    names = []
    for name in drawn:
        before, edited = edited, EDITS[name][0](edited)
        names += [name] if edited != before else []  # another edit may have taken its place away
    place.edit(lambda _: edited)
    files = place.files()
    onnx.save(CHANGES[change], place.model)
    options = DROPOUT if change == "options" else ()
    new = generated(tmp_path / "plain", change, options)
    code = place(*options)
    if code == 3:
        beside = place.new.read_text()
        assert all(place.files()[name] == files[name] for name in ("model.py", "model.safetensors"))
        assert CONFLICT in beside or "set" in beside
        assert holds(beside, base, edited) and holds(beside, base, new), (names, change)
        return
    assert code == 0 and not place.new.exists()
    text = place.out.read_text()
    assert holds(text, base, edited) and holds(text, base, new), (names, change)
    after = place.files()
    assert place("--check", *options) == 0 and place(*options) == 0 and place.files() == after
    computes(place, names)


def generated(folder: Path, change: str, options: tuple[str, ...]) -> str:
    """What is generated from the changed file where nobody edited anything."""
    folder.mkdir()
    place = Place(folder)
    onnx.save(CHANGES[change], place.model)
    assert place(*options) == 0
    return place.out.read_text()


def computes(place: Place, names: list[str]) -> None:
    from onnxgen.runtime.load import from_pretrained, imported

    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    with imported(place.out) as module:
        y = from_pretrained(module, place.out).eval()(torch.from_numpy(x)).detach().numpy()
    effects = [EDITS[name][1] for name in names]
    (wanted,) = ort.InferenceSession(place.model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    for effect in effects:
        wanted = wanted if effect is None else effect(wanted)
    if None not in effects:
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)


def test_the_draws_merge_and_conflict(tmp_path: Path) -> None:
    """Each edit alone, with the changes of which this file knows the outcome."""
    merges: dict[str, tuple[Edit, str]] = {
        "far away": (new_method, "a layer more"),
        "beside": (EDITS["a layer"][0], "a layer more"),
        "the header": (EDITS["the header"][0], "an activation"),
        "other format": (lambda text: EDITS["black"][0](new_method(text)), "an activation"),
    }
    for name, (edit, change) in merges.items():
        (tmp_path / name).mkdir()
        place = Place(tmp_path / name)
        place.edit(edit)
        onnx.save(CHANGES[change], place.model)
        assert place() == 0, name
    place.edit(EDITS["twice the output"][0])
    onnx.save(CHANGES["a layer less"], place.model)
    assert place() == 3
