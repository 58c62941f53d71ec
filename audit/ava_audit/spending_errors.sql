SELECT
  -- Errors that runs wrote, by kind: from :since on and before :until, of the user :user or of everybody.
  found.kind, found.entries, found.last, (SELECT run_id FROM events AS e WHERE e.seq = found.last)
FROM (
  SELECT json_extract(events.content, '$.kind') AS kind, count(*) AS entries, max(events.seq) AS last
  FROM events CROSS JOIN runs ON runs.id = events.run_id
  WHERE +events.type = 'ErrorOccurred' AND events.ts_us >= :since AND events.ts_us < :until
    AND events.generation IS NOT NULL AND (CAST(:user AS TEXT) IS NULL OR runs.user_id = :user)
  GROUP BY 1) AS found
ORDER BY 2 DESC, 3 DESC
