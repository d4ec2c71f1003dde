"""What networks are for, told from the graph's end. Truth is what a network was made for, as its author says.

Nobody chose the files of the zoo and of the collection for this. A kind that is told must be right, whatever the file.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from torch import nn

from onnxgen import Options
from onnxgen.cli import run
from onnxgen.common.built import as_json, built, read_json
from onnxgen.errors import OnnxgenError
from onnxgen.output import compose
from onnxgen.pipeline import build, read_and_simplify
from onnxgen.purpose import purpose_of
from onnxgen.record.signature import KINDS, Purpose, Signature, recorded
from tests.conftest import ROOT
from tests.purpose.heads import HEADS, TRAPS, Head, image, pooled, trunk
from tests.support.exported import exported
from tests.zoo import ZOO
from tests.zoo.export import export

SAMPLE = ROOT / "samples" / "mnist" / "mnist.onnx"
DYNAMO = ("boxes_distributions", "pixels")

# What the networks of the zoo are for; those that are left out are for nothing: they test layers.
OF_ZOO = {
    "classification": "cnn audio_cnn video_cnn mobilenet resnet18 resnet_bottleneck gru_last vit encoder"
    " encoder_prenorm mlp resnet50 mobilenet_v3 efficientnet densenet convnext swin",
    "segmentation": "unet_transpose unet_nearest unet_bilinear",
    "token-classification": "lstm_tagger gru_tagger rnn_tagger",
    "language-model": "gpt2 llama hf_gpt2 hf_llama",
    "embedding": "bert hf_bert hf_t5 hf_whisper hf_clip",
}
# What the authors of the collection's files say, by the names of file and origin; the others are single operators,
# fragments, or networks whose authors do not say. None of these may be told to be anything.
OF_SHARED = {
    "classification": "burn/mnist fastml/conv1d_small_keras fastml/conv2d_small_mp_keras fastml/three_layer_keras"
    " fastml/three_layer_pytorch fastml/two_layer_pytorch ort/java/testdata/cnn_mnist_pytorch"
    " ort/java/testdata/lr_mnist_scikit ort/onnxruntime/python/datasets/logreg_iris"
    " ort/sklearn_bin_voting_classifier_soft ort/ort_minimal_e2e_test_data/test_voice_commands"
    " ort/winml/test/collateral/models/mnist ppocr/cls-model silero/silero_vad_op18_ifless tract/linear_classifier"
    " vnncomp2021/cifar10_resnet/resnet_2b vnncomp2021/marabou-cifar10/cifar10_small"
    " vnncomp2021/mnistfc/mnist-net_256x2 vnncomp2021/oval21/cifar_base_kw vnncomp2021/verivital/Convnet_maxpool"
    " vnncomp2023/vit/pgd_2_3_16 vnncomp2023/nn4sys/pensieve_small_simple",
    "regression": "burn/sine mujoco/go1_policy tract/lgbm_regressor_tensor"
    " vnncomp2023/acasxu/ACASXU_run2a_1_1_batch_2000 vnncomp2023/collins_rul_cnn/NN_rul_small_window_20"
    " vnncomp2023/ml4acopf/14_ieee_ml4acopf"
    " vnncomp2023/nn4sys/lindex vnncomp2023/nn4sys/mscn_128d"
    " vnncomp2023/tllverifybench/tllBench_n_2_N_M_8_m_1_instance_0_0",
    "detection": "ultraface/version-RFB-320_simplified ultraface/version-slim-320_without_postprocessing"
    " vnncomp2023/yolo/TinyYOLO yunet/yunet_n_320_320",
    "language-model": "ort/transformers_test/gpt2_megatron",
    "denoising": "dtln/model_1",
}


def truth(table: dict[str, str]) -> dict[str, str]:
    return {name: kind for kind, names in table.items() for name in names.split()}


def told(path: Path) -> Purpose:
    found = purpose_of(read_and_simplify(path, Options()))
    assert found.kind in ("", *KINDS) and set(found.candidates) <= set(KINDS)
    assert not (found.kind and found.candidates), "candidates are for those who are unsure"
    assert found.evidence or not found.kind
    assert built(Purpose, json.loads(json.dumps(asdict(found)))) == found
    return found


def told_of(head: Head, folder: Path, case: str = "legacy-17") -> Purpose:
    onnx.save(exported(head.make().eval(), head.inputs, case, head.axes), folder / "head.onnx")
    return told(folder / "head.onnx")


@pytest.mark.parametrize("name", HEADS)
def test_heads(name: str, tmp_path: Path) -> None:
    """One network for each way to be of a kind: it is told, without a name that helps, and with its facts."""
    found = told_of(HEADS[name], tmp_path)
    assert found.kind in HEADS[name].kinds, found
    assert {key: found.facts.get(key) for key in HEADS[name].facts} == HEADS[name].facts


@pytest.mark.parametrize("name", DYNAMO)
def test_heads_of_the_other_exporter(name: str, tmp_path: Path) -> None:
    found = told_of(HEADS[name], tmp_path, "dynamo-18")
    assert found.kind in HEADS[name].kinds, found
    assert {key: found.facts.get(key) for key in HEADS[name].facts} == HEADS[name].facts


@pytest.mark.parametrize("name", TRAPS)
def test_traps(name: str, tmp_path: Path) -> None:
    """Networks that look like another kind: the kind is right, or it is not told."""
    found = told_of(TRAPS[name], tmp_path)
    assert found.kind in ("", *TRAPS[name].kinds), found


def test_every_kind_has_a_head() -> None:
    assert {kind for head in HEADS.values() for kind in head.kinds} == set(KINDS)


@pytest.mark.parametrize("name", ZOO)
def test_zoo(name: str, tmp_path: Path) -> None:
    """Wrong is never right; unsure is right only where the file's names and end really tell nothing."""
    export(ZOO[name], tmp_path / "net.onnx")
    found, right = told(tmp_path / "net.onnx"), truth(OF_ZOO).get(name)
    if name in ("audio_cnn", "video_cnn", "encoder", "encoder_prenorm", "mlp"):  # `output`, of a Linear layer
        assert found.kind == "" and found.candidates[0] == right, found
    else:
        assert found.kind == (right or ""), found


@pytest.mark.parametrize("category", ["net", "graph", "op", "ms-contrib", "classic-ml", "broken", "custom-domain"])
def test_shared(category: str, shared: Path) -> None:
    """No file of the collection is told wrong: 361 of them, of which 37 have a known purpose."""
    entries = json.loads((shared / "models" / "manifest.json").read_text(encoding="utf-8"))
    known, verdicts, wrong = truth(OF_SHARED), Counter[str](), []
    assert known.keys() <= {entry["file"].removesuffix(".onnx") for entry in entries}
    for entry in (entry for entry in entries if entry["category"] == category):
        try:
            found = told(shared / "models" / entry["file"])
        except OnnxgenError:
            continue  # broken files, and operators of other programs
        kind = known.get(entry["file"].removesuffix(".onnx"), "")
        if found.kind not in ("", kind):
            wrong.append((entry["file"], found))
        if kind:
            verdicts["right" if found.kind == kind else "unsure"] += 1
    assert wrong == []
    least = {"net": 13, "classic-ml": 4, "ms-contrib": 1}.get(category, 0)
    assert verdicts["right"] >= least, verdicts


# ---- what names, metadata and other operators say ----


def named(folder: Path, head: Head, *outputs: str, **metadata: str) -> Purpose:
    """The purpose of a network whose outputs have these names."""
    proto = exported(head.make().eval(), head.inputs, "legacy-17", head.axes)
    new = dict(zip((v.name for v in proto.graph.output), outputs))
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [new.get(name, name) for name in names]
    for value in proto.graph.output:
        value.name = new[value.name]
    for key, text in metadata.items():
        proto.metadata_props.add(key=key, value=text)
    onnx.save(proto, folder / "named.onnx")
    return told(folder / "named.onnx")


NAMES = [
    (Head(lambda: pooled(6), image()), ("logits",), "classification"),
    (Head(lambda: pooled(1), image()), ("age",), "regression"),
    (Head(lambda: pooled(1), image()), ("logits",), ""),
    (Head(lambda: pooled(24), image()), ("image_embeds",), "embedding"),
    (Head(lambda: pooled(24), image()), ("class_token",), "embedding"),
    (Head(lambda: pooled(10), image()), ("landmarks",), "keypoints"),
    (Head(lambda: pooled(4), image()), ("class_boxes",), ""),
    (TRAPS["heatmaps"], ("heatmaps",), "keypoints"),
    (TRAPS["depth"], ("saliency_mask",), "segmentation"),
    (TRAPS["same_image"], ("denoised",), "image-to-image"),
    (TRAPS["box_of_face"], ("probabilities", "boxes"), ""),  # one box: nothing knows what it is of
    (TRAPS["heatmaps"], ("boxes",), ""),
    (HEADS["pixels"], ("heatmaps",), ""),  # built like a segmentation, named like keypoints
    (Head(lambda: pooled(24, nn.Softmax(1)), image()), ("embedding",), ""),
]


@pytest.mark.parametrize("head, outputs, kind", NAMES)
def test_names(head: Head, outputs: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    found = named(tmp_path, head, *outputs)
    assert found.kind == kind, found
    assert not kind or any(outputs[0] in sentence for sentence in found.evidence)


def test_metadata(tmp_path: Path) -> None:
    """The exporter's word counts, unless the graph is built like something else."""
    assert named(tmp_path, TRAPS["heatmaps"], "output0", task="detect").kind == "detection"
    assert named(tmp_path, HEADS["vectors"], "output0", task="detect").kind == ""
    assert named(tmp_path, TRAPS["one_score"], "output0", task="something").kind == ""


def test_boxes_are_chosen_inside(tmp_path: Path) -> None:
    proto = exported(HEADS["boxes_joined"].make().eval(), image(), "legacy-17")
    boxes, scores = (value.name for value in proto.graph.output)
    proto.graph.node.append(helper.make_node("Transpose", [scores], ["turned"], perm=[0, 2, 1]))
    proto.graph.node.append(helper.make_node("NonMaxSuppression", [boxes, "turned"], ["chosen"]))
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("chosen", TensorProto.INT64, [None, 3]))
    onnx.save(proto, tmp_path / "net.onnx")
    found = told(tmp_path / "net.onnx")
    assert found.kind == "detection" and found.facts["nms"] is True, found


def test_other_programs_operators_are_not_known(tmp_path: Path) -> None:
    """A Softmax of another domain may be anything."""
    proto = exported(HEADS["classes"].make().eval(), image(), "legacy-17")
    proto.graph.node[-1].domain = "other"
    del proto.graph.node[-1].attribute[:]
    proto.graph.node[-1].attribute.append(helper.make_attribute("axis", "last"))
    proto.opset_import.append(helper.make_opsetid("other", 1))
    onnx.save(proto, tmp_path / "net.onnx")
    assert told(tmp_path / "net.onnx").kind == ""


def test_a_map_of_one_cell_is_no_segmentation(tmp_path: Path) -> None:
    head = Head(lambda: nn.Sequential(trunk(64), nn.Conv2d(16, 5, 1), nn.Softmax(1)), image())
    assert told_of(head, tmp_path).kind == "classification"


# ---- the sidecar and the command ----


def test_the_signature_keeps_it(tmp_path: Path) -> None:
    made = build(SAMPLE, Options(), tmp_path / "model.py")
    found = recorded(made.metadata)
    assert found is not None and found.purpose is not None
    assert found.purpose.kind == "classification" and found.purpose.facts["classes"] == 10
    assert read_json(Signature, as_json(found)) == found


def test_older_and_damaged_signatures(tmp_path: Path) -> None:
    made = build(SAMPLE, Options(), tmp_path / "model.py")
    found: dict[str, Any] = json.loads(made.metadata["signature"])
    del found["purpose"]
    assert read_json(Signature, json.dumps(found)).purpose is None
    for wrong in ("text", 3, [1], {"kind": 1}, {"evidence": "text"}, {"candidates": [1]}, {"facts": []}):
        with pytest.raises(ValueError):
            read_json(Signature, json.dumps({**found, "purpose": wrong}))


def test_a_signature_of_a_later_version(tmp_path: Path) -> None:
    made = build(SAMPLE, Options(), tmp_path / "model.py")
    found: dict[str, Any] = json.loads(made.metadata["signature"])
    for part in (found, found["inputs"][0], found["purpose"]):
        part["more"] = {"of": "later"}
    found["purpose"]["kind"] = "telepathy"
    read, own = read_json(Signature, json.dumps(found)), recorded(made.metadata)
    assert own is not None and own.purpose is not None
    assert read == replace(own, purpose=replace(own.purpose, kind="telepathy"))


def test_the_source_does_not_depend_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(SAMPLE, Options(), tmp_path / "model.py")
    monkeypatch.setattr(compose, "purpose_of", lambda model: Purpose("regression", ("no",), (), {"output": "x"}))
    second = build(SAMPLE, Options(), tmp_path / "model.py")
    assert first.source == second.source and first.metadata["fingerprint"] == second.metadata["fingerprint"]
    assert first.metadata["signature"] != second.metadata["signature"]


def test_inspect_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(SAMPLE)]) == 0
    line = "purpose: classification: output 'log_probabilities' [batch, 10] ends in LogSoftmax over 10 classes"
    assert line in capsys.readouterr().out.splitlines()
    assert run(["inspect", str(SAMPLE), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["purpose"]
    assert found["kind"] == "classification" and found["facts"]["axis"] == 1


def test_inspect_prints_that_it_is_unsure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(exported(pooled(6).eval(), image(), "legacy-17"), tmp_path / "net.onnx")
    assert run(["inspect", str(tmp_path / "net.onnx")]) == 0
    assert "purpose: unsure (classification or regression or keypoints)" in capsys.readouterr().out.splitlines()
