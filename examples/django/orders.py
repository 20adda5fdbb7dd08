# SPDX-License-Identifier: Apache-2.0
"""A Django application that sends a record for each order after its database transaction has committed."""

import functools

from django.apps import AppConfig, apps
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

import shmaccum


class OrdersConfig(AppConfig):
    """The application, which has the producer of its process."""

    name = "orders"
    producer: shmaccum.Producer

    def ready(self) -> None:
        """Makes the producer. Django calls this once in each process."""
        with shmaccum.Arena.attach_or_create("shop") as arena:
            arena.declare_topic("orders", 1)
        self.producer = shmaccum.Producer("shop", sink="log:log", linger_ms=5, max_block_ms=1000)


def order(request: HttpRequest, number: int) -> JsonResponse:
    """Stores an order, and sends its record after the commit."""
    producer = apps.get_app_config("orders").producer
    send = functools.partial(producer.send, "orders", key=b"%d" % number, value=request.path.encode())
    try:
        with transaction.atomic():  # the view writes the row of the order here, unless the row exists
            transaction.on_commit(send)
    except shmaccum.BufferExhaustedError:  # the order is stored, but its record is not sent: the client retries
        return JsonResponse({"stored": number}, status=503, headers={"Retry-After": "1"})
    return JsonResponse({"accepted": number})


urlpatterns = [path("order/<int:number>", order)]
