-- Ten questions to the tables of schema.sql. Tried with ClickHouse 26.9, in-process (chdb 26.9.0).
--
-- clickhouse-client --param_begin='2026-11-21 02:00:00' --param_end='2026-11-21 03:00:00' --param_host=db7 \
--     --param_other=db8 --param_category=lock --queries-file queries.sql
--
-- Times are UTC. `threads` is an average: 3.5 means that on average 3.5 threads waited. Idle waits are left out.

-- 1. Which hosts wait most, and on what?
WITH spans AS (
    SELECT host, sum(span_ns) AS measured_ns FROM offtop_ticks WHERE taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')} GROUP BY host
), parts AS (
    SELECT host, category, sum(ns) AS part_ns FROM offtop_waits
    WHERE taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')} AND NOT is_idle GROUP BY host, category
)
SELECT host, round(sum(part_ns) / any(measured_ns), 2) AS threads, argMax(category, part_ns) AS most_in, round(max(part_ns) / any(measured_ns), 2) AS threads_there
FROM parts JOIN spans USING host
GROUP BY host
ORDER BY threads DESC;

-- 2. Which hosts wait far more in a category than the others? A deviation is 1.48 times the median absolute deviation.
WITH hosts AS (
    SELECT host, sum(span_ns) AS measured_ns FROM offtop_ticks WHERE taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')} GROUP BY host
), categories AS (
    SELECT DISTINCT category FROM offtop_waits WHERE taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')} AND NOT is_idle
), waiting AS (
    SELECT host, category, sum(ns) AS sum_ns FROM offtop_waits
    WHERE taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')} AND NOT is_idle GROUP BY host, category
), each AS (
    SELECT host, category, sum_ns / measured_ns AS threads -- 0 where a host has no wait of the category
    FROM hosts CROSS JOIN categories LEFT JOIN waiting USING (host, category)
), medians AS (
    SELECT category, median(threads) AS middle, arrayReduce('median', arrayMap(one -> abs(one - middle), groupArray(threads))) AS deviation
    FROM each GROUP BY category
)
SELECT host, category, round(threads, 2) AS threads, round(middle, 2) AS median, round((threads - middle) / (1.4826 * greatest(deviation, 0.01)), 1) AS deviations
FROM each JOIN medians USING category
WHERE threads > 2 * middle AND threads > middle + 0.5 AND deviations >= 5
ORDER BY deviations DESC;

-- 3. Which programs of a host wait, and why?
SELECT process, category, cause, round(sum(ns) / 1e9, 1) AS seconds, sum(waits) AS ended, uniqExact(tid) AS threads_seen, round(max(max_ns) / 1e6, 1) AS longest_ms
FROM offtop_waits
WHERE host = {host:String} AND taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')} AND NOT is_idle
GROUP BY process, category, cause
ORDER BY seconds DESC
LIMIT 20;

-- 4. In which code do threads wait in this category, and on how many hosts?
SELECT round(sum(ns) / 1e9, 1) AS seconds, uniqExact(host) AS hosts, any(process) AS program,
    arrayStringConcat(arraySlice(user, 1, 6), ' < ') AS user_stack, arrayStringConcat(arraySlice(kernel, 1, 4), ' < ') AS kernel_stack
FROM offtop_waits
WHERE category = {category:String} AND taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')} AND NOT is_idle
GROUP BY user, kernel
ORDER BY seconds DESC
LIMIT 20;

-- 5. What does a host wait for that another one does not? Threads of `host` minus those of `other`.
WITH
    (SELECT sum(span_ns) FROM offtop_ticks WHERE host = {host:String} AND taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')}) AS own_ns,
    (SELECT sum(span_ns) FROM offtop_ticks WHERE host = {other:String} AND taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')}) AS other_ns
SELECT process, category, cause,
    round(sumIf(ns, host = {host:String}) / own_ns, 3) AS own_threads, round(sumIf(ns, host = {other:String}) / other_ns, 3) AS other_threads,
    round(own_threads - other_threads, 3) AS difference
FROM offtop_waits
WHERE host IN ({host:String}, {other:String}) AND taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')} AND NOT is_idle
GROUP BY process, category, cause
ORDER BY abs(difference) DESC
LIMIT 20;

-- 6. When did it begin? Threads by category, every 10 seconds.
WITH spans AS (
    SELECT toStartOfInterval(taken, INTERVAL 10 SECOND) AS at, sum(span_ns) AS measured_ns FROM offtop_ticks
    WHERE host = {host:String} AND taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')} GROUP BY at
), parts AS (
    SELECT toStartOfInterval(taken, INTERVAL 10 SECOND) AS at, category, sum(ns) AS part_ns FROM offtop_waits
    WHERE host = {host:String} AND taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')} AND NOT is_idle GROUP BY at, category
)
SELECT at, category, round(part_ns / measured_ns, 2) AS threads
FROM parts JOIN spans USING at
WHERE threads > 0.01
ORDER BY at, threads DESC;

-- 7. What did others wait for, on how many hosts, from when to when?
SELECT waiter, cause, holder, uniqExact(host) AS hosts, round(avg(waiting), 1) AS threads, max(waiting) AS most_threads,
    round(max(age_ns) / 1e9, 1) AS oldest_s, min(taken) AS first_seen, max(taken) AS last_seen, argMax(text, waiting) AS worst
FROM offtop_suspects
WHERE taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')}
GROUP BY waiter, cause, holder
ORDER BY hosts DESC, threads DESC
LIMIT 20;

-- 8. Which single waits were the longest?
SELECT host, taken, process, pid, tid, category, cause, round(max_ns / 1e6, 1) AS ms, object, waker, arrayStringConcat(arraySlice(kernel, 1, 3), ' < ') AS kernel_stack
FROM offtop_waits
WHERE taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')} AND NOT is_idle AND max_ns > 0
ORDER BY max_ns DESC
LIMIT 20;

-- 9. Which sockets, files and locks were waited on, and who ended the waits? (mode: wakeup or chain, see --mode)
SELECT object, waker, uniqExact(host) AS hosts, any(process) AS program, round(sum(ns) / 1e9, 1) AS seconds, sum(waits) AS ended
FROM offtop_waits
WHERE taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')} AND NOT is_idle AND (object != '' OR waker != '')
GROUP BY object, waker
ORDER BY seconds DESC
LIMIT 20;

-- 10. Which hosts lost records or have gaps, so that their numbers are too low?
SELECT host, count() AS ticks, round(sum(span_ns) / 1e9, 1) AS measured_s, round(greatest(dateDiff('millisecond', min(taken), max(taken)) / 1e3 - (sum(span_ns) - argMin(span_ns, taken)) / 1e9, 0), 1) AS gaps_s,
    sum(lost) AS lost_records, max(cpus) AS cpus, any(version) AS version
FROM offtop_ticks
WHERE taken BETWEEN {begin:DateTime('UTC')} AND {end:DateTime('UTC')}
GROUP BY host
ORDER BY lost_records DESC, gaps_s DESC;
