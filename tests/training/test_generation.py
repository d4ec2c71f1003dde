"""Generated text is, token for token, that of transformers for the network that was exported, and of onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import onnxgen
from onnxgen.cli import run as command
from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import Port, Signature
from onnxgen.training import causal_lm, fit, load, open_model
from onnxgen.training.generation.ports import causal_ports
from tests.training import causal, texts

pytest.importorskip("transformers")
NETS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "gpt2": (causal.gpt2, {}),
    "gpt2 without a cache": (causal.gpt2, {"cache": ""}),
    "llama": (causal.llama, {}),
    "llama without positions": (causal.llama, {"positions": False}),
    "llama, first step": (causal.llama, {"cache": "first"}),
}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 0.8, "top_k": 20},
    "beams": {"num_beams": 3},
    "drawn beams": {"num_beams": 2, "do_sample": True, "num_return_sequences": 2},
}
NEW = 12


def prompts(vocabulary: int, padded: bool = True) -> tuple[Tensor, Tensor]:
    """Token ids of three texts, and their mask: two are padded on the left."""
    ids = torch.from_numpy(np.random.default_rng(0).integers(4, vocabulary, (3, 6)))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, :2], mask[2, :4] = 0, 0
    return ids.masked_fill(mask == 0, 0), mask


def as_theirs(path: Path, net: Any, ids: Tensor, mask: Tensor) -> Any:
    """Hold what is generated from a file against the network of transformers that it was exported from."""
    lm = causal_lm(onnxgen.load(path))
    lm.generation_config.update(bos_token_id=2, eos_token_id=3, pad_token_id=0)
    for name, given in WAYS.items():
        made = []
        for model in (lm, net):
            torch.manual_seed(0)
            made.append(model.generate(ids, attention_mask=mask, max_new_tokens=NEW, **given))
        assert torch.equal(*made), name
    labels = ids.masked_fill(mask == 0, -100)
    positions = {"position_ids": (mask.cumsum(1) - 1).clamp_min(0)}
    with torch.no_grad():
        ours = lm(ids, mask, labels=labels)
        other = net(input_ids=ids, attention_mask=mask, labels=labels, **positions)
    real = mask == 1
    torch.testing.assert_close(ours.logits[real], other.logits[real], rtol=1e-5, atol=1e-5)
    assert ours.loss.item() == pytest.approx(other.loss.item(), abs=1e-5)
    assert lm.config.vocab_size == net.config.vocab_size
    return lm


@pytest.mark.parametrize("name", NETS)
def test_transformers_generates_the_same(name: str, tmp_path: Path) -> None:
    make, how = NETS[name]
    net = make()
    path = causal.export(net, tmp_path / "net.onnx", **how)
    lm = as_theirs(path, net, *prompts(net.config.vocab_size))
    assert len(lm.ports.layers) == (0 if "cache" in how else 2)
    if not lm.ports.layers:
        with pytest.raises(OnnxgenError, match="no inputs for a cache -> leave out use_cache"):
            lm.generate(torch.ones(1, 3, dtype=torch.int64), use_cache=True, max_new_tokens=2)


@pytest.mark.parametrize("name", ["past", "merged"])
def test_onnxruntime_generates_the_same(name: str, tmp_path: Path) -> None:
    """Also for a merged decoder, which computes the first step without a cache, and all others with it."""
    net, path = causal.gpt2(), tmp_path / "net.onnx"
    if name == "merged":
        causal.export_merged(net, path)
    else:
        causal.export(net, path)
    ids, mask = prompts(net.config.vocab_size, padded=name == "past")
    lm = as_theirs(path, net, ids, mask)
    wanted, scores = causal.greedy(path, ids, mask, NEW, (3, 0, 8))
    given = {"return_dict_in_generate": True, "output_logits": True, "eos_token_id": None}
    made = lm.generate(ids, attention_mask=mask, max_new_tokens=NEW, **given)
    assert torch.equal(made.sequences, wanted)
    torch.testing.assert_close(torch.stack(made.logits, 1), scores, rtol=1e-5, atol=1e-5)
    assert made.past_key_values.get_seq_length() == ids.shape[1] + NEW - 1  # each token was computed once


def test_what_can_not_be_right_is_refused(tmp_path: Path) -> None:
    net = causal.gpt2()
    lm = causal_lm(onnxgen.load(causal.export(net, tmp_path / "net.onnx", positions=False)))
    ids, mask = prompts(net.config.vocab_size)
    with pytest.raises(OnnxgenError, match="padding on the left moves the positions .* position_ids"):
        lm.generate(ids, attention_mask=mask, max_new_tokens=3)
    assert torch.equal(lm.generate(ids[:1], max_new_tokens=3), net.generate(ids[:1], max_new_tokens=3))
    with pytest.raises(OnnxgenError, match=r"attention_mask is \[3, 5\], but there are 0 past and 6 new tokens"):
        lm(ids, mask[:, 1:])
    with pytest.raises(OnnxgenError, match="a cache that grows, and not a StaticCache -> leave out cache_impl"):
        lm(ids, past_key_values=texts.hf().StaticCache(config=net.config, max_cache_len=9))
    model = open_model(texts.generated(texts.WithMask(texts.bert("MaskedLM", 30)), tmp_path / "bert.py", BOTH))
    with pytest.raises(OnnxgenError, match="scores of position 2 depend on token 3: the network sees later tokens"):
        causal_lm(model)


BOTH = ["input_ids", "attention_mask"]


class Ids(nn.Module):
    """Token ids of two texts -> scores; there is no mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.embed(input_ids))


def test_a_fixed_batch_and_no_mask(tmp_path: Path) -> None:
    path = texts.generated(Ids(), tmp_path / "ids.py", ["input_ids"])
    lm = causal_lm(open_model(path))
    ids = torch.tensor([[5, 7], [9, 4]])
    made = lm.generate(ids, max_new_tokens=3)
    assert torch.equal(made[:, 1:], torch.cat([ids[:, 1:], lm(made[:, 1:-1]).logits.argmax(2)], 1))
    with pytest.raises(OnnxgenError, match="no input attention_mask, so it would read the padding"):
        lm.generate(ids, attention_mask=torch.tensor([[1, 1], [0, 1]]), max_new_tokens=3)
    onnxgen.generate(
        path.with_suffix(".onnx"), tmp_path / "two.py", onnxgen.Options(input_shapes={"input_ids": (2, -1)})
    )
    fixed = causal_lm(open_model(tmp_path / "two.py"))
    assert torch.equal(fixed.generate(ids, max_new_tokens=3), made)
    with pytest.raises(OnnxgenError, match="fixes a batch of 2, and there are 1 texts.* --dynamic-batch"):
        fixed.generate(ids[:1], max_new_tokens=3)


def ports(inputs: dict[str, Any], outputs: dict[str, Any]) -> Signature:
    def of(side: dict[str, Any]) -> tuple[Port, ...]:
        return tuple(Port(name, "int64" if len(dims) == 2 else "float32", dims) for name, dims in side.items())

    return Signature(of(inputs), of(outputs))


ONE, SCORES = {"input_ids": ("n", "t")}, {"logits": ("n", "t", 9)}
KEY, VALUE = "past_key_values.0.key", "past_key_values.0.value"
PAST = ("n", 2, "p", 4)
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "an image": ({"image": ("n", 3, 8, 8)}, {"y": ("n", 9)}, r"token ids \(the network has image\), so .* -> export"),
    "no scores": (ONE, {"pooled": ("n", 9)}, r"no output has scores of tokens \[batch, .* \(it has pooled\)"),
    "another input": ({**ONE, "pixels": ("n", 3, 8, 8)}, SCORES, r"input 'pixels' \[n, 3, 8, 8\] is none"),
    "an encoder": ({**ONE, "encoder_hidden_states": ("n", "s", 8)}, SCORES, "'encoder_hidden_states'.*Seq2SeqLM"),
    "a decoder": ({**ONE, "decoder_input_ids": ("n", "d")}, SCORES, "'decoder_input_ids'.* belongs to an encoder"),
    "a length": ({"input_ids": ("n", 128)}, SCORES, r"input 'input_ids' \[n, 128\] fixes the number of tokens"),
    "no present": ({**ONE, KEY: PAST, VALUE: PAST}, SCORES, f"no output goes on from input '{KEY}': present.0.key"),
    "a fixed past": ({**ONE, KEY: ("n", 2, 64, 4)}, SCORES, "takes a past of a fixed length"),
    "a past of three axes": ({**ONE, KEY: ("n", "p", 4)}, SCORES, r"\[n, p, 4\] is no past of keys or values"),
    "a key alone": ({**ONE, KEY: PAST}, {**SCORES, "present.0.key": PAST}, "layer 0 has a past for its key alone"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_network_that_lacks_a_role_is_refused(name: str) -> None:
    inputs, outputs, wanted = REFUSED[name]
    with pytest.raises(OnnxgenError, match=wanted) as error:
        causal_ports(ports(inputs, outputs))
    assert "\n" not in str(error.value) and " -> " in str(error.value)


def test_layers_are_paired_by_name() -> None:
    """Eleven layers, whose tenth comes second in the order of letters, and outputs in another order."""
    names = sorted(f"{i}.{part}" for i in range(11) for part in ("key", "value"))
    pasts = {f"past_key_values.{name}": PAST for name in names}
    found = causal_ports(ports({**pasts, **ONE}, {**{f"present.{name}": PAST for name in reversed(names)}, **SCORES}))
    assert [pair[0][0] for pair in found.layers] == [f"past_key_values.{i}.key" for i in range(11)]
    outputs = list(reversed(names))
    assert all(outputs[place] == name.partition("values.")[2] for pair in found.layers for name, place in zip(*pair))
    assert found.logits == 22 and found.roles[-1] == "input_ids"


# ---- files, training and the command line ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer, text, and modules of one network: with a cache, and merged."""
    folder = tmp_path_factory.mktemp("writer")
    size = texts.size(texts.tokenizer(folder, template=False))
    net = causal.gpt2(size)
    for name, export in (("writer", causal.export), ("merged", causal.export_merged)):
        export(net, folder / f"{name}.onnx")
        onnxgen.generate(folder / f"{name}.onnx", folder / f"{name}.py")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 3, "pad_token_id": 0}))
    (folder / "x.txt").write_text("\n".join(texts.SENTENCES * 12))
    return folder


def test_the_tokenizer_and_the_end_token_lie_beside_the_module(writer: Path) -> None:
    lm = causal_lm(open_model(writer / "writer.py"))
    assert lm.tokenizer is not None and lm.tokenizer.padding_side == "left"
    given = lm.tokenizer(["the cat sat", "a dog"], padding=True, return_tensors="pt")
    assert given["attention_mask"].tolist() == [[1, 1, 1], [0, 1, 1]]
    made = lm.generate(input_ids=given["input_ids"], attention_mask=given["attention_mask"], max_new_tokens=4)
    alone = lm.generate(given["input_ids"][1:, 1:], max_new_tokens=4)
    assert torch.equal(made[1, 1:], alone[0]) and lm.tokenizer.decode(alone[0]).startswith("a dog")
    first = int(made[0, 3])
    stopped = lm.generate(given["input_ids"][:1], max_new_tokens=4, eos_token_id=first)
    assert stopped[0].tolist() == [*given["input_ids"][0].tolist(), first]
    assert lm.generation_config.eos_token_id == 3
    with pytest.raises(OnnxgenError, match="there is no file"):
        causal_lm(open_model(writer / "writer.py"), writer / "no.json")


@pytest.mark.parametrize("name", ["writer", "merged"])
def test_a_network_with_a_cache_is_trained_and_writes(
    name: str, writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It learns six sentences by heart. The report shows it, `predict` writes them, and onnxruntime does so, too."""
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"max_length": 14, "epochs": 14, "lr": 1e-2, "batch_size": 8, "val": 0.2, "show": "nothing"}
    result = fit(writer / f"{name}.py", writer / "x.txt", out="run", **given)
    assert result.history[-1]["val_perplexity"] < 2 < 10 < result.history[0]["val_perplexity"]
    assert "<h2>Texts</h2>" in (tmp_path / "run" / "report.html").read_text()
    assert json.loads((tmp_path / "run" / "generation_config.json").read_text())["eos_token_id"] == 3
    run = load("run")
    found = run.predict(["the cat sat", "a dog ran", "Anna met"], max_new_tokens=3)
    assert [one.label for one in found] == [" on the mat", " in the park", " Tom in Bern"]
    assert [one.answer.value.shape for one in found] == [(3,)] * 3
    library = pytest.importorskip("tokenizers").Tokenizer.from_file(str(writer / "tokenizer.json"))
    assert command(["export", "run", "-o", "out.onnx", "--quiet"]) == 0
    ids = torch.tensor([library.encode("Anna met").ids])
    whole, _ = causal.greedy(tmp_path / "out.onnx", ids, torch.ones_like(ids), 3, (3, 0, 8))
    assert library.decode(whole[0].tolist()) == "Anna met Tom in Bern"
    drawn = [[one.label for one in run.predict(["the"] * 9, max_new_tokens=2, temperature=t)] for t in (9.0, 9.0, None)]
    assert drawn[0] == drawn[1] and len({*drawn[0]}) > 1 == len({*drawn[2]})
    (tmp_path / "p.txt").write_text("the film was\n")
    assert command(["predict", "run", "p.txt", "--max-new-tokens", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["outputs"]["text"]["label"] in (" good", " bad")
    with pytest.raises(OnnxgenError, match="no positions for 1 token and 60 new ones .* fewer new tokens"):
        run.predict(["the"], max_new_tokens=60)
    with pytest.raises(OnnxgenError, match="p.txt, row 1: no text -> remove the row"):
        (tmp_path / "p.txt").write_text("the film was\n \n")
        run.predict("p.txt")


def test_options_of_texts_are_for_language_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(
        nn.Linear(2, 2),
        (np.zeros((8, 2), np.float32), np.arange(8) % 2),
        epochs=1,
        out=tmp_path / "run",
        show="nothing",
    )
    assert command(["predict", str(tmp_path / "run"), "x.txt", "--temperature", "1"]) == 2
    assert "--temperature is for language models, and" in capsys.readouterr().err
