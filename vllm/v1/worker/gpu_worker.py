# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch.nn as nn
from series import replacing


class Worker:
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
