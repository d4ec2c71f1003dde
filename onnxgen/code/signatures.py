"""Parameters of PyTorch's layers and functions, in their order, as PyTorch 2.4 and newer have them.

Generated code may pass no others. Some that it never passes are left out.
"""

from __future__ import annotations

import ast

_POOL = "kernel_size stride padding"
_CONV = "in_channels out_channels kernel_size stride padding"
_NORM = "num_features eps momentum affine track_running_stats device dtype"
_RECURRENT = "num_layers bias batch_first dropout bidirectional"
_CALLED = {
    "nn.AdaptiveAvgPool1d nn.AdaptiveAvgPool2d nn.AdaptiveAvgPool3d": "output_size",
    "nn.AdaptiveMaxPool1d nn.AdaptiveMaxPool2d nn.AdaptiveMaxPool3d": "output_size return_indices",
    "nn.AvgPool1d": f"{_POOL} ceil_mode count_include_pad",
    "nn.AvgPool2d nn.AvgPool3d": f"{_POOL} ceil_mode count_include_pad divisor_override",
    "nn.BatchNorm1d nn.BatchNorm2d nn.BatchNorm3d nn.InstanceNorm1d nn.InstanceNorm2d nn.InstanceNorm3d": _NORM,
    "nn.Conv1d nn.Conv2d nn.Conv3d": f"{_CONV} dilation groups bias padding_mode device dtype",
    "nn.ConvTranspose1d nn.ConvTranspose2d nn.ConvTranspose3d": (
        f"{_CONV} output_padding groups bias dilation padding_mode device dtype"
    ),
    "nn.CELU nn.ELU": "alpha inplace",
    "nn.Dropout": "p inplace",
    "nn.Embedding": (
        "num_embeddings embedding_dim padding_idx max_norm norm_type scale_grad_by_freq sparse _weight _freeze device "
        "dtype"
    ),
    "nn.Flatten": "start_dim end_dim",
    "nn.GELU": "approximate",
    "nn.GroupNorm": "num_groups num_channels eps affine device dtype",
    "nn.GLU nn.LogSoftmax nn.Softmax": "dim",
    "nn.GRU": f"input_size hidden_size {_RECURRENT} device dtype",
    "nn.LSTM": f"input_size hidden_size {_RECURRENT} proj_size device dtype",
    "nn.RNN": "input_size hidden_size num_layers nonlinearity bias batch_first dropout bidirectional device dtype",
    "nn.Hardsigmoid nn.Hardswish nn.Mish nn.ReLU nn.ReLU6 nn.SELU nn.SiLU": "inplace",
    "nn.Hardtanh": "min_val max_val inplace",
    "nn.LayerNorm": "normalized_shape eps elementwise_affine bias device dtype",
    "nn.RMSNorm": "normalized_shape eps elementwise_affine device dtype",
    "nn.LeakyReLU": "negative_slope inplace",
    "nn.Linear": "in_features out_features bias device dtype",
    "nn.LogSigmoid nn.Sigmoid nn.Softsign nn.Tanh": "",
    "nn.MaxPool1d nn.MaxPool2d nn.MaxPool3d": f"{_POOL} dilation return_indices ceil_mode",
    "nn.MultiheadAttention": (
        "embed_dim num_heads dropout bias add_bias_kv add_zero_attn kdim vdim batch_first device dtype"
    ),
    "nn.PReLU": "num_parameters init device dtype",
    "nn.Parameter": "data requires_grad",
    "nn.PixelShuffle": "upscale_factor",
    "nn.PixelUnshuffle": "downscale_factor",
    "nn.Softplus": "beta threshold",
    "nn.Upsample": "size scale_factor mode align_corners recompute_scale_factor",
    "F.affine_grid": "theta size align_corners",
    "F.batch_norm": "input running_mean running_var weight bias training momentum eps",
    "F.celu F.elu": "input alpha inplace",
    "F.dropout": "input p training inplace",
    "F.embedding": "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse",
    "F.fold": "input output_size kernel_size dilation padding stride",
    "F.glu": "input dim",
    "F.grid_sample": "input grid mode padding_mode align_corners",
    "F.group_norm": "input num_groups weight bias eps",
    "F.hardsigmoid F.hardswish F.mish F.relu F.relu6 F.selu F.silu": "input inplace",
    "F.instance_norm": "input running_mean running_var weight bias use_input_stats momentum eps",
    "F.interpolate": "input size scale_factor mode align_corners recompute_scale_factor antialias",
    "F.kl_div": "input target size_average reduce reduction log_target",
    "F.layer_norm": "input normalized_shape weight bias eps",
    "F.leaky_relu": "input negative_slope inplace",
    "F.local_response_norm": "input size alpha beta k",
    "F.log_softmax F.softmax": "input dim _stacklevel dtype",
    "F.normalize": "input p dim eps out",
    "F.rms_norm": "input normalized_shape weight eps",
    "F.softsign": "input",
}
SIGNATURES = {name: tuple(parameters.split()) for names, parameters in _CALLED.items() for name in names.split()}
"""The parameters of what is called by such a name."""
NUMBERS = frozenset("alpha beta eps momentum negative_slope p scale threshold".split())  # they are never None


def misfit(call: ast.Call) -> str:
    """What a layer or function is given that it does not take; "" if there is nothing, or it is not in the table."""
    function = call.func
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return ""
    name = f"{function.value.id}.{function.attr}"
    none = [k.arg for k in call.keywords if k.arg in NUMBERS and is_none(k.value)]
    if none:
        return f"{name} with {none[0]}=None"
    parameters = SIGNATURES.get(name)
    if parameters is None:
        return ""
    starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    left = parameters if starred else parameters[len(call.args) :]
    if not starred and len(call.args) > len(parameters):
        return f"{name} with {len(call.args)} arguments"
    wrong = [f"{k.arg}=" for k in call.keywords if k.arg is not None and k.arg not in left]
    return f"{name} with {wrong[0]}" if wrong else ""


def is_none(tree: ast.expr) -> bool:
    return isinstance(tree, ast.Constant) and tree.value is None
