# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A tiny Llama for tests with a real engine on a machine without a GPU.

Engines run in float32: matrix products in bfloat16 can hit an instruction that
virtual machines refuse. Each engine lives in a process of its own, since a test
process may have another platform installed than the one the engine serves on.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from vllm import LLM

T = TypeVar("T")

PROMPTS = ([1, 2, 3, 4], [9, 8, 7])
MAX_TOKENS = 16


def write_checkpoint(folder: Path, seed: int) -> Path:
    """Writes a checkpoint with random weights in Hugging Face's layout.

    Args:
        folder: Where it goes.
        seed: Seed of the weights.

    Returns:
        The folder.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).float().save_pretrained(folder)
    return folder


def in_engine(folder: Path, job: "Callable[[LLM], T]", **options: Any) -> T:
    """Starts an engine on a checkpoint in a new process, and runs a job with it.

    Args:
        folder: The checkpoint.
        job: A function of the engine that can be pickled, as can its result.
        **options: Of the engine, in place of those for a machine without a GPU.

    Returns:
        What the job returned.
    """
    context = get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(_run, folder, job, options).result()


def _run(folder: Path, job: "Callable[[LLM], T]", options: dict[str, Any]) -> T:
    from vllm import LLM

    settings: dict[str, Any] = {
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "max_model_len": 128,
        "max_num_seqs": 4,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": 64 << 20,
    }
    engine = LLM(model=str(folder), **(settings | options))
    try:
        return job(engine)
    finally:
        # A job that caught an error leaves references to the engine; the process would
        # wait for the engine's without end.
        engine.llm_engine.engine_core.shutdown()


def generate(engine: "LLM") -> list[list[int]]:
    """Greedy continuations of the fixed prompts.

    Args:
        engine: The engine.

    Returns:
        For each prompt, its ``MAX_TOKENS`` new token ids.
    """
    from vllm import SamplingParams, TokensPrompt

    sampling = SamplingParams(
        temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, detokenize=False
    )
    prompts = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in PROMPTS]
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]
