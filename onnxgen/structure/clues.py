"""What is known about the names of values, alike in all scopes that may share a class."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from onnxgen.code.module_def import Input, ModuleDef
from onnxgen.common.names import FileText
from onnxgen.shapes.info import Info

# what exporters call values that have no name: functions and operators, torch's and ONNX's
_OPERATIONS = frozenset("""
    abs add addmm all any arange argmax argmin as_strided avg_pool batch_norm bmm cast cat ceil chunk clamp clip clone
    concat constant contiguous conv conv1d conv2d convolution cos div dropout einsum elu embedding eq equal erf exp
    expand flatten floor full gather ge gelu gemm getitem group_norm gt hardswish identity index index_select input
    instance_norm layer_norm le leaky_relu linear log logsoftmax lt masked_fill matmul max max_pool maximum mean min
    minimum mul native_layer_norm ne neg ones out output pad permute pow prelu reciprocal reduce_mean reduce_sum
    reducemean reducesum relu repeat reshape result rsqrt scalar_tensor scaled_dot_product_attention select shape
    sigmoid silu sin slice softmax split sqrt squeeze stack sub sum sym_size tanh tensor tile to topk transpose tril
    triu unflatten unsqueeze val var view where zeros item detach alias copy expand_as size reshape_ type_as float
    """.split())
_MEANINGFUL = re.compile(r"[a-z][a-z_]{2,23}")


Text = TypeVar("Text", str, FileText)


@dataclass
class Clues:
    """For one class: what its values are, by id.

    Attributes:
        roles: what each is for sure ("q", "mask").
        hints: the name that each has in the file, whatever it looks like.
        own: that name, where it is one that a person gave.
        given: those that are the graph's own inputs, in every instance.
    """

    roles: dict[str, str]
    hints: dict[str, FileText]
    own: dict[str, str]
    given: frozenset[str] = frozenset()

    def hint(self, value: str) -> FileText:
        """The name of a value in the file."""
        return self.hints.get(value) or FileText(value)


def input_name(
    argument: Input, is_root: bool, infos: Mapping[str, Info], roles: Mapping[str, str], hints: Mapping[str, FileText]
) -> str:
    """What an argument is called for sure, or "": the graph's names at the root, those of token ids wherever they go.

    `roles`: what is known of values; `hints`: their names in the file.
    """
    value = argument.value
    hint = (hints.get(value) or FileText(value)).without("size.").identifier()
    if is_root:
        return hint
    if roles.get(value, "x") != "x":
        return roles[value]
    dtype = infos.get(value, Info()).dtype
    is_index = dtype is not None and not dtype.is_floating_point() and hint.isidentifier() and hint.islower()
    return hint if argument.annotation != "Tensor" or is_index else ""


def own_name(hint: FileText) -> str:
    """A value's name in the file, if it is an identifier that no exporter made of an operator's name; else ""."""
    name = hint.word()
    plain = name.strip("_")
    is_made = plain in _OPERATIONS or any(part == "val" for part in plain.split("_"))
    return name if _MEANINGFUL.fullmatch(name) and len(plain) > 2 and not is_made else ""


def agree(module: ModuleDef, alike: list[Mapping[str, str]]) -> Clues:
    """The clues of a class; what its instances know differently is settled by the majority.

    `alike`: for each instance its own values, by those of the class.
    """
    columns: dict[str, list[str]] = {}
    for own in alike:
        for value, its in own.items():
            columns.setdefault(value, []).append(its)
    roles = {v: _commonest(module.roles.get(its, "") for its in column) for v, column in columns.items()}
    hints = {v: _commonest(module.hint(its) for its in column) for v, column in columns.items()}
    graph = {argument.value for argument in module.inputs}
    given = frozenset(v for v, column in columns.items() if graph.issuperset(column))
    own_names = {v: name for v, hint in hints.items() if (name := own_name(hint))}
    sure = {v: role for v, role in roles.items() if role and not (v in given and v in own_names)}
    return Clues(sure, hints, own_names, given)


def _commonest(texts: Iterator[Text]) -> Text:
    return Counter(texts).most_common(1)[0][0]
