-- Output and answer tokens of the trajectories that ended with an answer that is known: R is one over the other.
-- By hand: SET VARIABLE run_id = '...';
SELECT
    count(*) AS trajectories,
    coalesce(sum(output_tokens), 0) AS output_tokens,
    coalesce(sum(answer_tokens), 0) AS answer_tokens
FROM trajectory
WHERE run_id = getvariable('run_id') AND outcome <> 'lost' AND answer_tokens IS NOT NULL;
