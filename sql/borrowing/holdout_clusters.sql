-- Serving requests of a run by whether leases were withheld at random, kept as the table `holdout_request`: the window
-- of their arrival and what each cost by the price book. `withheld` is true once a window's wash-out is
-- over, false before and wherever leases might be granted, and NULL where no window was drawn. A request that misses a
-- budget costs `penalty_nano`; one that keeps them what the curve through `curve_at` and `curve_nano` says at the
-- larger of its two shares of a budget. Those three are lists with one element for each stretch between price changes.
-- Then what is compared, by measure and device: sums over its windows of y and x, how many windows there are, and sums
-- of their squares and products. `squares` sums the squares of y of single requests, where a request has one. `cost`:
-- nano-dollars for each request. `misses`: missed budgets for each request. `cache`: cached tokens for each prompt
-- token. `busy`: time serving worked, overlapping rollouts or not, for each token of the requests that arrived. Reads
-- the table `holdout_piece`, which `holdout_windows` makes.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE price_changes = []::BIGINT[];
-- SET VARIABLE penalty_nano = [1000000]; SET VARIABLE curve_at = [[0.5, 1.0]];
-- SET VARIABLE curve_nano = [[0.0, 1000000.0]];
CREATE OR REPLACE TEMP TABLE holdout_request AS
WITH arrived AS (
    SELECT
        r.*,
        epoch_us(event_time) * 1000 - e2e_ns AS arrival_ns,
        len(list_filter(getvariable('price_changes')::BIGINT[], lambda c: c <= arrival_ns)) + 1 AS stretch,
        -- Of what is NULL, least() takes the other.
        least(1, greatest(
            coalesce(ttft_ns / nullif(ttft_budget_ns, 0), 0), coalesce(tpot_mean_ns / nullif(tpot_budget_ns, 0), 0)
        )) AS budget_share,
        (getvariable('curve_at')::DOUBLE[][])[stretch] AS ats,
        (getvariable('curve_nano')::DOUBLE[][])[stretch] AS costs
    FROM request AS r
    ASOF JOIN (SELECT device_id, pool, since_ns FROM tenure WHERE run_id = getvariable('run_id')) AS d
        ON r.device_id = d.device_id AND epoch_us(r.event_time) * 1000 - r.e2e_ns >= d.since_ns
    WHERE run_id = getvariable('run_id') AND d.pool = 'serving'
)
SELECT
    r.device_id, p.number, CAST(make_timestamp(r.arrival_ns // 1000) AS DATE) AS day,
    CASE WHEN r.arrival_ns < p.t1_ns THEN p.withheld AND r.arrival_ns >= p.clean_ns END AS withheld,
    NOT coalesce(r.slo_ok, false) AS missed,
    CASE
        WHEN NOT coalesce(r.slo_ok, false) THEN (getvariable('penalty_nano')::BIGINT[])[r.stretch]
        WHEN len(r.ats) = 0 THEN 0
        ELSE CAST(round(r.costs[1] + coalesce(list_sum(list_transform(
            range(1, len(r.ats)),
            lambda i: (r.costs[i + 1] - r.costs[i]) / (r.ats[i + 1] - r.ats[i])
                * (greatest(least(r.budget_share, r.ats[i + 1]), r.ats[i]) - r.ats[i])
        )), 0)) AS BIGINT)
    END AS cost_nano,
    r.prompt_tokens, r.cached_tokens, r.output_tokens, r.requests_in_row
FROM arrived AS r
ASOF LEFT JOIN holdout_piece AS p ON r.device_id = p.device_id AND r.arrival_ns >= p.t0_ns;

WITH busy AS (
    SELECT
        s.device_id, p.number, p.withheld AND s.t0_ns >= p.clean_ns AS withheld,
        -- Half of what overlaps is in the rollouts' time, and so is their work beside serving's steps. Serving worked
        -- through all of it, so `delayed_ns` is in here.
        sum(s.serving_ns + s.overlap_ns // 2 + coalesce(s.beside_work_ns, 0)) AS ns
    FROM device_slice AS s
    ASOF JOIN holdout_piece AS p ON s.device_id = p.device_id AND s.t0_ns >= p.t0_ns
    WHERE s.run_id = getvariable('run_id') AND s.t0_ns < p.t1_ns
    GROUP BY ALL
),
request_window AS (
    SELECT
        device_id, number, withheld, count(*) AS requests, count_if(missed) AS misses, sum(cost_nano) AS cost_nano,
        -- Times are those of a sample: its requests vary as its rows do.
        sum(cost_nano::HUGEINT * cost_nano * requests_in_row) AS squares,
        sum(prompt_tokens) FILTER (cached_tokens IS NOT NULL) AS prompt_tokens, sum(cached_tokens) AS cached_tokens,
        sum(prompt_tokens + output_tokens) AS tokens
    FROM holdout_request
    WHERE withheld IS NOT NULL
    GROUP BY ALL
),
unit AS (
    SELECT 'cost' AS measure, device_id, withheld, requests::HUGEINT AS x, cost_nano::HUGEINT AS y, squares
    FROM request_window
    UNION ALL
    SELECT 'misses', device_id, withheld, requests, misses, misses
    FROM request_window
    UNION ALL
    SELECT 'cache', device_id, withheld, prompt_tokens, cached_tokens, NULL
    FROM request_window
    WHERE prompt_tokens > 0
    UNION ALL
    SELECT 'busy', device_id, withheld, tokens, ns, NULL
    FROM request_window
    JOIN busy USING (device_id, number, withheld)
)
SELECT
    measure, device_id, withheld,
    count(*) AS clusters,
    sum(x)::DOUBLE AS x, sum(y)::DOUBLE AS y, sum(squares)::DOUBLE AS squares,
    sum(y * y)::DOUBLE AS yy, sum(y * x)::DOUBLE AS yx, sum(x * x)::DOUBLE AS xx
FROM unit
GROUP BY ALL
ORDER BY ALL;
