# SPDX-License-Identifier: Apache-2.0
"""Programs that use shmaccum, one folder each. `flights` is the pipeline of ``make run``."""
