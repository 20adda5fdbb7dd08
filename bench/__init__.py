# SPDX-License-Identifier: Apache-2.0
"""Benchmarks. A module of ``bench.questions`` is one question; its contenders run beside a peer."""
