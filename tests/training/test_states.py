"""A network that carries a state computes what a loop by hand does: in training, evaluation, prediction, its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import soundfile
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen import generate, ship
from onnxgen.cli import run as cli
from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import Port, Signature
from onnxgen.training import Settings, evaluate, fit, load, open_model, predict
from onnxgen.training.data.carrying import is_next, sure_pairs
from onnxgen.training.stepwise import stepwise
from samples.deploy.predict import predict as deployed
from tests.training.streams import CHUNK, CONTEXT, RATE, Listener, Reader, calls, export

QUIET: dict[str, Any] = {"epochs": 2, "show": "nothing", "workers": 0, "device": "cpu", "loggers": "none"}
PLAIN: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0, "batch_size": 4, **QUIET}
CUT: dict[str, Any] = {"chunk": CHUNK, "context": CONTEXT, "target": "speaks"}


def module(network: nn.Module, folder: Path, **options: Any) -> Path:
    path = folder / ("listener.py" if isinstance(network, Listener) else "reader.py")
    generate(export(network, path.with_suffix(".onnx"), **options), path, force=True)
    return path


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network, sounds, and a run on all of them, each batch of four: the last one has two."""
    folder = tmp_path_factory.mktemp("streams")
    calls(folder / "calls")
    path = module(Listener(), folder)
    fit(path, folder / "calls", **{**PLAIN, **CUT, "batch_size": 10, "val": 0.0, "bptt": 3, "out": folder / "run"})
    return folder


def heard(folder: Path) -> list[tuple[Tensor, Tensor]]:
    """The sounds of a folder, and their labels."""
    rows = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]
    waves = [soundfile.read(folder / row["sound"], dtype="float32")[0] for row in rows]
    return [(torch.from_numpy(wave), torch.tensor(row["speaks"])) for wave, row in zip(waves, rows)]


def by_hand(model: nn.Module, wave: Tensor, window: int = 0) -> Tensor:
    """The probability of each chunk of one sound. The gradient ends before each window of steps."""
    state, made = torch.zeros(2, 1, 6), []
    wave = F.pad(wave, (CONTEXT, -len(wave) % CHUNK))
    for number, chunk in enumerate(wave.unfold(0, CHUNK + CONTEXT, CHUNK)):
        state = state.detach() if window and number % window == 0 else state
        probability, state = type(model).forward(model, chunk[None], state, torch.tensor(RATE))
        made.append(probability[0, 0])
    return torch.stack(made)


def test_a_run_is_a_loop_by_hand(listening: Path) -> None:
    """All sounds are one batch, which ends in zeros; the gradient reaches through three steps."""
    model = open_model(listening / "listener.py").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        made = [(by_hand(model, wave, 3), label.float()) for wave, label in heard(listening / "calls")]
        loss = F.binary_cross_entropy(*map(torch.cat, zip(*made)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    trained = open_model(listening / "run", listening / "run" / "last.safetensors").state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-5, atol=1e-6)


def test_answers_are_those_of_each_sound_alone(listening: Path) -> None:
    run, model = load(listening / "run"), open_model(listening / "run").eval()
    sounds = heard(listening / "calls")
    answers = run.predict([listening / "calls" / f"{n}.wav" for n in range(len(sounds))], soft=True)
    with torch.no_grad():
        wanted = [by_hand(model, wave) for wave, _ in sounds]
    for answer, probabilities, (_, label) in zip(answers, wanted, sounds):
        assert answer.answer.value.size == len(label)
        np.testing.assert_allclose(answer.answer.value.ravel(), probabilities, atol=1e-6)
    every, labels = torch.cat(wanted), torch.cat([label for _, label in sounds])
    measured = run.evaluate(listening / "calls", part="train")
    assert measured["accuracy"] == pytest.approx(((every > 0.5) == labels).double().mean().item())
    assert measured["loss"] == pytest.approx(F.binary_cross_entropy(every, labels.float()).item(), rel=1e-5)


def test_the_run_and_its_file_say_what_is_carried(listening: Path) -> None:
    run = load(listening / "run")
    assert (run.settings.carry, run.settings.const) == ({"state": "stateN"}, {"sr": RATE})
    assert ship(listening / "run", "onnx", listening / "tuned.onnx", force=True).difference < 1e-5
    session = onnxruntime.InferenceSession(str(listening / "tuned.onnx"))
    card, bill = (listening / "README.md").read_text(), (listening / "tuned.onnx.cdx.json").read_text()
    takes = f"float32 [{CHUNK + CONTEXT}], a step of {CHUNK} numbers behind the {CONTEXT} before them"
    assert takes in card and takes in bill and "state float32 [2, 6]" in card
    assert "| state state | begins as 0; each step makes the next: `stateN` |" in card and '"stateN"' in bill
    contract = json.loads(session.get_modelmeta().custom_metadata_map["onnxgen.preprocessing"])
    assert contract["inputs"][0]["steps"] == {"axis": 0, "chunk": CHUNK, "context": CONTEXT}
    assert contract["inputs"][-1] | {"value": 0.0, "from": "stateN", "shape": [2, 6]} == contract["inputs"][-1]
    for answer in run.predict([listening / "calls" / "0.wav", listening / "calls" / "1.wav"]):
        (other,) = deployed(session, answer.source)
        np.testing.assert_array_equal(other["speaks"], answer.answer.value)


def test_sounds_of_several_lengths_have_arrays_of_their_own(listening: Path, tmp_path: Path) -> None:
    """One of them has a single step: its answer has a class for each step, too."""
    wave, _ = soundfile.read(listening / "calls" / "0.wav", dtype="int16")
    for steps in (1, 3):
        soundfile.write(tmp_path / f"{steps}.wav", wave[: steps * CHUNK], RATE, subtype="PCM_16")
    files = [str(tmp_path / f"{steps}.wav") for steps in (1, 3)]
    assert cli(["predict", str(listening / "run"), *files, "-o", str(tmp_path / "said.npz")]) == 0
    said = np.load(tmp_path / "said.npz")
    assert {n: said[n].shape for n in said if n != "source"} == {"speaks.0": (1, 1), "speaks.1": (3, 1)}
    assert ship(listening / "run", "onnx", listening / "tuned.onnx", force=True).difference < 1e-5
    session = onnxruntime.InferenceSession(str(listening / "tuned.onnx"))
    for number, file in enumerate(files):
        (other,) = deployed(session, file)
        np.testing.assert_array_equal(other["speaks"], said[f"speaks.{number}"])


def test_integers_leave_the_state_alone(listening: Path) -> None:
    report = ship(listening / "run", "onnx-int8", listening / "int8.onnx", force=True)
    assert report.difference < 0.1


def test_labels_are_as_many_as_steps(listening: Path, tmp_path: Path) -> None:
    calls(tmp_path / "calls")
    table = tmp_path / "calls" / "labels.jsonl"
    lines = table.read_text().splitlines()
    row = json.loads(lines[2])
    lines[2] = json.dumps({**row, "speaks": row["speaks"][:-1]})
    table.write_text("\n".join(lines) + "\n")
    with pytest.raises(OnnxgenError, match=r"has \d+ values in row 2, but its sound has \d+ steps"):
        fit(listening / "listener.py", tmp_path / "calls", val=0.0, out=tmp_path / "run", **PLAIN, **CUT)


def rows(count: int = 12, steps: int = 7) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(count, steps, 5)).astype(np.float32), rng.integers(0, 3, (count, steps))
    y[::3, 5:] = -100  # these end earlier
    return {"x": x, "label": y}


def read(model: nn.Module, x: Tensor, start: float = 0.0) -> Tensor:
    h, c, made = torch.full((len(x), 6), start), torch.zeros(len(x), 6), []
    for step in x.unbind(1):
        scores, h, c = type(model).forward(model, step, h, c)
        made.append(scores)
    return torch.stack(made, 1)


@pytest.mark.parametrize("batch", [True, False], ids=["batch", "one at a time"])
def test_rows_and_several_states(tmp_path: Path, batch: bool) -> None:
    """Classes of each step; a file that takes one sample does the same."""
    data, path = rows(), module(Reader(), tmp_path, batch=batch)
    fit(path, data, val=0.0, out=tmp_path / "run", **{**PLAIN, "batch_size": 12})
    model, x, y = open_model(path).train(), torch.from_numpy(data["x"]), torch.from_numpy(data["label"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        made = torch.cat([read(model, one) for one in x.split(12 if batch else 1)])
        optimizer.zero_grad()
        F.cross_entropy(made.flatten(0, 1), y.flatten()).backward()
        optimizer.step()
    trained = open_model(tmp_path / "run", tmp_path / "run" / "last.safetensors").eval()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    scores, h, _ = predict(trained, {"x": data["x"]})
    with torch.no_grad():
        wanted = torch.cat([read(trained, one) for one in x.split(12 if batch else 1)])
    torch.testing.assert_close(scores, wanted)
    assert h.shape == (12, 6)
    assert ship(tmp_path / "run", "torchscript", tmp_path / "run.pt", data=save(tmp_path, data)).difference < 1e-5


def save(folder: Path, data: dict[str, Any]) -> Path:
    np.savez(folder / "rows.npz", **data)
    return folder / "rows.npz"


def test_a_state_may_be_named_and_begin_elsewhere(tmp_path: Path) -> None:
    path, data = module(Reader(), tmp_path), rows()
    model = open_model(path).eval()
    scores, *_ = predict(model, {"x": data["x"]}, carry={"h": "hn", "c": "cn"}, const={"h": 0.5})
    with torch.no_grad():
        torch.testing.assert_close(scores, read(model, torch.from_numpy(data["x"]), 0.5))
    first = {"x": data["x"][:, 0], "scores": data["label"][:, 0]}
    values = evaluate(model, first, const={"h": 0, "c": 0})
    assert stepwise(model) is None and values["loss"] > 0


@pytest.mark.parametrize(
    "settings, told",
    [
        ({"carry": {"h": "scores", "c": "cn"}}, r"can't be the next value of the input, since they are \[batch, 6\]"),
        ({"carry": {"h": "hx"}}, "no such output"),
        ({"carry": {"g": "hn"}}, "no such input"),
        ({"carry": {"h": "hn", "c": "hn"}}, "names an output for two inputs"),
        ({"chunk": 4}, r"input 'x' takes \[batch, 5\], but chunk and context make steps of 4"),
        ({"const": {"h": 0, "c": 0}, "bptt": 4}, "none is found"),
        ({"compile": True}, "compile is not for a network that carries a state"),
        ({"teacher": "reader.onnx"}, "teacher is not for a network that carries a state"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, settings: dict[str, Any], told: str) -> None:
    path = module(Reader(), tmp_path)
    with pytest.raises(OnnxgenError, match=told):
        fit(path, rows(), out=tmp_path / "run", **QUIET, **settings)


def test_samples_of_one_step_say_the_way_out(tmp_path: Path) -> None:
    data = {name: values[:, 0] for name, values in rows().items()}
    with pytest.raises(OnnxgenError, match=r"takes \[batch, steps, 5\], but column 'x' gives \[n, 5\]"):
        fit(module(Reader(), tmp_path), data, out=tmp_path / "run", **QUIET)


def test_context_needs_a_chunk() -> None:
    with pytest.raises(OnnxgenError, match="context is what a chunk has before its own numbers"):
        Settings(context=8)


@pytest.mark.parametrize(
    "pair", "state stateN|h hn|h0 hn|c_0 c_n|h_in h_out|h0 h1|h h.1|cache_in_0 cache_out_0".split("|")
)
def test_names_of_a_state(pair: str) -> None:
    assert is_next(*pair.split())


@pytest.mark.parametrize("pair", "h cn|h_1 h_2|hidden output|x y|h h|main man|c_in_0 c_out_1|in_0 out_0".split("|"))
def test_names_of_other_things(pair: str) -> None:
    assert not is_next(*pair.split())


def test_a_pair_is_sure_if_all_agrees() -> None:
    """An input that is all that a network takes is no state, and neither is one that grows."""
    port = Port("h", "float32", ("n", 6))
    x, y, grows = Port("x", "float32", ("n", 3)), Port("y", "float32", ("n", 1)), Port("h", "float32", ("n", "past", 6))

    def pairs(state: Port, output: Port, *more: Port) -> dict[str, str]:
        return sure_pairs(Signature((*more[:1], state), (*more[1:], output)))

    assert pairs(port, Port("hn", "float32", ("m", 6)), x, y) == {"h": "hn"}
    assert pairs(port, Port("hn", "float32", ("n", 6))) == {}
    assert pairs(port, Port("hn", "float32", ("n", 7)), x, y) == pairs(port, Port("hn", "int64", ("n", 6)), x, y) == {}
    assert pairs(grows, Port("hn", "float32", ("n", "past", 6)), x, y) == {}


def test_the_command_reads_rows(tmp_path: Path) -> None:
    path, data = module(Reader(), tmp_path), save(tmp_path, rows())
    words = ["train", path, "--data", data, "--out", tmp_path / "run", "--max-steps", 1, "--quiet", "--logger", "none"]
    assert cli([*map(str, words)]) == 0
    assert cli([*map(str, words[:4]), "--carry", "h=hx", "--quiet"]) == 2


def lines(folder: Path, target: str, values: list[list[float]]) -> Path:
    """Two samples of three steps and of one, in JSON lines."""
    steps = ([[0.1] * 5, [0.2] * 5, [1] * 5], [[0.5] * 5])
    texts = [json.dumps({"x": x, target: y}) for x, y in zip(steps, values)]
    (folder / "rows.jsonl").write_text("\n".join(texts) + "\n")
    return folder / "rows.jsonl"


def test_lists_of_several_lengths(tmp_path: Path) -> None:
    path = module(Reader(), tmp_path)
    model = open_model(path).eval()
    found = evaluate(model, lines(tmp_path, "label", [[0, 1, 2], [1]]), target={"scores": "label"})
    with torch.no_grad():
        x = torch.tensor([[0.1] * 5, [0.2] * 5, [1.0] * 5])
        made = torch.cat([read(model, x[None])[0], read(model, torch.full((1, 1, 5), 0.5))[0]])
    assert found["loss"] == pytest.approx(F.cross_entropy(made, torch.tensor([0, 1, 2, 1])).item(), rel=1e-5)
    with pytest.raises(OnnxgenError, match="only whole numbers can be left out"):
        evaluate(model, lines(tmp_path, "label", [[0.5, 1, 2], [1]]))
    with pytest.raises(OnnxgenError, match="is it an input or a target"):
        evaluate(model, lines(tmp_path, "said", [[0, 1, 2], [1]]))
