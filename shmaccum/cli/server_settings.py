# SPDX-License-Identifier: Apache-2.0
"""``--command-config``: the client settings for a server that requires TLS or a login."""

from __future__ import annotations

import click

from shmaccum.log.server.client_settings import PLAIN_CONNECTION, read_client_settings

settings_option = click.option(
    "--command-config",
    "settings",
    metavar="FILE",
    callback=lambda _ctx, _parameter, value: PLAIN_CONNECTION if value is None else read_client_settings(value),
    help="A properties file as for Kafka's tools, if the server requires TLS or a login.",
)
