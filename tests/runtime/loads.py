from rose.runtime.policy.slack import ServingLoad

#: Nobody is served, and a step takes a millisecond.
IDLE = ServingLoad(
    wanted=False,
    waiting=0,
    waiting_prefill_ns=0,
    first_token_due_ns=0,
    running=0,
    next_token_due_ns=0,
    decode_ns=1_000_000,
    largest_prefill_ns=1_000_000,
    usual_prefill_ns=1_000_000,
    ttft_budget_ns=1_000_000_000,
    regret_room_ns=0,
    worked_ns=0,
    finished=0,
    late_alone=0,
    late_by_lending=0,
)
#: 8 billion parameters: 16 GB of weights, and 128 KiB of keys and values for a token.
LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
