# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The platform of the tiny GLM-5.x comes and goes."""

import os

import pytest

# Imported before the platform changes, as other tests of the process may have done.
import vllm.model_executor.model_loader  # noqa: F401
import vllm.models.glm5next  # noqa: F401
from tests.glm5_tiny import (
    TinyGlm5,
    differences,
    expected_parameters,
    load_from_disk,
    make_checkpoint,
    tensor_parallel_group,
    use_cuda_like_cpu_platform,
    write_checkpoint,
)
from vllm.model_executor.layers import linear
from vllm.platforms import current_platform


def test_platform_is_out_of_tree_for_modules_imported_before():
    with use_cuda_like_cpu_platform():
        assert linear.current_platform.is_out_of_tree()
        assert not linear.current_platform.is_cpu()
        assert linear.current_platform.device_type == "cpu"


def test_platform_and_environment_are_restored_after_an_error():
    before, environment = type(current_platform), dict(os.environ)

    with pytest.raises(KeyError, match="inside"), use_cuda_like_cpu_platform():
        os.environ["VLLM_SET_MEANWHILE"] = "1"
        raise KeyError("inside")

    assert type(current_platform) is before
    assert dict(os.environ) == environment


def test_model_loads_with_modules_imported_before(tmp_path):
    spec = TinyGlm5()
    checkpoint = make_checkpoint(spec)
    write_checkpoint(tmp_path, spec, checkpoint.tensors)

    with use_cuda_like_cpu_platform(), tensor_parallel_group():
        model = load_from_disk(spec, tmp_path)

    assert differences(model.module, expected_parameters(spec, checkpoint)) == {}


def test_second_process_group_is_refused():
    with (
        use_cuda_like_cpu_platform(),
        tensor_parallel_group(),
        pytest.raises(RuntimeError, match="has process groups; expected none"),
        tensor_parallel_group(),
    ):
        pass
