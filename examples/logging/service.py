# SPDX-License-Identifier: Apache-2.0
"""A FastAPI service whose requests are logged by uvicorn."""

from fastapi import FastAPI

app = FastAPI()


@app.get("/hello")
async def hello() -> str:
    """Returns hello."""
    return "hello"
