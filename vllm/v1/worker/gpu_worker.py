# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch.nn as nn
from series import after, replacing

from vllm.model_executor.model_loader.reload import require_defined


class Worker:
    def execute_model(self, scheduler_output):
        with after("forward_pass = $$$"):
            if forward_pass:
                self._require_defined_weights()

    def find_undefined_weights(self) -> str | None:
        try:
            self._require_defined_weights()
        except RuntimeError as error:
            return str(error)
        return None

    def _require_defined_weights(self) -> None:
        """
        Raises:
            RuntimeError: A reload of the model, or of its draft model, is under way or
                has failed.

        """
        require_defined(self.get_model())
        get_draft_model = getattr(self.model_runner, "get_draft_model", None)
        if get_draft_model is not None and (draft := get_draft_model()) is not None:
            require_defined(draft)

    def _start_weight_update(self, is_draft: bool = False):
        with replacing(
            "raise RuntimeError($$$)", inside="if self._weight_update_active: $$$"
        ):
            raise RuntimeError(
                "start_weight_update called while a weight update is already active. "
                "Call finish_weight_update or abort_weight_update first."
            )
        with replacing(
            "self.weight_transfer_engine.reset_weight_update_target()",
        ):
            self._abort_weight_update(draft_model)
        with replacing("if draft_model is not None: restore_quantized_lm_heads($$$)"):
            pass

    def update_weights(self, update_info):
        with replacing("self._weight_update_active = False"):
            self.abort_weight_update()
        with replacing("self.weight_transfer_engine.reset_weight_update_target()"):
            pass
        with replacing("if self._weight_update_is_draft and $X: $$$"):
            pass

    def finish_weight_update(self):
        with replacing("self.weight_transfer_engine.finish_weight_update()"):
            try:
                self.weight_transfer_engine.finish_weight_update()
            except BaseException:
                self.abort_weight_update()
                raise

    def abort_weight_update(self) -> None:
        """Give the current weight update session up, if one is active.

        The model gets its startup tensors back. Layers that were written to stay
        undefined, and the model does not serve, until an update brings all of them.
        """
        self._check_weight_transfer_engine()
        if not self._weight_update_active:
            return
        self._abort_weight_update(
            self.get_draft_model() if self._weight_update_is_draft else None
        )

    def _abort_weight_update(self, draft_model: nn.Module | None) -> None:
        assert self.weight_transfer_engine is not None
        self._weight_update_active = False
        try:
            with set_current_vllm_config(self.vllm_config):
                self.weight_transfer_engine.abort_weight_update()
        finally:
            self.weight_transfer_engine.reset_weight_update_target()
            if draft_model is not None:
                restore_quantized_lm_heads(draft_model, refresh=False)

    def _get_sleep_parameters(self, model):
        with replacing("dict(model.named_parameters())"):
            dict(model.named_parameters(remove_duplicate=False))
        with replacing("draft.named_parameters()"):
            draft.named_parameters(remove_duplicate=False)

    def _save_sleep_parameters(self, model):
        with replacing("parameters.items()"):
            _each_once(parameters, names).items()


def _each_once(
    parameters: dict[str, nn.Parameter], names: set[str]
) -> dict[str, nn.Parameter]:
    """The parameters of these names, each under one of them."""
    chosen = {id(parameters[name]): name for name in sorted(names, reverse=True)}
    return {name: parameters[name] for name in chosen.values()}
