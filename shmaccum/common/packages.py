# SPDX-License-Identifier: Apache-2.0
"""The optional packages, and the message if one is missing.

**A command's help, and all work that does not use a package, run without the package. Work that needs it raises
`PackageMissingError` with one sentence, which names the package and the command that installs it.**
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shmaccum.exceptions import PackageMissingError


def install(extra: str) -> str:
    """Returns the command that installs an extra of this package."""
    return f"pip install '.[{extra}]' in the clone of shmaccum"


@contextlib.contextmanager
def needed(package: str, extra: str, subject: str) -> Iterator[None]:
    """Converts the ImportError of a package that is imported in the block.

    Args:
        package: the name of the package for pip.
        extra: the extra that installs it.
        subject: subject and verb of the sentence, as in "metrics need".

    Raises:
        PackageMissingError: an import failed.
    """
    try:
        yield
    except PackageMissingError:
        raise
    except ImportError as error:
        raise PackageMissingError(f"{subject} the package {package}: {install(extra)} ({error})") from error
