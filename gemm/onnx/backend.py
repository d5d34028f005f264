"""Running ONNX models: onnx's own evaluator with our operators in the place of its convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend import base
from onnx.reference import ReferenceEvaluator

from gemm.onnx.corrections import CORRECTIONS
from gemm.onnx.operators import OPERATORS


class Evaluator(ReferenceEvaluator):
    """onnx's evaluator with `OPERATORS`, in subgraphs and function bodies too."""

    def __init__(self, proto: Any, *, new_ops: Any = None, **kwargs: Any) -> None:
        super().__init__(proto, new_ops=[*(new_ops or ()), *OPERATORS, *CORRECTIONS], **kwargs)


class BackendRep(base.BackendRep):
    """A model ready to run any number of times; its constant filters are arranged once."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._evaluator = Evaluator(model)
        constants = {i.name for i in model.graph.initializer}
        self._inputs = [i.name for i in model.graph.input if i.name not in constants]

    @property
    def on_engine(self) -> list[tuple[str, bool]]:
        """Each node's operator in order, and whether the engine runs it."""
        return [(n.op_type, isinstance(n, OPERATORS)) for n in self._evaluator.rt_nodes_]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs as a named tuple. inputs: one array, a sequence in order, or a mapping by
        name.

        Raises ValueError when the inputs are not those of the model.
        """
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
            missing = [n for n in self._inputs if n not in feeds]
            if missing:
                raise ValueError(f"the model's inputs {missing} are missing")
        else:
            values = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            if len(values) > len(self._inputs):
                raise ValueError(f"the model takes {len(self._inputs)} inputs, got {len(values)}")
            feeds = dict(zip(self._inputs, values, strict=False))
        outputs = self._evaluator.run(None, feeds)
        names = self._evaluator.output_names
        return base.namedtupledict("Outputs", names)(*outputs)


class Backend(base.Backend):
    """The backend, for ``onnx.backend.test`` and for users; see the package docstring."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for 'CPU'."""
        return base.Device(device).type == base.DeviceType.CPU

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        """Check ``model`` and make it ready; ValueError for a device that is not supported."""
        if not cls.supports_device(device):
            raise ValueError(f"device {device!r} is not supported")
        super().prepare(model, device, **kwargs)
        return BackendRep(model)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Sequence[Any],
        device: str = "CPU",
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one operator on its inputs, given in order."""
        super().run_node(node, inputs, device, outputs_info, **kwargs)
        names = [n for n in node.input if n]
        evaluator = Evaluator(node)
        outputs = evaluator.run(None, dict(zip(names, inputs, strict=True)))
        return base.namedtupledict("Outputs", node.output)(*outputs)
