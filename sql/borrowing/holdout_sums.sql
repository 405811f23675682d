-- Requests, missed budgets, their cost and their prompt tokens by device, whether leases were withheld, UTC day of
-- arrival and, if `by_lease`, lease. `known_prompt_tokens` are those of requests whose `cached_tokens` are known. Reads
-- the table `holdout_request`, which `holdout_clusters` makes.
-- By hand: SET VARIABLE by_lease = true;
SELECT
    device_id, withheld, day,
    CASE WHEN getvariable('by_lease') THEN lease_id END AS lease_id,
    count(*) AS requests,
    count_if(missed) AS misses,
    CAST(sum(cost_nano) AS BIGINT) AS cost_nano,
    CAST(coalesce(sum(prompt_tokens) FILTER (cached_tokens IS NOT NULL), 0) AS BIGINT) AS known_prompt_tokens,
    CAST(coalesce(sum(cached_tokens), 0) AS BIGINT) AS cached_tokens,
    CAST(sum(prompt_tokens + output_tokens) AS BIGINT) AS tokens
FROM holdout_request
GROUP BY ALL
ORDER BY ALL;
