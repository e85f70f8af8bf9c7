"""gRPC methods of a replica on Ray Serve.

Ray calls the method of a replica that has the name of the protocol's, with the request of the type that the service's
registration left it: here bytes. It calls `SerializeToString` of what the method returns.
"""

from __future__ import annotations

from typing import NamedTuple

from grpc import StatusCode
from ray.serve.grpc_util import RayServegRPCContext

from ..grpc.service import answer
from ..served_archive import ServedArchive


class MessageBytes(NamedTuple):
    """A message that is bytes already."""

    content: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 - as messages have it
        """Return the bytes."""
        return self.content


class GrpcMethods:
    """The methods of the protocol, for a class with archives by name."""

    _served: dict[str, ServedArchive]

    async def ServerLive(self, request: bytes, grpc_context: RayServegRPCContext) -> MessageBytes:  # noqa: N802 - the protocol's name
        """Answer that the server is live."""
        return await self._call("ServerLive", request, grpc_context)

    async def ServerReady(self, request: bytes, grpc_context: RayServegRPCContext) -> MessageBytes:  # noqa: N802 - the same
        """Answer whether all models are ready."""
        return await self._call("ServerReady", request, grpc_context)

    async def ModelReady(self, request: bytes, grpc_context: RayServegRPCContext) -> MessageBytes:  # noqa: N802 - the same
        """Answer whether a model is ready."""
        return await self._call("ModelReady", request, grpc_context)

    async def ServerMetadata(self, request: bytes, grpc_context: RayServegRPCContext) -> MessageBytes:  # noqa: N802 - the same
        """Describe the server."""
        return await self._call("ServerMetadata", request, grpc_context)

    async def ModelMetadata(self, request: bytes, grpc_context: RayServegRPCContext) -> MessageBytes:  # noqa: N802 - the same
        """Describe a model."""
        return await self._call("ModelMetadata", request, grpc_context)

    async def ModelInfer(self, request: bytes, grpc_context: RayServegRPCContext) -> MessageBytes:  # noqa: N802 - the same
        """Answer an inference request."""
        return await self._call("ModelInfer", request, grpc_context)

    async def _call(self, method: str, request: bytes, context: RayServegRPCContext) -> MessageBytes:
        found = await answer(method, request, context.invocation_metadata(), self._served)
        if found.code != "OK":
            context.set_code(StatusCode[found.code])
            context.set_details(found.details)
            context.set_trailing_metadata([*found.trailing])
        return MessageBytes(found.message)
