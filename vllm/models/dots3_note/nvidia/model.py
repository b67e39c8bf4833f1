# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing


class Dots3NoteModel:
    def _adapt_weights(self, weights):
        with replacing("pending_indexer_fp8: $TYPE = {}"):
            pass
        with replacing("projection = next($$$)"):
            pass
        with replacing("is_fp8_weight = $VALUE"):
            pass
        with replacing("is_scale = $VALUE"):
            pass
        with replacing("if projection is not None and $REST: $$$"):
            pass
        with replacing("if pending_indexer_fp8: $$$"):
            pass
