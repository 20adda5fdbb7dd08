# SPDX-License-Identifier: Apache-2.0
"""The schemas of requests and responses that kafka-python lacks, in the form of Kafka's own (KIP-848)."""
