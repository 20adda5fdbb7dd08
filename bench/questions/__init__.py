# SPDX-License-Identifier: Apache-2.0
"""Each module is one question and has a ``QUESTION``. The first line of its docstring is the question."""
