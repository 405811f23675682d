-- Provenances of what the period is priced from.
WITH used AS (
    SELECT unit FROM in_period
    UNION
    SELECT unit FROM made
    WHERE hour >= getvariable('from_ns') // 3600000000000 AND hour < getvariable('to_ns') // 3600000000000
    UNION
    SELECT unit FROM sent
    WHERE hour >= getvariable('from_ns') // 3600000000000 AND hour < getvariable('to_ns') // 3600000000000
)
SELECT DISTINCT provenance FROM stay SEMI JOIN used USING (unit) WHERE asked ORDER BY provenance;
