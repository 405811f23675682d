-- Provenances of what the period is priced from.
WITH used AS (
    SELECT unit FROM stay WHERE t1_ns > t0_ns
    UNION
    SELECT unit FROM made
    WHERE hour >= getvariable('from_ns') // 3600000000000 AND hour < getvariable('to_ns') // 3600000000000
    UNION
    SELECT unit FROM sent
    WHERE hour >= getvariable('from_ns') // 3600000000000 AND hour < getvariable('to_ns') // 3600000000000
)
SELECT DISTINCT provenance FROM stay SEMI JOIN used USING (unit) ORDER BY provenance;
