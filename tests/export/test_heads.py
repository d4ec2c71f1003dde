"""Another number of classes, written into the original graph: real files, and the listed classifiers."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest

from onnxgen.pipeline import generate
from onnxgen.training import find_head, open_model
from tests.export.swapped import assert_computes_the_same, assert_only_the_head_differs, swapped
from tests.training.classifiers import CLASSIFIERS, MORE, Classifier
from tests.zoo.export import export

# the number of classes of each file of the shared collection whose head can be replaced
HEADS = {
    "burn/fixtures/external_data.onnx": 4,
    "burn/mnist.onnx": 10,
    "burn/ops/deform_conv_mask.onnx": 1,
    "burn/sine.onnx": 1,
    "dtln/model_1.onnx": 257,
    "fastml/conv1d_small_keras.onnx": 5,
    "fastml/conv2d_small_mp_keras.onnx": 5,
    "fastml/three_layer_keras.onnx": 5,
    "fastml/three_layer_pytorch.onnx": 5,
    "fastml/two_layer_pytorch.onnx": 1,
    "ort/java/src/test/resources/java-external-matmul.onnx": 4,
    "ort/java/testdata/cnn_mnist_pytorch.onnx": 10,
    "ort/transform/computation_reduction/gathernd/gathernd_matmul.onnx": 128,
    "ort/transform/model_parallel/mlp_megatron_basic_test.onnx": 4,
    "ort/winml/test/collateral/models/mnist.onnx": 10,
    "ppocr/cls-model.onnx": 2,
    "tract/keras-tract-tf2/example.onnx": 1,
    "vnncomp2021/cifar10_resnet/resnet_2b.onnx": 10,
    "vnncomp2021/marabou-cifar10/cifar10_small.onnx": 10,
    "vnncomp2021/mnistfc/mnist-net_256x2.onnx": 10,
    "vnncomp2021/oval21/cifar_base_kw.onnx": 10,
    "vnncomp2021/verivital/Convnet_maxpool.onnx": 10,
    "vnncomp2023/acasxu/ACASXU_run2a_1_1_batch_2000.onnx": 5,
    "vnncomp2023/collins_rul_cnn/NN_rul_small_window_20.onnx": 1,
    "vnncomp2023/nn4sys/lindex.onnx": 1,
    "vnncomp2023/nn4sys/mscn_128d.onnx": 1,
    "vnncomp2023/nn4sys/pensieve_small_simple.onnx": 6,
    "vnncomp2023/test/test_small.onnx": 1,
    "vnncomp2023/tllverifybench/tllBench_n_2_N_M_8_m_1_instance_0_0.onnx": 1,
    "vnncomp2023/vit/pgd_2_3_16.onnx": 10,
}
# Files whose batch is fixed at 789,444: here it is small.
TALL = ("fastml/three_layer_pytorch.onnx", "fastml/two_layer_pytorch.onnx")
BATCH = 32
SWAPS = [(file, classes) for file, old in HEADS.items() for classes in (2, 5) if classes != old]


@pytest.mark.parametrize(("file", "classes"), SWAPS)
def test_a_real_file_keeps_its_graph(file: str, classes: int, shared: Path, tmp_path: Path) -> None:
    """All nodes, initializers and declarations but the head's have the original's bytes."""
    path = shared / "models" / file
    for near in path.parent.glob("*"):  # external data
        if near.is_file() and near.stat().st_size < 1 << 20 and path.parent.name in ("fixtures", "resources"):
            shutil.copy(near, tmp_path / near.name)
    shutil.copy(path, tmp_path / "m.onnx")
    if file in TALL:
        small = onnx.load(path)
        for value in (*small.graph.input, *small.graph.output, *small.graph.value_info):
            if value.type.tensor_type.shape.dim[0].dim_value == 789_444:
                value.type.tensor_type.shape.dim[0].dim_value = BATCH
        onnx.save(small, tmp_path / "m.onnx")
    name = f"head_{classes}_{path.stem.replace('-', '_').replace('.', '_')}"
    generate(tmp_path / "m.onnx", tmp_path / f"{name}.py")
    model, report = swapped(tmp_path, classes, name)
    assert_only_the_head_differs(tmp_path, report)
    assert set(report.resized) and not report.notes
    assert_computes_the_same(tmp_path, model, classes)


@pytest.mark.parametrize("name", [*CLASSIFIERS, *MORE])
def test_the_listed_classifiers_keep_their_graphs(name: str, tmp_path: Path) -> None:
    case: Classifier = (CLASSIFIERS | MORE)[name]
    export(case.entry, tmp_path / "m.onnx", case.exporter, 17 if case.exporter == "legacy" else 18)
    generate(tmp_path / "m.onnx", tmp_path / f"swapped_{name}.py")
    old = find_head(open_model(tmp_path / f"swapped_{name}.py")).classes
    classes = 2 if old != 2 else 3
    model, report = swapped(tmp_path, classes, f"swapped_{name}")
    assert_only_the_head_differs(tmp_path, report)
    assert_computes_the_same(tmp_path, model, classes)
