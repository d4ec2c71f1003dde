"""Constants of one number are made where they are used: of the type, device and number of rows of what is beside them.

What is called after both the sine and the cosine of an angle is in here, too.
"""

from __future__ import annotations

import onnx
import onnx.parser
import torch
from torch import Tensor, nn

from tests.ops.harness import run_model
from tests.support.exported import held

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


class Fills(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h, n = self.fc(x), x.shape[0]
        places = torch.cat([x.argmax(1), torch.zeros(3, dtype=torch.int64)])
        chosen = torch.where(x > 0, h, torch.ones(n, 4))
        return torch.cat([h, torch.zeros(n, 3)], 1), chosen, torch.full((n, 4), 0.5) * h.cumsum(1), places


def test_constants_of_one_number_are_made_of_what_is_beside_them() -> None:
    original = Fills()
    for case in ("legacy-17", "dynamo-18"):
        ran = held(original, [X], case)
        assert "register_buffer" not in ran.source and "Constant" not in ran.source
        with torch.no_grad():
            more = torch.randn(5, 4)
            for found, expected in zip(ran.model(more), original(more), strict=True):
                torch.testing.assert_close(found, expected)
        made = ran.model.double()(X.double())
        assert [one.dtype for one in made] == [torch.float64] * 3 + [torch.int64]
        made = ran.model.to("meta")(X.double().to("meta"))
        assert all(one.is_meta for one in made)


def test_equal_constants_of_one_number_are_made_once() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 4] x) => (float[2, 7] y, float[2, 7] z)
        <int64[2] k = {2, 3}> { zeros = ConstantOfShape (k)  zeros_1 = ConstantOfShape (k)
        r = Relu (x)  t = Tanh (x)  y = Concat <axis = 1> (r, zeros)  z = Concat <axis = 1> (t, zeros_1) }"""
    )
    assert run_model(model, {"x": X.numpy()}).source.count("new_zeros") == 1


class Angles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        angles = self.fc(x) * 3
        return x * angles.cos() + x.flip(1) * angles.sin(), angles.cos() + 1, angles.sin() + 2


def test_an_angle_has_a_sine_and_a_cosine() -> None:
    source = held(Angles(), [X]).source
    assert all(f" {name} = " in source for name in ("angles", "cos", "sin")), source
