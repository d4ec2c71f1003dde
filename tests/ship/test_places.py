"""No file of a person is lost, and after an error nothing is left behind."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgen
from onnxgen.cli import run as command
from onnxgen.errors import OnnxgenError
from onnxgen.ship import ship
from onnxgen.ship.card import is_own_card, places_of_card
from onnxgen.ship.place import put_in_place, refuse_place, workshop
from onnxgen.ship.targets import TARGETS
from onnxgen.training import fit

RANDOM = np.random.default_rng(0)
NET = """<ir_version: 8, opset_import: ["" : 17]>
g (float[%s] x) => (float[%s] y) { h = MatMul(x, a)
 r = Relu(h)
 y = MatMul(r, b) }"""


def trained(folder: Path, taken: str = "N,8", returned: str = "N,3", entries: Any = (), **given: Any) -> Path:
    """Return a run of two layers on 40 rows, of which ten are held back. `entries`: metadata of the ONNX file."""
    model = onnx.parser.parse_model(NET % (taken, returned))
    for name, shape in (("a", (8, 16)), ("b", (16, 3))):
        values = RANDOM.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.helper.set_model_props(model, dict(entries))
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "net.onnx")
    onnxgen.generate(folder / "net.onnx", folder / "model.py")
    np.savez(folder / "data.npz", x=RANDOM.random((40, 8), np.float32), label=np.arange(40) % 3)
    given = {"epochs": 1, "val": 0.25, "show": "nothing", "device": "cpu", **given}
    fit(folder / "model.py", folder / "data.npz", out=folder / "run", **given)
    return folder / "run"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("rows"))


def test_what_a_run_is_made_of_is_never_overwritten(rows: Path) -> None:
    before = {path: path.read_bytes() for path in rows.parent.rglob("*") if path.is_file()}
    for out, to, why in (
        (rows.parent / "net.onnx", "onnx", "the run was made of this file"),
        (rows / "best.safetensors", "onnx", r"ends in \.onnx -> -o .*best\.onnx"),
        (rows / "run.json", "pt2", r"ends in \.pt2"),
        (rows.parent / "README.md", "pt2", r"ends in \.pt2"),
        (Path(""), "pt2", r"-o FILE\.pt2"),
    ):
        with pytest.raises(OnnxgenError, match=why):
            ship(rows, to, out, force=True)
    assert before == {path: path.read_bytes() for path in rows.parent.rglob("*") if path.is_file()}


def test_a_folder_is_replaced_only_if_it_is_a_package(tmp_path: Path) -> None:
    folder, package = tmp_path / "net.onnx", tmp_path / "net.mlpackage"
    folder.mkdir()
    package.mkdir()
    for path, to in ((folder, "onnx"), (package, "coreml")):
        with pytest.raises(OnnxgenError, match="it is a folder"):
            refuse_place(path, TARGETS[to], [], force=True)
    (package / "Manifest.json").write_text("{}")
    refuse_place(package, TARGETS["coreml"], [], force=True)
    with pytest.raises(OnnxgenError, match="exists -> --force"):
        refuse_place(package, TARGETS["coreml"], [], force=False)


def test_a_place_that_can_not_be_made_leaves_nothing(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OnnxgenError, match=r"cannot write in .*file: "):
        ship(rows, "pt2", tmp_path / "file" / "net.pt2")
    with pytest.raises(KeyboardInterrupt), workshop(tmp_path / "a" / "b") as folder:
        (folder / "net.onnx").write_text("half")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_all_is_put_in_place_or_nothing(tmp_path: Path) -> None:
    trial, package, first = tmp_path / "trial", tmp_path / "net.mlpackage", tmp_path / "net.mlpackage"
    for folder, text in ((package, "old"), (trial / "net.mlpackage", "new")):
        folder.mkdir(parents=True)
        (folder / "Manifest.json").write_text(text)
    (trial / "readme").write_text("new")
    (tmp_path / "readme").mkdir()  # a file can't take its place
    with pytest.raises(OnnxgenError, match="cannot write"):
        put_in_place(trial, first, [], force=True)
    assert (package / "Manifest.json").read_text() == "old"


def test_external_data_of_others_stays(tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    for name in ("net.onnx", "net.onnx.data"):
        (tmp_path / "trial" / name).write_text("new")
    (tmp_path / "net.onnx.data").write_text("mine")
    with pytest.raises(OnnxgenError, match=r"net\.onnx\.data exists"):
        put_in_place(tmp_path / "trial", tmp_path / "net.onnx", [], force=False)
    assert (tmp_path / "net.onnx.data").read_text() == "mine" and not (tmp_path / "net.onnx").exists()


def test_cards_and_bills_of_others_stay(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "net.pt2"
    ship(rows, "pt2", out)
    readme, own = tmp_path / "README.md", tmp_path / "net.README.md"
    assert is_own_card(readme.read_text()) and places_of_card(out)[0] == readme
    readme.write_text(readme.read_text() + "\nMine.\n")  # a person went on with it
    assert places_of_card(out)[0] == own
    own.mkdir()
    third = tmp_path / "net.pt2.README.md"  # of files that differ in their ending
    assert places_of_card(out)[0] == third
    third.mkdir()
    with pytest.raises(OnnxgenError, match=r"README.md and net.README.md in .* were not written by onnxgen"):
        ship(rows, "pt2", out, force=True)
    third.rmdir()
    own.rmdir()
    (tmp_path / "net.pt2.cdx.json").write_text("{}")
    with pytest.raises(OnnxgenError, match="cdx.json was not written by onnxgen"):
        places_of_card(out)
    assert places_of_card(out, force=True)[1].read_text() == "{}"


def test_a_card_of_another_file_stays(rows: Path, tmp_path: Path) -> None:
    ship(rows, "pt2", tmp_path / "net.pt2")
    assert ship(rows, "onnx", tmp_path / "two.onnx").wrote[1] == tmp_path / "two.README.md"
    assert "`net.pt2`" in (tmp_path / "README.md").read_text()
    (tmp_path / "net.pt2").unlink()
    assert places_of_card(tmp_path / "two.onnx")[0] == tmp_path / "README.md"


@pytest.mark.parametrize("points", [math.nan, math.inf])
def test_points_that_say_nothing_are_refused(rows: Path, tmp_path: Path, points: float) -> None:
    with pytest.raises(OnnxgenError, match="may_lose is"):
        ship(rows, "onnx-int8", tmp_path / "net.onnx", may_lose=points)
    with pytest.raises(OnnxgenError, match="may_lose is of 8-bit integers, and --to pt2 has none"):
        ship(rows, "pt2", tmp_path / "net.pt2", may_lose=points)


def test_the_card_of_odd_texts(tmp_path: Path) -> None:
    """Licences, names of classes and metrics can't break the front matter or a table."""
    yaml = pytest.importorskip("yaml")
    entries = {"license": "Mine: no | use\nlibrary_name: evil"}
    run = trained(tmp_path, entries=entries, classes=("a\nb", "c|<d>", "`e`"))
    values = json.loads((run / "run.json").read_text())
    values["result"]["best"]["val_loss"] = 1e-05
    values["name"] = 'q"\n# evil'
    (run / "run.json").write_text(json.dumps(values))
    assert command(["export", str(run), "-o", str(tmp_path / "out.onnx"), "-q"]) == 0
    card = (tmp_path / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["license"] == "other" and front["license_name"] == "Mine: no | use library_name: evil"
    assert front["library_name"] == "onnx" and front["model-index"][0]["name"] == 'q" # evil'
    assert front["model-index"][0]["results"][0]["metrics"][0]["value"] == 1e-05
    assert "\n# evil" not in card and "c\\|\\<d\\>" in card and "\\`e\\`" in card
    ancestor = json.loads((tmp_path / "out.onnx.cdx.json").read_text())["metadata"]["component"]["pedigree"]
    assert ancestor["ancestors"][0]["licenses"][0]["license"]["name"] == entries["license"]
    (tmp_path / "net.onnx").write_bytes(b"another file")
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    ship(run, "pt2", tmp_path / "new" / "net.pt2")
    assert "not known: the file is gone" in (tmp_path / "new" / "README.md").read_text()


def test_the_card_of_an_export_says_its_batch(tmp_path: Path) -> None:
    run = trained(tmp_path, "4,8", "4,3", batch_size=4, val=12 / 40)
    assert command(["export", str(run), "-o", str(tmp_path / "out.onnx"), "-q"]) == 0
    assert "| batch | 4 |" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(("taken", "returned"), [("1,8", "1,3"), ("8", "3")])
def test_networks_of_one_sample(taken: str, returned: str, tmp_path: Path) -> None:
    """The file takes one sample as its network does, and the metrics are those of the file."""
    run = trained(tmp_path, taken, returned)
    for to in ("onnx", "pt2", "onnx-int8"):
        report = ship(run, to, tmp_path / f"{to}{TARGETS[to].suffix}")
        assert report.batch == 1 and report.compared == 10 and report.after.keys() == report.before.keys()
        assert (report.after == pytest.approx(report.before, rel=1e-5)) is (to != "onnx-int8")


def test_batches_that_do_not_divide_the_samples(tmp_path: Path) -> None:
    report = ship(trained(tmp_path, "4,8", "4,3", batch_size=4, val=0.0), "onnx", tmp_path / "new.onnx")
    assert report.batch == 4 and report.compared == 40 and not report.before


def test_batches_of_one_leave_the_batch_open(tmp_path: Path) -> None:
    """torch.export takes a size of 1 for a constant."""
    assert ship(trained(tmp_path, batch_size=1), "pt2", tmp_path / "net.pt2").batch == 0
