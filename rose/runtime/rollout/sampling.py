"""How an engine must sample the built-in policy's turns, in the fields of SGLang's `sampling_params`."""

from __future__ import annotations

from rose.runtime.rollout.frozenlake import MAX_NEW_TOKENS, STOP_TOKEN_IDS


def sampling_params(temperature: float) -> dict[str, object]:
    """The whole distribution at `temperature`: cutting it (top_p, top_k) would make the engine's logprobs those of
    another distribution than the trainer's.
    """
    return {
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": MAX_NEW_TOKENS,
        "stop_token_ids": list(STOP_TOKEN_IDS),
    }
