-- Of an RL run that shares fleets: its time on each device, `own_time`, from its first work or lease there to its last,
-- with when another run had it next (`next_ns`, NULL where none did), `other_run_slice`, the slices in that time of
-- what was assigned or lent to other runs, and `lease_part`, what of each lease was its own, empty where it was
-- another's, with when the last slice ends that names the lease, whosoever it is (`last_ns`).
-- `run/time_on_fleet` fills them. They are empty of any other run, whose time is all there is, and whose leases are
-- whole.
CREATE OR REPLACE TEMP TABLE own_time (run_id VARCHAR, device_id VARCHAR, from_ns BIGINT, to_ns BIGINT, next_ns BIGINT);
CREATE OR REPLACE TEMP TABLE other_run_slice (
    run_id VARCHAR, device_id VARCHAR, t0_ns BIGINT, t1_ns BIGINT, leased BOOLEAN
);
CREATE OR REPLACE TEMP TABLE lease_part (
    run_id VARCHAR, lease_id VARCHAR, from_ns BIGINT, to_ns BIGINT, last_ns BIGINT
);
