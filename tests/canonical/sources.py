"""The files whose networks `rewritten` has again: real ones, and those of the zoo and of `nameless_nets`."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch

from tests.support.exported import exported
from tests.support.nameless_nets import NETS
from tests.zoo import ZOO
from tests.zoo.export import export

REAL = {  # in the folder of real models
    "attention_past_no_unidir": "ort/transform/fusion/attention_past_no_unidir.onnx",
    "bert_3d_attention": "ort/transformers_test/bert_3d_attention_opt.onnx",
    "cifar10_small": "vnncomp2021/marabou-cifar10/cifar10_small.onnx",
    "cnn_mnist_pytorch": "ort/java/testdata/cnn_mnist_pytorch.onnx",
    "conv1d_small_keras": "fastml/conv1d_small_keras.onnx",
    "conv2d_small_mp_keras": "fastml/conv2d_small_mp_keras.onnx",
    "conv_add_mul_1d": "ort/transform/fusion/fuse-conv-add-mul-1d-2.onnx",
    "dtln_model_1": "dtln/model_1.onnx",
    "gh_issue_9671": "ort/gh_issue_9671.onnx",
    "gpt2_megatron": "ort/transformers_test/gpt2_megatron.onnx",
    "gpt2_one_layer": "ort/transform/fusion/gpt2_one_layer.onnx",
    "hf_encoder_self_attention": "ort/transformers_test/whisper/hf_fp32_encoder_self_attention.onnx",
    "mscn_128d": "vnncomp2023/nn4sys/mscn_128d.onnx",
    "nhwc_conv_clip_relu": "ort/nhwc_conv_clip_relu.onnx",
    "pensieve_small_simple": "vnncomp2023/nn4sys/pensieve_small_simple.onnx",
    "pgd_vit": "vnncomp2023/vit/pgd_2_3_16.onnx",
    "ppocr_cls": "ppocr/cls-model.onnx",
    "resnet_2b": "vnncomp2021/cifar10_resnet/resnet_2b.onnx",
    "rul_small_window": "vnncomp2023/collins_rul_cnn/NN_rul_small_window_20.onnx",
    "three_layer_keras": "fastml/three_layer_keras.onnx",
    "tiny_yolo": "vnncomp2023/yolo/TinyYOLO.onnx",
    "tll_bench": "vnncomp2023/tllverifybench/tllBench_n_2_N_M_8_m_1_instance_0_0.onnx",
    "voice_commands": "ort/ort_minimal_e2e_test_data/test_voice_commands.onnx",
    "yunet": "yunet/yunet_n_320_320.onnx",
}
OURS = {  # the network, and in which mode it is exported
    "audio_cnn": "eval",
    "batch_norms": "train",
    "bert": "eval",
    "cached_decoder": "",
    "cnn": "train",
    "convnext": "eval",
    "cross_attention": "eval",
    "densenet": "train",
    "detector": "",
    "encoder": "eval",
    "gru_last": "eval",
    "image_norms": "eval",
    "llama": "eval",
    "lstm_state": "eval",
    "resnet18": "train",
    "sequence_norms": "eval",
    "super_resolution": "",
    "swin": "eval",
    "translator": "",
    "two_tower": "eval",
    "unet_bilinear": "eval",
    "vit": "eval",
}


def written(name: str, path: Path) -> None:
    """Write the file of one of our networks."""
    if mode := OURS[name]:
        export(ZOO[name], path, "legacy", 17, mode == "train")
        return
    torch.manual_seed(0)
    make, inputs = NETS[name]
    onnx.save(exported(make().eval(), inputs, "legacy-17", {0: {0: "batch"}}), path)
