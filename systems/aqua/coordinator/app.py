"""The coordinator's REST endpoints (sections 6 and 8): offer, reclaim, allocate, free, status.

Handlers never wait in the middle, so requests of concurrent callers are served one after the other.
Wrong input gets 4xx with the reason, and changes nothing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from systems.aqua.coordinator.coordinator import Coordinator
from systems.aqua.coordinator.ledger import Refused
from systems.aqua.coordinator.requests import Allocate, Free, Join, Leave, Offer, Reclaim

NAME = r"^[A-Za-z0-9_.:#-]{1,128}$"
MAX_BYTES = 2**62
Name = Annotated[str, Path(pattern=NAME)]
HolderName = Annotated[str, Field(pattern=NAME)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class JoinBody(Body):
    device: str = Field(min_length=1, max_length=128)


class BytesBody(Body):
    holder: HolderName
    num_bytes: int = Field(ge=1, le=MAX_BYTES)


class ReclaimBody(Body):
    holder: HolderName
    keep_bytes: int = Field(ge=0, le=MAX_BYTES)


class LeaseReply(BaseModel):
    """A lease's bytes. `reclaimable_bytes`: were offered, and the producer may use them again
    now."""

    offered_bytes: int
    capacity_bytes: int
    allocated_bytes: int
    overdrawn_bytes: int
    reclaimable_bytes: int


class Reason(BaseModel):
    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Reason, "description": text}
    for status, text in (
        (404, "No such name"),
        (409, "It contradicts what is"),
        (410, "It has ended"),
        (422, "It is no such request"),
    )
}


def app(coordinator: Coordinator, expire_every_s: float) -> FastAPI:
    """The REST server. expire_every_s: how often silent holders are looked for without requests."""

    @asynccontextmanager
    async def watch(_: FastAPI) -> AsyncIterator[None]:
        async def expire() -> None:
            while True:
                await asyncio.sleep(expire_every_s)
                try:
                    coordinator.expire()
                except OSError as error:  # tried again later; requests get the error meanwhile
                    print(f"state cannot be written: {error}", file=sys.stderr)

        task = asyncio.create_task(expire())
        yield
        task.cancel()

    server = FastAPI(title="AQUA coordinator", lifespan=watch, responses=REFUSALS)
    server.add_exception_handler(Refused, _refusal)
    server.add_exception_handler(OSError, _unwritten)
    server.add_exception_handler(RequestValidationError, _invalid)
    _add_holders(server, coordinator)
    _add_leases(server, coordinator)

    @server.get("/status")
    async def status() -> dict[str, Any]:
        return coordinator.status()

    return server


def _refusal(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refused)
    return JSONResponse({"detail": str(error)}, error.status)


def _invalid(_: Request, error: Exception) -> JSONResponse:
    """Answers why a request is invalid, without its input, which JSON may not be able to hold (NaN,
    half of a character)."""
    assert isinstance(error, RequestValidationError)
    reasons = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
    return JSONResponse({"detail": "; ".join(reasons).encode(errors="replace").decode()}, 422)


def _unwritten(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": f"state cannot be written, nothing changed: {error}"}, 503)


def _add_holders(server: FastAPI, coordinator: Coordinator) -> None:
    @server.put("/holders/{holder}")
    async def join(holder: Name, body: JoinBody) -> None:
        coordinator.make(Join(holder, body.device))

    @server.post("/holders/{holder}/heartbeat")
    async def heartbeat(holder: Name) -> None:
        coordinator.heartbeat(holder)

    @server.delete("/holders/{holder}")
    async def leave(holder: Name) -> None:
        coordinator.make(Leave(holder))


def _add_leases(server: FastAPI, coordinator: Coordinator) -> None:
    @server.put("/leases/{lease}")
    async def offer(lease: Name, body: BytesBody) -> None:
        coordinator.make(Offer(lease, body.holder, body.num_bytes))

    @server.post("/leases/{lease}/reclaim")
    async def reclaim(lease: Name, body: ReclaimBody) -> None:
        coordinator.make(Reclaim(lease, body.holder, body.keep_bytes))

    @server.get("/leases/{lease}")
    async def reclaim_status(lease: Name) -> LeaseReply:
        found = coordinator.lease(lease)
        left = found.offered_bytes - found.held_bytes
        return LeaseReply(**found.status(), reclaimable_bytes=left)

    @server.put("/allocations/{allocation}")
    async def allocate(allocation: Name, body: BytesBody) -> dict[str, str | None]:
        """Allocates bytes. `lease` of the reply is null if no lease has room; then nothing was
        allocated."""
        return {"lease": coordinator.make(Allocate(allocation, body.holder, body.num_bytes))}

    @server.delete("/allocations/{allocation}")
    async def free(allocation: Name, holder: Annotated[str, Query(pattern=NAME)]) -> None:
        coordinator.make(Free(allocation, holder))
