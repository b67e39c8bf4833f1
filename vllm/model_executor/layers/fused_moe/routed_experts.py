# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
from series import after, replacing

from vllm.model_executor.utils import get_live_param


class RoutedExperts:
    def __init__(
        self,
        layer_name,
        params_dtype,
        moe_config,
        quant_config,
        expert_map_manager,
        ckpt_gate_proj_name="gate_proj",
        ckpt_down_proj_name="down_proj",
        ckpt_up_proj_name="up_proj",
        is_fused_checkpoint_transposed=False,
        renormalize=True,
        use_grouped_topk=False,
        num_expert_group=None,
        topk_group=None,
        custom_routing_function=None,
        scoring_func="softmax",
        routed_scaling_factor=1.0,
        swiglu_limit=None,
        swiglu_alpha=None,
        swiglu_beta=None,
        e_score_correction_bias=None,
        apply_router_weight_on_input=False,
        hash_indices_table=None,
    ):
        with after("self._loaded_expert_biases: set[str] = set()"):
            self._unpaired_input_scales: dict[tuple[str, int], tuple[str, float]] = {}

    def weight_loader(
        self,
        param,
        loaded_weight,
        weight_name,
        shard_id,
        expert_id,
        return_success=False,
    ):
        with replacing("$COMPRESSED and param.data[expert_id] != 1 and $DIFFERS"):
            "compressed" in quant_method_name.lower() and self._differs_from_its_pair(
                weight_name, expert_id, shard_id, loaded_weight
            )

    def _differs_from_its_pair(
        self, weight_name: str, expert_id: int, shard_id: str, scale: torch.Tensor
    ) -> bool:
        """Whether gate and up of an expert come with different input scales.

        The first to arrive is remembered until the other one does. What the parameter
        holds cannot tell: in a reload it is the scale of the last checkpoint, or not
        initialized yet.

        Args:
            weight_name: Name of the parameter that both go into.
            expert_id: Local number of the expert.
            shard_id: "w1", "w2" or "w3"; "w2" has no pair.
            scale: The loaded input scale, one element; on meta where a reload only
                counts what is loaded.
        """
        if shard_id == "w2" or scale.is_meta:
            return False
        value = float(scale)
        other = self._unpaired_input_scales.pop((weight_name, expert_id), None)
        if other is None or other[0] == shard_id:
            self._unpaired_input_scales[weight_name, expert_id] = shard_id, value
            return False
        return abs(other[1] - value) > 1e-5

    def get_expert_weights(self):
        with replacing("list(self.named_parameters())"):
            [
                (name, param)
                for name, param in self.named_parameters()
                if self._moves_with_experts(name, param)
            ]

    def _moves_with_experts(self, name: str, param: torch.nn.Parameter) -> bool:
        """Whether expert load balancing may move a parameter.

        It moves what kernels read, each object once. A retired parameter moves along
        if it has a row for each local expert. Kernels do not read it, but processing
        does, again in each reload, and a reload that sends no new value must find the
        row of the expert that the slot holds now. A loader writes by the global number
        of the expert, so it finds the slot too.

        Args:
            name: Name of the parameter in this module.
            param: The parameter.
        """
        retired = name in self._parameters and get_live_param(self, name) is None
        return not retired or param.shape[:1] == (self.local_num_experts,)
