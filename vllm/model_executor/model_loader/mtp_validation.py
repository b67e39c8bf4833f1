# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing


def is_mtp_completeness_check_enabled():
    """
    It is off during a reload: each call to `load_weights` brings a part, and what is
    missing is found when the reload finishes.
    """
    with replacing("return $X"):
        from .reload.lifecycle import is_reload_in_progress

        return _mtp_completeness_check_enabled.get() and not is_reload_in_progress()
