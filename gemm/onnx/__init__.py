"""An ONNX backend: convolutions and products on the engine, the rest as ONNX's reference defines
it.

Follows ``onnx.backend.base.Backend``: ``prepare(model).run(inputs)``, ``run_model``, ``run_node``
and ``supports_device``, at module level as backends are found. Needs the extra ``onnx``.
"""

from gemm.onnx.backend import Backend, BackendRep

is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device

__all__ = [
    "Backend",
    "BackendRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]
