"""Tables of PyTorch's layers and functions.

Names are those of generated files: `nn.Linear`, `F.relu`, `torch.sigmoid`.
"""

from __future__ import annotations

import ast
from typing import Any

_RANKS = (1, 2, 3)


def _ranks(*layers: str) -> str:
    """`nn.Conv` as `nn.Conv1d nn.Conv2d nn.Conv3d`."""
    return " ".join(f"{layer}{n}d" for layer in layers for n in _RANKS)


_POOL = "kernel_size stride padding=0"
_CONV = "in_channels out_channels kernel_size stride=1 padding=0"
_RECURRENT = "num_layers=1 bias=True batch_first=False dropout=0.0 bidirectional=False"
_ACTIVATION = "dim_feedforward=2048 dropout=0.1 activation='relu'"
_NORMS = "layer_norm_eps=1e-5 batch_first=False norm_first=False bias=True device dtype"
# Parameters in order. Generated code may pass no others; some that it never passes are left out. A default is given if
# a class that several places share may pass the argument or leave it out.
_CALLED = {
    "nn.AdaptiveAvgPool1d nn.AdaptiveAvgPool2d nn.AdaptiveAvgPool3d": "output_size",
    "nn.AdaptiveMaxPool1d nn.AdaptiveMaxPool2d nn.AdaptiveMaxPool3d": "output_size return_indices",
    "nn.AvgPool1d": f"{_POOL} ceil_mode=False count_include_pad=True",
    "nn.AvgPool2d nn.AvgPool3d": f"{_POOL} ceil_mode=False count_include_pad=True divisor_override",
    _ranks("nn.BatchNorm"): "num_features eps=1e-5 momentum=0.1 affine=True track_running_stats device dtype",
    _ranks("nn.InstanceNorm"): "num_features eps momentum affine track_running_stats device dtype",
    _ranks("nn.Conv"): f"{_CONV} dilation=1 groups=1 bias=True padding_mode='zeros' device dtype",
    _ranks("nn.ConvTranspose"): (
        f"{_CONV} output_padding=0 groups=1 bias=True dilation=1 padding_mode='zeros' device dtype"
    ),
    "nn.CELU nn.ELU": "alpha inplace",
    "nn.AlphaDropout nn.Dropout nn.Dropout1d nn.Dropout2d nn.Dropout3d nn.FeatureAlphaDropout": "p inplace",
    "nn.Embedding": (
        "num_embeddings embedding_dim padding_idx max_norm norm_type scale_grad_by_freq sparse _weight _freeze device "
        "dtype"
    ),
    "nn.Flatten": "start_dim end_dim",
    "nn.GELU": "approximate",
    "nn.GroupNorm": "num_groups num_channels eps=1e-5 affine=True device dtype",
    "nn.GLU nn.LogSoftmax nn.Softmax": "dim",
    "nn.GRU": f"input_size hidden_size {_RECURRENT} device dtype",
    "nn.GRUCell nn.LSTMCell": "input_size hidden_size bias=True device dtype",
    "nn.LSTM": f"input_size hidden_size {_RECURRENT} proj_size device dtype",
    "nn.RNN": "input_size hidden_size num_layers nonlinearity bias batch_first dropout bidirectional device dtype",
    "nn.RNNCell": "input_size hidden_size bias=True nonlinearity='tanh' device dtype",
    "nn.Hardsigmoid nn.Hardswish nn.Mish nn.ReLU nn.ReLU6 nn.SELU nn.SiLU": "inplace",
    "nn.Hardtanh": "min_val max_val inplace",
    "nn.LayerNorm": "normalized_shape eps=1e-5 elementwise_affine=True bias=True device dtype",
    "nn.RMSNorm": "normalized_shape eps elementwise_affine device dtype",
    "nn.LeakyReLU": "negative_slope=0.01 inplace",
    "nn.Linear": "in_features out_features bias=True device dtype",
    "nn.LogSigmoid nn.Sigmoid nn.Softsign nn.Tanh": "",
    _ranks("nn.MaxPool"): f"{_POOL} dilation=1 return_indices=False ceil_mode=False",
    "nn.MultiheadAttention": (
        "embed_dim num_heads dropout bias add_bias_kv add_zero_attn kdim vdim batch_first device dtype"
    ),
    "nn.PReLU": "num_parameters init device dtype",
    "nn.Parameter": "data requires_grad",
    "nn.PixelShuffle": "upscale_factor",
    "nn.PixelUnshuffle": "downscale_factor",
    "nn.Softplus": "beta threshold",
    "nn.TransformerEncoderLayer nn.TransformerDecoderLayer": f"d_model nhead {_ACTIVATION} {_NORMS}",
    "nn.TransformerEncoder": "encoder_layer num_layers norm enable_nested_tensor=True",
    "nn.TransformerDecoder": "decoder_layer num_layers norm",
    "nn.utils.parametrizations.weight_norm": "module name dim=0",
    "nn.Upsample": "size scale_factor mode align_corners recompute_scale_factor",
    "F.affine_grid": "theta size align_corners",
    "F.avg_pool1d": f"input {_POOL} ceil_mode=False count_include_pad=True",
    "F.avg_pool2d F.avg_pool3d": f"input {_POOL} ceil_mode=False count_include_pad=True divisor_override",
    "F.batch_norm": "input running_mean running_var weight bias training momentum eps",
    "F.celu F.elu": "input alpha inplace",
    _ranks("F.conv"): "input weight bias stride=1 padding=0 dilation=1 groups=1",
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
    "F.leaky_relu": "input negative_slope=0.01 inplace",
    "F.local_response_norm": "input size alpha beta k",
    "F.log_softmax F.softmax": "input dim _stacklevel dtype",
    _ranks("F.max_pool"): f"input {_POOL} dilation=1 ceil_mode=False return_indices=False",
    "F.normalize": "input p dim eps out",
    "F.rms_norm": "input normalized_shape weight eps",
    "F.softsign": "input",
}
_PARSED = {
    name: [parameter.partition("=") for parameter in parameters.split()]
    for names, parameters in _CALLED.items()
    for name in names.split()
}
SIGNATURES = {name: tuple(key for key, _, _ in parameters) for name, parameters in _PARSED.items()}
DEFAULTS: dict[str, dict[str, Any]] = {
    name: {key: ast.literal_eval(default) for key, is_given, default in parameters if is_given}
    for name, parameters in _PARSED.items()
}

# Activations: functions of one tensor without options, and the equivalent layers.
ACTIVATIONS = {
    **{
        f"F.{c.lower()}": f"nn.{c}" for c in "ReLU ReLU6 ELU SELU GELU SiLU Mish Hardswish Hardsigmoid Softplus".split()
    },
    "F.leaky_relu": "nn.LeakyReLU",
    "torch.sigmoid": "nn.Sigmoid",
    "torch.tanh": "nn.Tanh",
}
# Functions of one tensor, and the equivalent layers, which have no weights.
LAYER_OF = {
    **ACTIVATIONS,
    "F.softmax": "nn.Softmax",
    "F.log_softmax": "nn.LogSoftmax",
    "F.interpolate": "nn.Upsample",
    "F.pixel_shuffle": "nn.PixelShuffle",
    "F.glu": "nn.GLU",
    **{f"F.max_pool{n}d": f"nn.MaxPool{n}d" for n in _RANKS},
    **{f"F.avg_pool{n}d": f"nn.AvgPool{n}d" for n in _RANKS},
    **{f"F.adaptive_avg_pool{n}d": f"nn.AdaptiveAvgPool{n}d" for n in _RANKS},
}

CONVOLUTIONS = frozenset(_ranks("nn.Conv").split())
TRANSPOSED = frozenset(_ranks("nn.ConvTranspose").split())
DROPOUTS = frozenset(name for name, order in SIGNATURES.items() if name[:3] == "nn." and order == ("p", "inplace"))
RECURRENT = frozenset(name for name, order in SIGNATURES.items() if {"hidden_size", "num_layers"} <= {*order})
CELLS = frozenset(f"{layer}Cell" for layer in RECURRENT)  # they return nothing but states
BATCH_NORMS = frozenset(_ranks("nn.BatchNorm").split())
NORMS = BATCH_NORMS | {*_ranks("nn.InstanceNorm").split(), "nn.LayerNorm", "nn.RMSNorm", "nn.GroupNorm"}
# Layers with weights, but without state or randomness: two calls on the same values can be one.
PURE = (
    CONVOLUTIONS | TRANSPOSED | {"nn.Linear", "nn.LayerNorm", "nn.RMSNorm", "nn.GroupNorm", "nn.Embedding", "nn.PReLU"}
)
# functions that take a layer, and let it compute its weight from other tensors
PARAMETRISATIONS = frozenset(["nn.utils.parametrizations.weight_norm"])
NUMBERS = frozenset("alpha beta eps momentum negative_slope p scale threshold".split())  # never None

# Functions and methods, by their last names, that return a view, a tuple of parts, or named fields.
VIEWS = frozenset(
    "unsqueeze squeeze reshape flatten unflatten transpose permute expand expand_as repeat float to bool long int "
    "contiguous broadcast_to movedim swapaxes".split()
)
PARTS = frozenset(("split", "chunk", "unbind", "tensor_split"))
SEVERAL = {"topk": ("values", "indices"), "sort": ("values", "indices")}


def misfit(call: ast.Call) -> str:
    """Describe an argument that the layer or function does not take; "" if there is none or it is not in the table."""
    name = dotted(call.func)
    if name.count(".") != 1 and name not in PARAMETRISATIONS:
        return ""
    none = [k.arg for k in call.keywords if k.arg in NUMBERS and is_none(k.value)]
    if none:
        return f"{name} with {none[0]}=None"
    parameters = SIGNATURES.get(name)
    if parameters is None:
        return ""
    if not any(isinstance(argument, ast.Starred) for argument in call.args):
        if len(call.args) > len(parameters):
            return f"{name} with {len(call.args)} arguments"
        parameters = parameters[len(call.args) :]
    wrong = next((k.arg for k in call.keywords if k.arg not in (None, *parameters)), None)
    return f"{name} with {wrong}=" if wrong else ""


def is_none(tree: ast.expr) -> bool:
    return isinstance(tree, ast.Constant) and tree.value is None


def dotted(tree: ast.AST) -> str:
    """Return the dotted name that a tree is, such as "nn.Linear", or ""."""
    if isinstance(tree, ast.Attribute):
        inner = dotted(tree.value)
        return f"{inner}.{tree.attr}" if inner else ""
    return tree.id if isinstance(tree, ast.Name) else ""


def function_of(tree: ast.AST) -> str:
    """Return the dotted name of the function that a call calls, or ""."""
    return dotted(tree.func) if isinstance(tree, ast.Call) else ""
