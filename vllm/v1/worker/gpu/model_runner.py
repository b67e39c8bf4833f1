# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing

from vllm.model_executor.model_loader.reload import ReloadMode


class GPUModelRunner:
    def reload_weights(
        self,
        weights_iterator: Iterable[tuple[str, torch.Tensor]] | None = None,
        weights_path: str | None = None,
        is_checkpoint_format: bool = True,
        mode: ReloadMode = "layerwise",
    ):
        with replacing("reload_weights($$$)"):
            reload_weights(
                vllm_config,
                model,
                weights_iterator,
                weights_path,
                is_checkpoint_format,
                mode,
            )
