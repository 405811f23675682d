-- Pricing's state for a ledger: sums by UTC hour, to which events are added in any order and portion, and the charges
-- computed from them. `hour` is hours since the Unix epoch. `rl_run_id` is the RL run of a row, NULL for the unit's own
-- run.
CREATE TABLE mark (writer VARCHAR, epoch BIGINT, index BIGINT, next_seq BIGINT);
-- The event that counts for each id that a client chose.
CREATE TABLE client_id (run_id VARCHAR, kind VARCHAR, event_id VARCHAR, writer VARCHAR, seq BIGINT);
-- Files of the roll-ups whose ids were compared with these.
CREATE TABLE id_file (path VARCHAR, sha256 VARCHAR);
-- Devices of runs, numbered in the order in which they were heard of; '' is where an event names none. One that comes
-- back in another pool or class, or as other hardware, is another unit from then on: events in [since_ns, until_ns) are
-- of a unit.
CREATE TABLE unit (
    unit BIGINT, run_id VARCHAR, provenance VARCHAR, device_id VARCHAR, since_ns BIGINT, until_ns BIGINT
);
CREATE TABLE granted (unit BIGINT, lease_id VARCHAR, at_us BIGINT);
CREATE TABLE slice (
    unit BIGINT, hour BIGINT, lease_id VARCHAR, rl_run_id VARCHAR, writer VARCHAR, first_seq BIGINT, last_seq BIGINT,
    serving_ns BIGINT, rollout_ns BIGINT, train_ns BIGINT, sync_ns BIGINT, activation_ns BIGINT, headroom_ns BIGINT,
    idle_ns BIGINT
);
-- Slices, and power readings, that begin less those that end at a time; where they touch nothing is left.
CREATE TABLE edge (kind VARCHAR, unit BIGINT, t_ns BIGINT, delta BIGINT);
-- Slices and power readings that the view uncounted_time names.
CREATE TABLE uncounted (kind VARCHAR, unit BIGINT, t0_ns BIGINT, t1_ns BIGINT, writer VARCHAR, seq BIGINT);
-- Trajectories, numbered in the order in which they were heard of: those that new events are about stand together.
CREATE TABLE trajectory (number BIGINT, run_id VARCHAR, provenance VARCHAR, trajectory_id VARCHAR);
CREATE TABLE token (
    number BIGINT, unit BIGINT, hour BIGINT, lease_id VARCHAR, rl_run_id VARCHAR, policy_version BIGINT, failed BOOLEAN,
    tokens BIGINT
);
-- Attempts at turns that were preempted, or that are not the first.
CREATE TABLE attempt (
    number BIGINT, turn BIGINT, attempt BIGINT, outcome VARCHAR, unit BIGINT, hour BIGINT, lease_id VARCHAR,
    rl_run_id VARCHAR, policy_version BIGINT, uncached_tokens BIGINT
);
CREATE TABLE ended (number BIGINT, outcome VARCHAR, task VARCHAR, at_us BIGINT, writer VARCHAR, seq BIGINT);
CREATE TABLE judged (number BIGINT, accepted BOOLEAN, stale BOOLEAN, at_us BIGINT, writer VARCHAR, seq BIGINT);
-- Tokens by what became of them so far. `output`: generated, else a prompt computed again.
CREATE TABLE made (
    unit BIGINT, hour BIGINT, lease_id VARCHAR, rl_run_id VARCHAR, policy_version BIGINT, task VARCHAR, fate VARCHAR,
    cause VARCHAR, output BOOLEAN, tokens BIGINT
);
CREATE TABLE sent (
    unit BIGINT, hour BIGINT, lease_id VARCHAR, rl_run_id VARCHAR, route VARCHAR, policy_version BIGINT, at_us BIGINT,
    bytes BIGINT, writer VARCHAR, seq BIGINT
);
CREATE TABLE metered (
    unit BIGINT, hour BIGINT, writer VARCHAR, first_seq BIGINT, last_seq BIGINT, ns BIGINT, energy_mw_ns HUGEINT
);
-- Hours of devices whose sums lie in several portions, by the number of the portion that was added to them.
CREATE TABLE grown (portion BIGINT, unit BIGINT, hour BIGINT);
-- Hours of devices whose charges stand, at the prices of one book, with the time for which the run held the device and
-- its part of that: with another they stand no more.
CREATE TABLE priced (unit BIGINT, hour BIGINT, held_ns BIGINT, ns BIGINT);
CREATE TABLE priced_by (book_sha256 VARCHAR);
-- Meaning of each position in an hour of a device. `of_device`: the team that has the device pays, else the run's.
CREATE TABLE bucket AS
SELECT
    unnest(range(10)) AS position,
    unnest([
        'serving', 'rollout', 'train', 'sync', 'activation', 'headroom', 'idle', 'unaccounted', 'transfer', 'energy'
    ]) AS bucket,
    unnest(list_concat(repeat(['capacity'], 8), ['transfer', 'energy'])) AS kind,
    unnest([true, false, false, false, false, true, true, true, false, true]) AS of_device;
CREATE TABLE charge (
    unit BIGINT, hour BIGINT, place BIGINT, commitment VARCHAR, lease_id VARCHAR, rl_run_id VARCHAR,
    position BIGINT, policy_version BIGINT, task VARCHAR, fate VARCHAR, cause VARCHAR, route VARCHAR,
    ns BIGINT, tokens BIGINT, bytes BIGINT, energy_mw_ns BIGINT, cost_nano BIGINT,
    writer VARCHAR, first_seq BIGINT, last_seq BIGINT
);
