"""Rows of a softmax that have no element: what they give, and their gradient."""

from __future__ import annotations

import numpy as np
import onnx.parser
import torch

from tests.ops.harness import assert_same, run_model, run_onnxruntime

F = np.float32
HEAD = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 3] x, float[N, 3] mask, SIZES empty) => (float[N, 3] y) {
  zero = Constant <value = float {0.0}> () scores = Add (x, mask) p = Softmax <axis = -1> (scores)"""
ENDS = {
    "as it is": "y = Where (empty, zero, p) }",
    "cast twice": "d = Cast <to = 11> (p) q = Cast <to = 1> (d) y = Where (empty, zero, q) }",
}


def test_a_row_without_an_element_has_a_gradient_of_zero() -> None:
    """Its softmax is NaN, which is replaced by zeros; the gradient of the others is that of the softmax."""
    x, mask = np.array([[1, 2, 3], [4, 5, 7]], F), np.array([[0, -np.inf, 0], [-np.inf] * 3], F)
    feeds = {"x": x, "mask": mask, "empty": np.array([[False], [True]])}
    for end in ENDS.values():
        model = onnx.parser.parse_model(HEAD.replace("SIZES", "bool[N, 1]") + end)
        ran = run_model(model, feeds)
        assert_same(ran.outputs[0], run_onnxruntime(model, feeds)[0])
        given = torch.from_numpy(x.copy()).requires_grad_()
        made = ran.model(given, torch.from_numpy(mask), torch.from_numpy(feeds["empty"]))
        made[:, 0].sum().backward()
        p = np.exp(x[0, [0, 2]]) / np.exp(x[0, [0, 2]]).sum()
        wanted = [[p[0] * (1 - p[0]), 0, -p[0] * p[1]], [0, 0, 0]]
        np.testing.assert_allclose(given.grad, wanted, 1e-5, 1e-7, err_msg=end)


def test_a_condition_of_single_elements_leaves_the_softmax_as_it_is() -> None:
    feeds = {"x": np.array([[1, 2, 3]], F), "mask": np.zeros((1, 3), F), "empty": np.array([[False, True, True]])}
    for sizes in ("bool[N, 3]", "bool[N, K]"):
        model = onnx.parser.parse_model(HEAD.replace("SIZES", sizes) + ENDS["as it is"])
        ran = run_model(model, feeds)
        assert_same(ran.outputs[0], run_onnxruntime(model, feeds)[0])
        assert ran.forward.count("torch.where(") + ran.forward.count(".masked_fill(") == 1
