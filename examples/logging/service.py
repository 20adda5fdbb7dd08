# SPDX-License-Identifier: Apache-2.0
"""A service of FastAPI whose requests uvicorn logs."""

from fastapi import FastAPI

app = FastAPI()


@app.get("/hello")
async def hello() -> str:
    """Says hello."""
    return "hello"
