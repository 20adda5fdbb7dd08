# SPDX-License-Identifier: Apache-2.0
"""Process records of a log into records of a log, each output exactly once.

relay         turns: consume, process, send, commit
origin        the header that identifies the input of an output; the metadata of a commit
deliveries    waits for outputs that are still in an arena
"""

from shmaccum.relay.relay import Relay

__all__ = ["Relay"]
