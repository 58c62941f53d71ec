SELECT
  -- The totals of settled calls by run and day (microseconds): entries after :after, reserved from :since on and before :until.
  -- A settlement belongs to the run's newest reservation before it. As in the budgets, a settlement of a call that is
  -- not in flight counts for nothing. The pluses make SQLite use the index of the run, which has few entries, and not the
  -- index of the type, which has many.
  e.run_id, r.ts_us / 86400000000 AS day, count(*), sum(coalesce(e.cost_micros, 0)),
  sum(coalesce(CAST(json_extract(e.content, '$.cost_by.retries') AS BIGINT), 0)),
  sum(coalesce(CAST(json_extract(e.content, '$.cost_by.plan') AS BIGINT), 0)),
  sum(CASE WHEN trim(CAST(json_extract(e.content, '$.settlement') AS TEXT), '"') = 'unknown'
      THEN coalesce(e.cost_micros, 0) ELSE 0 END),
  sum(CAST(json_extract(e.content, '$.overrun') AS BIGINT)),
  sum(CASE WHEN CAST(json_extract(e.content, '$.overrun') AS BIGINT) = 1
      AND coalesce(e.cost_micros, 0) > CAST(json_extract(e.content, '$.reserved_micros') AS BIGINT)
      THEN coalesce(e.cost_micros, 0) - CAST(json_extract(e.content, '$.reserved_micros') AS BIGINT) ELSE 0 END)
FROM events AS e CROSS JOIN events AS r ON r.seq = (
    SELECT b.seq FROM events AS b
    WHERE b.run_id = e.run_id AND b.seq < e.seq AND +b.type = 'CostReserved'
    ORDER BY b.seq DESC LIMIT 1)
WHERE e.type = 'CostUpdate' AND e.seq > :after AND e.run_id IS NOT NULL
  AND +r.ts_us >= :since AND +r.ts_us < :until
  AND json_extract(e.content, '$.turn') = json_extract(r.content, '$.turn')
  AND json_extract(e.content, '$.attempt') = json_extract(r.content, '$.attempt')
  AND NOT EXISTS (
    SELECT 1 FROM events AS b
    WHERE b.run_id = e.run_id AND b.seq > r.seq AND b.seq < e.seq AND +b.type = 'CostUpdate'
      AND json_extract(b.content, '$.turn') = json_extract(e.content, '$.turn')
      AND json_extract(b.content, '$.attempt') = json_extract(e.content, '$.attempt'))
GROUP BY e.run_id, day
