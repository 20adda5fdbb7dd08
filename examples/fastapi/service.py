# SPDX-License-Identifier: Apache-2.0
"""A FastAPI service with two handlers: one responds when a record is in the arena, one when it is delivered."""

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI, HTTPException

import shmaccum


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Creates the producer of this worker, and closes it at the end."""
    with contextlib.suppress(FileExistsError):
        shmaccum.Arena.create("api", topics={"orders": 1}).close()
    with shmaccum.Producer("api", sink="log:api-log", linger_ms=5, max_block_ms=0) as app.state.producer:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/fast/{key}")
async def fast(key: str) -> dict[str, str]:
    """Responds when the record is in the arena."""
    try:
        app.state.producer.send("orders", key=key.encode(), value=b"order")
    except shmaccum.BufferExhaustedError:
        raise HTTPException(503, "the arena is full") from None
    return {"accepted": key}


@app.post("/delivered/{key}")
async def delivered(key: str) -> dict[str, int]:
    """Responds when the sink has acknowledged the record."""
    metadata = await app.state.producer.send("orders", key=key.encode(), value=b"order")
    return {"offset": metadata.offset}
