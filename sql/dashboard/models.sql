-- The model that the rollouts of each fleet's run were made with, by its engines; several are named one after the
-- other.
SELECT run_id, string_agg(DISTINCT model, ', ' ORDER BY model) AS model
FROM engine
WHERE role = 'rollout' AND model IS NOT NULL
GROUP BY run_id
ORDER BY run_id;
