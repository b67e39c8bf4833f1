# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""On stock vLLM the census finds the tensors that a reading of all of it had found.

The map is what `docs/design/derived_tensors.md` tells of. If the census loses one of
these, it has lost its way, and would pass over the next one too.
"""

import gc
from functools import cache

import pytest

from tools.census.__main__ import ROOT
from tools.census.census import take_census
from tools.census.reach import in_scope
from tools.series.base import Sources
from tools.series.overlay import load_overlay

_MOE = "vllm/model_executor/layers/fused_moe"
_EXPERTS = f"{_MOE}/experts"
_LINEAR = "vllm/model_executor/kernels/linear"
_QUANT = "vllm/model_executor/layers/quantization"
_MODELS = "vllm/model_executor/models"
_MUSE = "vllm/models/muse_spark"
_STEP = "process_weights_after_loading"

CONSTANTS_OF_EXPERTS = [
    (f"{_EXPERTS}/trtllm_mxfp4_moe.py", "TrtLlmMxfp4ExpertsBase.__init__"),
    (f"{_EXPERTS}/trtllm_fp8_moe.py", "TrtLlmFp8ExpertsBase.__init__"),
    (f"{_EXPERTS}/trtllm_fp8_moe.py", "TrtLlmFp8ExpertsMonolithic.__init__"),
    (f"{_EXPERTS}/trtllm_nvfp4_moe.py", "TrtLlmNvFp4ExpertsBase.__init__"),
    (f"{_EXPERTS}/flashinfer_cutlass_moe.py", "FlashInferExperts.__init__"),
    (f"{_EXPERTS}/flashinfer_cutedsl_moe.py", "FlashInferCuteDSLExperts.__init__"),
    (f"{_EXPERTS}/cutlass_moe.py", "CutlassExpertsFp8Base.__init__"),
    (f"{_EXPERTS}/cutlass_moe.py", "CutlassExpertsW4A8Fp8.__init__"),
    (f"{_EXPERTS}/fused_humming_moe.py", "HummingExpertsBase.__init__"),
    (f"{_EXPERTS}/flashinfer_b12x_moe.py", f"FlashInferB12xExperts.{_STEP}"),
    (
        f"{_EXPERTS}/trtllm_lora_moe.py",
        "TrtLlmMxfp4LoRAExperts._w13_bias_up_gate_index",
    ),
    (f"{_EXPERTS}/cpu_moe.py", "ZenCPUExpertsInt8.__init__"),
]
QUANT_CONFIGS = [
    (f"{_MOE}/oracle/fp8.py", "make_fp8_moe_quant_config"),
    (f"{_MOE}/oracle/nvfp4.py", "make_nvfp4_moe_quant_config"),
    (f"{_MOE}/b12x.py", "B12xExperts._refresh_quant_config"),
    (f"{_MUSE}/nvidia/muse_moe_runner.py", f"MuseSparkModelOptNvFp4FusedMoE.{_STEP}"),
]
LAYERS = [
    (f"{_MOE}/router/gate_linear.py", f"_GateLinearMethod.{_STEP}"),
    (f"{_MOE}/runner/moe_runner.py", "MoERunner._maybe_fuse_gate_weights"),
    (
        f"{_MOE}/prepare_finalize/deepep_v2.py",
        "DeepEPV2PrepareAndFinalize._global_expert_ids",
    ),
    (f"{_LINEAR}/mixed_precision/humming.py", f"HummingLinearKernel.{_STEP}"),
    (f"{_LINEAR}/nvfp4/b12x.py", f"B12xNvFp4W4A16LinearKernel.{_STEP}"),
    (f"{_LINEAR}/mxfp8/xpu.py", "XPUMxFp8LinearKernel._prepare_bmm_params"),
    (f"{_QUANT}/modelopt.py", f"ModelOptLinearMethod.{_STEP}"),
    (f"{_QUANT}/modelopt_block_quant.py", f"ModelOptBlockQuantLinearMethod.{_STEP}"),
    (f"{_QUANT}/mxfp4.py", "Mxfp4MoEMethod._setup_kernel"),
    (f"{_QUANT}/inc/schemes/inc_wna16_moe.py", f"INCARKWNA16MoEMethod.{_STEP}"),
    ("vllm/v1/attention/backends/flashinfer.py", f"FlashInferImpl.{_STEP}"),
    ("vllm/v1/attention/backends/mla/amx_mla.py", f"AMXMLAImpl.{_STEP}"),
    (
        "vllm/v1/attention/ops/rocm_aiter_mla_sparse.py",
        "_get_cached_wo_a_bf16",
    ),
]
DRAFTERS = [
    (f"{_MODELS}/qwen3_dflash.py", "DFlashQwen3Model._build_context_kv_buffers"),
    (f"{_MODELS}/laguna_dflash.py", "DFlashLagunaModel._build_context_kv_buffers"),
    (f"{_MODELS}/gemma4_dspark.py", "Gemma4DSparkModel._build_context_kv_buffers"),
    (f"{_MODELS}/gemma4_mtp.py", "Gemma4MTP._get_full_lm_head_weight"),
    (f"{_MODELS}/gemma4_mtp.py", "Gemma4MTP.load_weights"),
    (f"{_MODELS}/lilicorr.py", "LiLiCorrHead.materialize_inference_buffers"),
    (f"{_MODELS}/qwen3_xpress.py", "XPressRefinerHead.build_fused_buffers"),
    (f"{_MUSE}/common/dspark.py", "MuseSparkDSparkModel._build_fused_kv_buffers"),
    (
        "vllm/models/beam/nvidia/dflash2.py",
        "DFlash2BeamModel.build_context_kv_weights",
    ),
    (
        "vllm/models/kimi_k3/nvidia/dspark_mla.py",
        "K3DSparkModel._build_fused_context_kv_metadata",
    ),
]
MODELS = [
    ("vllm/models/glm5next/common/attention.py", "Indexer.forward"),
    ("vllm/models/glm5next/common/kda.py", "Glm5NextLinearAttention._forward"),
    ("vllm/models/kimi_k3/nvidia/mla.py", f"MultiHeadLatentAttention.{_STEP}"),
    (
        f"{_MUSE}/common/layers.py",
        "MuseSpark1xNormPreservingResidualConnection.materialize_coefficients",
    ),
    (f"{_MUSE}/nvidia/muse_moe_runner.py", "MusePostExpertFinalize._effective_weight"),
    (f"{_MUSE}/nvidia/mega_moe.py", "MuseSparkMegaMoEExperts.finalize_weights"),
    (
        "vllm/models/deepseek_v4/amd/rocm.py",
        "DeepseekV4ROCMAiterMLAAttention.prepare_compressor_gemm_fusion",
    ),
    ("vllm/models/deepseek_v4/amd/mono_decode.py", "MonoDecodeLayer.weights"),
    (
        "vllm/models/deepseek_v4/amd/model.py",
        "DeepseekV4HeterogeneousSharedRoutedExperts"
        ".prepare_heterogeneous_shared_expert",
    ),
    (
        "vllm/models/deepseek_v41/nvidia/model.py",
        "DeepseekV4Model.finalize_mhc_broadcast_weights",
    ),
    ("vllm/models/dots3_note/nvidia/vision.py", f"MoESwiGLUFFNFP8.{_STEP}"),
    ("vllm/models/step5/nvidia/mega_moe.py", "Step5MegaMoEExperts._prepare_nvfp4"),
    ("vllm/models/flint/ops/moe.py", "FlintNvfp4Experts._repack"),
]


@cache
def _found_on_stock() -> set[tuple[str, str]]:
    sources = Sources(load_overlay(ROOT).pin)
    texts = {
        path: sources.read(path)
        for path in sources.paths
        if path.startswith("vllm/") and path.endswith(".py")
    }
    gc.disable()  # Syntax trees have no garbage; to look for it doubles the time.
    try:
        sites, _ = take_census({p: t for p, t in texts.items() if in_scope(p, t)})
    finally:
        gc.enable()
    kinds = ("derived", "lazy")
    return {(site.path, site.function) for site in sites if site.kind in kinds}


@pytest.mark.parametrize(
    "rows",
    [CONSTANTS_OF_EXPERTS, QUANT_CONFIGS, LAYERS, DRAFTERS, MODELS],
    ids=["constants-of-experts", "quant-configs", "layers", "drafters", "models"],
)
def test_the_census_finds_what_the_map_has(rows: list[tuple[str, str]]):
    assert set(rows) <= _found_on_stock()
