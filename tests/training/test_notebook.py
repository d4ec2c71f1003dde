"""What a notebook and a Python session show: short texts, tables, and advice in Python's words."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onnxgen import generate
from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate, fit
from onnxgen.training.settings import in_python
from tests.training.small import network
from tests.training.test_fit import images, net

CPU = {"device": "cpu", "workers": 0}
Out = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("option", "argument"),
    [
        ("use all samples for training with --val 0", "use all samples for training with val=0"),
        ("--batch-size 2 or more, or freeze the norms", "batch_size=2 or more, or freeze the norms"),
        ("--replace-head 7 fits the model to the data", "replace_head=7 fits the model to the data"),
        ("train with a smaller --lr, or with --clip 1", "train with a smaller lr, or with clip=1"),
        ("raise --epochs or --max-steps for more", "raise epochs or max_steps for more"),
        ("--monitor takes one of val_loss", "monitor takes one of val_loss"),
        ("--batch-size is 5", "batch_size is 5"),
        ("--normalize none", "normalize='none'"),
        ("--normalize 0.1,0.3", "normalize='0.1,0.3'"),
        ("--precision 32-true", "precision='32-true'"),
        ("name the loss: --loss cross_entropy, bce, mse, ...", "name the loss: loss='cross_entropy', bce, mse, ..."),
        ("--optimizer-arg eps=1e-4", "optimizer_args={'eps': 1e-4}"),
        ("--target a=COLUMN,b=COLUMN", "target={'a': 'COLUMN', 'b': 'COLUMN'}"),
        ("--inputs x=size: the data has no such column", "inputs={'x': 'size'}: the data has no such column"),
        ("training without --strict skips them", "training without strict=True skips them"),
        ("start a new run without --resume", "start a new run without resume=True"),
        ("its module (--import)", "its module (imports)"),
        (
            "generate it for this shape with --input-shape",
            "generate it for this shape with --input-shape",
        ),
    ],
)
def test_advice_in_the_words_of_python(option: str, argument: str) -> None:
    assert in_python(option) == argument


def test_fit_and_evaluate_name_their_arguments(tmp_path: Path, capsys: Out) -> None:
    with pytest.raises(OnnxgenError) as caught:
        fit(net(), images(), normalize="x", out=tmp_path, **CPU)
    assert str(caught.value).startswith("normalize='x': ") or "normalize takes" in str(caught.value)
    with pytest.raises(OnnxgenError, match="-> normalize='none'$"):
        evaluate(network(tmp_path, x=("float32", ["n", 5])), {"x": images()[0][:, 0, 0, :5], "y": images()[1] % 3},
                 normalize="0.1,0.3", **CPU)  # fmt: skip
    run = {"out": tmp_path / "run", "epochs": 1, "show": "lines", **CPU}
    fit(net(), images(), **run)
    fit(net(), images(), resume=True, **run)
    assert "raise epochs or max_steps for more" in capsys.readouterr().out


def test_results_are_short(tmp_path: Path) -> None:
    network(tmp_path, x=("float32", ["n", 5]))
    made = generate(tmp_path / "small.onnx", tmp_path / "other.py")
    assert (
        repr(made) == f"<Generated, written: 1 class, 6 parameters, {made.report.lines} lines; weights: {made.weights}>"
    )
    result = fit(net(), images(), epochs=2, test=0.2, out=tmp_path / "run", show="nothing", **CPU)
    first, *lines = repr(result).splitlines()
    best, test = result.history[result.best_epoch], result.test or {}
    assert first.startswith(
        f"<Net; stopped: epochs, the best is epoch {best['epoch']:.0f}, files in {tmp_path}/run, test "
    )
    assert f"{test['test_loss']:.4g}" in first and len(lines) == 2 and lines[1].startswith("  epoch 2: train loss ")
    shown = result._repr_html_()
    assert shown.count("<tr>") == 3 and f"<td><b>{best['val_loss']:.4g}</b></td>" in shown


def test_a_notebook_gets_a_table_that_follows_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    shown: list[str] = []

    def display(html: str, display_id: bool) -> Any:
        assert display_id
        shown.append(html)
        return SimpleNamespace(update=shown.append)

    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)  # type: ignore[arg-type]
    there: Any = SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", there)
    result = fit(net(), images(), epochs=3, out=tmp_path, **CPU)
    said = capsys.readouterr().out
    assert "training Net" in said and "epoch 0, before training" in said and "epoch 1" not in said
    assert shown[-1].count("<tr>") == 4 and "data:image/png;base64," in shown[-1]
    assert all(f"{row['val_loss']:.4g}" in shown[-1] for row in result.history)
