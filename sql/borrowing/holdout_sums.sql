-- Requests, missed budgets, their cost and their prompt tokens by device, whether leases were withheld, and UTC day of
-- arrival. `known_prompt_tokens` are those of requests whose `cached_tokens` are known. Reads the table
-- `holdout_request`, which `holdout_clusters` makes.
SELECT
    device_id, withheld, day,
    count(*) AS requests,
    count_if(missed) AS misses,
    CAST(sum(cost_nano) AS BIGINT) AS cost_nano,
    CAST(coalesce(sum(prompt_tokens) FILTER (cached_tokens IS NOT NULL), 0) AS BIGINT) AS known_prompt_tokens,
    CAST(coalesce(sum(cached_tokens), 0) AS BIGINT) AS cached_tokens
FROM holdout_request
GROUP BY ALL
ORDER BY ALL;
