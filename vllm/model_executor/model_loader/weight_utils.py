# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import before


def default_weight_loader(param, loaded_weight):
    """
    Also called past a parameter's own weight loader, so it tells a reload itself.
    """
    with before("try: $$$"):
        if (observe := getattr(param, "observe_default_load", None)) is not None:
            observe()
