"""Where onnx's reference evaluator departs from the operator specification, put right.

Real models meet these; each entry says what was wrong and disappears when the evaluator is fixed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_batch_normalization


class BatchNormalization(OpRun):
    """Before opset 14 onnx 1.23 mixes the statistics of the batch into inference."""

    op_domain = ""

    def _run(self, x, scale, bias, mean, var, epsilon=None, momentum=None, **attributes):
        if attributes.get("training_mode") or len(self.onnx_node.output) > 1:
            training = op_batch_normalization.BatchNormalization_14
            return training._run(self, x, scale, bias, mean, var, epsilon, momentum, 1)
        spread = (slice(None), *(None,) * (x.ndim - 2))
        factor = scale[spread] / np.sqrt(var[spread] + np.asarray(epsilon, var.dtype))
        y = (x - mean[spread]) * factor + bias[spread]
        return (y.astype(x.dtype, copy=False),)


CORRECTIONS: tuple[Any, ...] = (BatchNormalization,)
