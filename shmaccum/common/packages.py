# SPDX-License-Identifier: Apache-2.0
"""The optional packages, and the sentence that a user reads where one is missing.

**A command's help, and all work that a package does not do, go without the package. Work that needs it raises
`PackageMissingError` with one sentence, which names the package and the command that installs it.**
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shmaccum.exceptions import PackageMissingError


def install(extra: str) -> str:
    """The command that installs what an extra of this package brings."""
    return f"pip install '.[{extra}]' in the clone of shmaccum"


@contextlib.contextmanager
def needed(package: str, extra: str, subject: str) -> Iterator[None]:
    """The imports within the block need a package.

    Args:
        package: as pip knows it.
        extra: the extra that brings it.
        subject: of the sentence, with its verb, as in "metrics need".

    Raises:
        PackageMissingError: an import failed.
    """
    try:
        yield
    except PackageMissingError:
        raise
    except ImportError as error:
        raise PackageMissingError(f"{subject} the package {package}: {install(extra)} ({error})") from error
