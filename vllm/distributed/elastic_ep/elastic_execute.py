# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after, before, replacing


def batch_transfer_weights(model, is_sender, peer_rank, dp_group, expert_weights):
    with before("all_params = []"):
        taken: set[int] = set()
    with replacing("model.state_dict()"):
        model.state_dict(keep_vars=True)
    with replacing("param.data_ptr() not in expert_weights_set"):
        param.data_ptr() not in expert_weights_set and id(param) not in taken
    with after("all_params.append(param.data)"):
        # Under a second name it is the same parameter: it is sent once.
        taken.add(id(param))
