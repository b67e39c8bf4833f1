# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import removed


class DeepseekV4ForCausalLM:
    removed("finalizes_weights_during_load")
