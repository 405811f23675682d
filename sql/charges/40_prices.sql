-- Prices by UTC day: fractions num / den of a nano-dollar for each unit, and weights of tokens.
CREATE OR REPLACE TEMP TABLE device_price (
    device_class VARCHAR, pool VARCHAR, day BIGINT, num HUGEINT, den HUGEINT, commitment VARCHAR,
    energy_included BOOLEAN
);
CREATE OR REPLACE TEMP TABLE transfer_price (route VARCHAR, day BIGINT, num HUGEINT, den HUGEINT);
CREATE OR REPLACE TEMP TABLE energy_price (day BIGINT, num HUGEINT, den HUGEINT);
CREATE OR REPLACE TEMP TABLE tokens_price (day BIGINT, input_weight HUGEINT, output_weight HUGEINT);
