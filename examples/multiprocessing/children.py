# SPDX-License-Identifier: Apache-2.0
"""Forked children send with their parent's producer. Each is killed after its ``send``, and no record is lost."""

import multiprocessing
import os
import signal

import shmaccum


def send_and_die(producer: shmaccum.Producer) -> None:
    """Sends a record, without time to do anything after it."""
    producer.send("children", b"from a child")
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Prints how the children ended."""
    shmaccum.Arena.attach_or_create("web").close()
    fork = multiprocessing.get_context("fork")
    with shmaccum.Producer("web", sink="log:web-log") as producer:
        children = [fork.Process(target=send_and_die, args=(producer,)) for _ in range(4)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        print([child.exitcode for child in children])


if __name__ == "__main__":
    main()
