-- For the infra lead: how much longer did each serving request take because rollouts ran beside it?
--
-- since (TIMESTAMP): only requests recorded at or after this time, UTC.
-- until (TIMESTAMP): only requests recorded before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- Completed requests of more than one token, on devices that recorded delay; the largest share first. `delayed_ns` is
-- how much longer than predicted serving's steps on the device took, from the request's first token to its last. A live
-- request waits for whole steps, so requests that live at once have the same delay. The delay of a slice is spread
-- evenly over the slice. `tpot_delayed_ns` is the delay for each token after the first. `longer_share` is the delay
-- divided by the time without the delay; NULL if that time is 0. `allowed_share` is `coserving.stretch` - 1; NULL if
-- the run's configuration does not say. `run_longer_share` and `run_longer_p99_share` are the mean, weighted by time,
-- and the 99th percentile of `longer_share` over all of the run's rows here.
WITH slice AS (
    SELECT
        run_id, provenance, device_id, t0_ns, ns, delayed_ns,
        sum(delayed_ns) OVER (PARTITION BY run_id, provenance, device_id ORDER BY t0_ns, seq) - delayed_ns AS earlier_ns
    FROM device_slice
    WHERE delayed_ns IS NOT NULL AND ns > 0
      AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
      AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
),
sent AS (
    SELECT *, epoch_ns(event_time) AS last_ns, epoch_ns(event_time) - e2e_ns + ttft_ns AS first_ns
    FROM request
    WHERE outcome = 'completed' AND output_tokens > 1 AND ttft_ns < e2e_ns
      AND (getvariable('since') IS NULL OR event_time >= getvariable('since')::TIMESTAMP)
      AND (getvariable('until') IS NULL OR event_time < getvariable('until')::TIMESTAMP)
      AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
      AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
),
timed AS (
    SELECT
        sent.*, sent.last_ns - sent.first_ns AS tokens_ns,
        b.earlier_ns + b.delayed_ns * least((sent.last_ns - b.t0_ns) / b.ns, 1)
            - coalesce(a.earlier_ns + a.delayed_ns * least((sent.first_ns - a.t0_ns) / a.ns, 1), 0) AS device_delayed_ns
    FROM sent
    ASOF JOIN slice AS b
        ON sent.run_id = b.run_id AND sent.provenance = b.provenance AND sent.device_id = b.device_id
       AND sent.last_ns >= b.t0_ns
    ASOF LEFT JOIN slice AS a
        ON sent.run_id = a.run_id AND sent.provenance = a.provenance AND sent.device_id = a.device_id
       AND sent.first_ns >= a.t0_ns
),
delayed AS (
    SELECT *, least(round(device_delayed_ns), tokens_ns)::BIGINT AS delayed_ns FROM timed
)
SELECT
    delayed.event_time, delayed.provenance, delayed.run_id, delayed.request_id, delayed.device_id, delayed.lent,
    delayed.output_tokens, delayed.tpot_mean_ns, delayed.tpot_budget_ns,
    delayed.delayed_ns,
    delayed.delayed_ns // (delayed.output_tokens - 1) AS tpot_delayed_ns,
    delayed.delayed_ns / nullif(delayed.tokens_ns - delayed.delayed_ns, 0) AS longer_share,
    CASE WHEN json_valid(run.config_json) THEN
        try_cast(run.config_json ->> '$.coserving.stretch' AS DOUBLE) - 1
    END AS allowed_share,
    sum(delayed.delayed_ns) OVER of_run / nullif(sum(delayed.tokens_ns - delayed.delayed_ns) OVER of_run, 0)
        AS run_longer_share,
    quantile_disc(delayed.delayed_ns / nullif(delayed.tokens_ns - delayed.delayed_ns, 0), 0.99) OVER of_run
        AS run_longer_p99_share
FROM delayed
LEFT JOIN run USING (run_id, provenance)
WINDOW of_run AS (PARTITION BY delayed.run_id, delayed.provenance)
ORDER BY longer_share DESC NULLS FIRST, delayed.request_id;
