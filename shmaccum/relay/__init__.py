# SPDX-License-Identifier: Apache-2.0
"""From records of a log to records of a log, each output exactly once.

relay         turns: consume, process, send, commit
origin        the header that names the input of an output; the text of a commit
deliveries    the wait for outputs that are still in an arena
"""

from shmaccum.relay.relay import Relay

__all__ = ["Relay"]
