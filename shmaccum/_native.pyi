# SPDX-License-Identifier: Apache-2.0
"""The native core: native/python. Times are nanoseconds of CLOCK_BOOTTIME or milliseconds since 1970, as named."""

from collections.abc import Buffer, Callable, Mapping, Sequence
