# SPDX-License-Identifier: Apache-2.0
"""The files of consumer groups in a log directory: committed offsets, and the lock that allows to write them."""
