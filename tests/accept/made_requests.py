from rose.events import Request


def completed(ttft_ns: int, tpot_ns: int) -> Request:
    return Request(
        request_id="made",
        outcome="completed",
        prompt_tokens=8,
        output_tokens=8,
        ttft_ns=ttft_ns,
        tpot_mean_ns=tpot_ns,
        tpot_max_ns=None,
        e2e_ns=ttft_ns + 7 * tpot_ns,
        ttft_budget_ns=0,
        tpot_budget_ns=0,
        send_delay_ns=0,
    )
