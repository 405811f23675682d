-- What is compared between withheld time and the rest, by measure and device: sums over its windows of y and x, how
-- many windows there are, and sums of their squares and products. `squares` sums the squares of y of single requests,
-- where a request has one. `cost`: nano-dollars for each request. `misses`: missed budgets for each request. `cache`:
-- cached tokens for each prompt token. `busy`: time serving worked, overlapping rollouts or not, for each token of the
-- requests that arrived. Reads the tables `holdout_piece` and `holdout_request`, which `holdout_pieces` and
-- `holdout_requests` make.
-- By hand: SET VARIABLE run_id = '...';
WITH busy AS (
    SELECT
        s.device_id, p.number, p.withheld AND s.t0_ns >= p.clean_ns AS withheld,
        -- Half of what overlaps is in the rollouts' time, and serving worked through all of it.
        sum(s.serving_ns + s.overlap_ns // 2) AS ns
    FROM device_slice AS s
    ASOF JOIN holdout_piece AS p ON s.device_id = p.device_id AND s.t0_ns >= p.t0_ns
    WHERE s.run_id = getvariable('run_id') AND s.t0_ns < p.t1_ns
    GROUP BY ALL
),
request_window AS (
    SELECT
        device_id, number, withheld, count(*) AS requests, count_if(missed) AS misses, sum(cost_nano) AS cost_nano,
        sum(cost_nano::HUGEINT * cost_nano) AS squares,
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
