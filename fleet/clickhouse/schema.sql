-- Tables for the ticks of many hosts. Tried with ClickHouse 26.9, in-process (chdb 26.9.0).
--
-- offtop_lines keeps nothing: each line that is inserted, a tick as --json prints it, becomes rows of the other tables.
-- To insert the recording that the agent of db7 keeps, or a part of it:
--
--     ssh db7 sudo offtop export jsonl latest --begin 02:00 --end 02:30 |
--         clickhouse-client --param_host=db7 -q "
--             INSERT INTO offtop_lines SELECT {host:String}, line FROM input('line String') FORMAT LineAsString"
--
-- A host with 200 active stacks a second makes 200 rows a second of 20 to 40 bytes each: insert what was around an
-- incident, not every second of every host. A tick that is inserted twice counts twice.

CREATE TABLE offtop_lines (host LowCardinality(String), line String) ENGINE = Null;

CREATE TABLE offtop_ticks
(
    host LowCardinality(String),
    taken DateTime64(3, 'UTC') COMMENT 'End of the tick, by the clock of the host',
    span_ns UInt64 COMMENT 'Length of the tick',
    cpus UInt16,
    lost UInt64 COMMENT 'Records lost in it, of all kinds, without the seconds of lost connections',
    version LowCardinality(String)
)
ENGINE = MergeTree PARTITION BY toDate(taken) ORDER BY (host, taken) TTL toDateTime(taken) + INTERVAL 30 DAY;

CREATE TABLE offtop_waits
(
    host LowCardinality(String),
    taken DateTime64(3, 'UTC'),
    pid UInt32,
    tid UInt32,
    process LowCardinality(String) COMMENT 'Name of the process',
    comm LowCardinality(String) COMMENT 'Name of the thread',
    category LowCardinality(String),
    cause LowCardinality(String) COMMENT 'Id of the cause rule; empty: none',
    is_idle Bool COMMENT 'Idle or standing: normal without work',
    waits UInt32 COMMENT 'Waits that ended',
    ns Int64 COMMENT 'Time in waits. Sums are right; a single row may be negative, and corrects an earlier one',
    run_queue_ns UInt64 COMMENT 'The part of it in which the thread was ready, without a CPU',
    max_ns UInt64 COMMENT 'Longest wait that ended',
    object String COMMENT 'What it waits on, such as a file or a socket with its peer; empty: unknown',
    waker LowCardinality(String) COMMENT 'Program that ended the wait, or timer, irq, timeout; empty: not recorded',
    kernel Array(LowCardinality(String)) COMMENT 'Stack, leaf first',
    user Array(LowCardinality(String))
)
ENGINE = MergeTree PARTITION BY toDate(taken) ORDER BY (host, category, process, taken)
TTL toDateTime(taken) + INTERVAL 30 DAY;

CREATE TABLE offtop_suspects
(
    host LowCardinality(String),
    taken DateTime64(3, 'UTC'),
    kind LowCardinality(String),
    text String COMMENT 'Who waits for what, and what holds it, in one sentence',
    waiter LowCardinality(String) COMMENT 'Program that waits',
    cause LowCardinality(String) COMMENT 'Id of the cause rule of its wait',
    holder LowCardinality(String) COMMENT 'Program that must act; empty: unknown',
    waiting Float64 COMMENT 'Average threads that wait',
    age_ns UInt64 COMMENT 'Age of the oldest wait'
)
ENGINE = MergeTree PARTITION BY toDate(taken) ORDER BY (host, taken) TTL toDateTime(taken) + INTERVAL 30 DAY;

CREATE MATERIALIZED VIEW offtop_to_ticks TO offtop_ticks AS
SELECT
    host,
    fromUnixTimestamp64Milli(intDiv(JSONExtractInt(line, 'taken_ns'), 1000000), 'UTC') AS taken,
    JSONExtractUInt(line, 'span_ns') AS span_ns,
    JSONExtractUInt(line, 'machine', 'cpus') AS cpus,
    arraySum(arrayMap(one -> if(one.1 = 'seconds', 0, one.2), JSONExtractKeysAndValues(line, 'lost', 'UInt64'))) AS lost,
    JSONExtractString(line, 'version') AS version
FROM offtop_lines;

CREATE MATERIALIZED VIEW offtop_to_waits TO offtop_waits AS
WITH
    JSONExtract(line, 'threads', 'Array(Tuple(pid UInt32, process String))') AS threads,
    mapFromArrays(threads.pid, threads.process) AS processes
SELECT
    host,
    fromUnixTimestamp64Milli(intDiv(JSONExtractInt(line, 'taken_ns'), 1000000), 'UTC') AS taken,
    site.pid AS pid,
    site.tid AS tid,
    processes[site.pid] AS process,
    site.comm AS comm,
    site.category AS category,
    site.diagnosis AS cause,
    site.idle OR site.standing AS is_idle,
    site.waits AS waits,
    site.total_ns + site.earlier_ns AS ns,
    site.runqueue_ns AS run_queue_ns,
    site.max_ns AS max_ns,
    trimBoth(concat(site.object.kind, ' ', if(site.object.peer = '', site.object.name, site.object.peer))) AS object,
    if(site.waker.comm = '', site.waker.kind, site.waker.comm) AS waker,
    site.kernel AS kernel,
    site.user AS user
FROM offtop_lines
ARRAY JOIN JSONExtract(line, 'sites', 'Array(Tuple(
    pid UInt32, tid UInt32, comm String, category String, diagnosis String, idle Bool, standing Bool, waits UInt32,
    total_ns Int64, earlier_ns Int64, runqueue_ns UInt64, max_ns UInt64, kernel Array(String), user Array(String),
    object Tuple(kind String, name String, peer String), waker Tuple(kind String, comm String)))') AS site;

CREATE MATERIALIZED VIEW offtop_to_suspects TO offtop_suspects AS
SELECT
    host,
    fromUnixTimestamp64Milli(intDiv(JSONExtractInt(line, 'taken_ns'), 1000000), 'UTC') AS taken,
    suspect.kind AS kind,
    suspect.text AS text,
    suspect.hops[1].process AS waiter,
    suspect.hops[1].diagnosis AS cause,
    if(length(suspect.hops) > 1, suspect.hops[-1].process, '') AS holder,
    suspect.waiting AS waiting,
    suspect.age_ns AS age_ns
FROM offtop_lines
ARRAY JOIN JSONExtract(line, 'suspects', 'Array(Tuple(kind String, text String, waiting Float64, age_ns UInt64,
    hops Array(Tuple(process String, diagnosis String))))') AS suspect;
