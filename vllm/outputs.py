# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
UNDEFINED_WEIGHTS = "undefined_weights"
"""Code of the error that requests get after a reload of the weights has failed."""
