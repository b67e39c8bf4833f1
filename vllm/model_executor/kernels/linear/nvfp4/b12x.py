# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.utils.b12x import reuse_packed_weight_storage


class B12xNvFp4W4A16LinearKernel:
    def process_weights_after_loading(self, layer):
        with replacing("blockscaled.pack_weight($$$)"):
            reuse_packed_weight_storage(
                getattr(layer, "b12x_nvfp4_packed_weight", None),
                blockscaled.pack_weight(
                    layer.weight,
                    layer.weight_scale,
                    recipe="nvfp4",
                    global_scale=layer.weight_global_scale,
                ),
            )
