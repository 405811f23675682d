-- The last run of each job, and when the last one that did what it is for began and ended (UTC microseconds since the
-- Unix epoch); of audits also when the last one of every byte began that found nothing wrong.
SELECT
    job,
    arg_max(ok, (event_time, writer, seq)) AS ok,
    epoch_us(arg_max(started_at, (event_time, writer, seq))) AS started_us,
    epoch_us(max(event_time)) AS ended_us,
    arg_max(duration_ns, (event_time, writer, seq)) AS duration_ns,
    arg_max(missed, (event_time, writer, seq)) AS missed,
    -- arg_max passes over NULL.
    arg_max({'text': result_json}, (event_time, writer, seq)).text AS result_json,
    arg_max({'text': error}, (event_time, writer, seq)).text AS error,
    epoch_us(max(started_at) FILTER (ok)) AS succeeded_us,
    epoch_us(max(event_time) FILTER (ok)) AS success_ended_us,
    epoch_us(
        max(started_at) FILTER (ok AND (try_cast(result_json AS JSON) ->> '$.every_byte') = 'true')
    ) AS every_byte_us
FROM job
WHERE job IS NOT NULL
GROUP BY job
ORDER BY job;
