# SPDX-License-Identifier: Apache-2.0
"""Celery tasks that send records. The processes of the pool share the producer of this module, and one arena."""

import os
import signal

from celery import Celery

import shmaccum

app = Celery("jobs", broker="filesystem://", backend="cache+memory://")
app.conf.broker_transport_options = {"data_folder_in": "broker", "data_folder_out": "broker"}

shmaccum.Arena.attach_or_create("tasks").close()
producer = shmaccum.Producer("tasks", sink="log:tasks-log", linger_ms=5)


@app.task
def measure(number: int) -> None:
    """Succeeds when the record is in the arena."""
    producer.send("measurements", key=b"%d" % number, value=b"measured")


@app.task(autoretry_for=(shmaccum.ShmaccumError,), retry_backoff=True)
def measure_and_wait(number: int) -> None:
    """Succeeds when the record is delivered. Celery retries the task if the record failed."""
    producer.send("measurements", key=b"%d" % number, value=b"measured").get(timeout=30)


@app.task
def measure_and_die(number: int) -> None:
    """Kills its process of the pool after the record is sent."""
    measure(number)
    os.kill(os.getpid(), signal.SIGKILL)
