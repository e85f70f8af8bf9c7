"""Methods of the Open Inference Protocol's gRPC service, for a server's registry.

Requests stay bytes until `grpc_server.py` reads them. Servers import this in processes that compute nothing, so it
imports nothing heavy.
"""

from __future__ import annotations

from typing import Any

import grpc

SERVICE = "inference.GRPCInferenceService"
METHODS = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer")


def add_inference_service(servicer: Any, server: Any) -> None:
    """Register a method of `servicer` for each of the service. They receive bytes, and return bytes."""
    handlers = {method: grpc.unary_unary_rpc_method_handler(getattr(servicer, method)) for method in METHODS}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
