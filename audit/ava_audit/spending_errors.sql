SELECT
  -- Errors that runs wrote, by kind: entries after ?1, from ?2 on and before ?3, of the user ?4 or of everybody.
  json_extract(events.content, '$.kind'), count(*), max(events.seq), events.run_id
FROM events CROSS JOIN runs ON runs.id = events.run_id
WHERE events.type = 'ErrorOccurred' AND events.seq > ?1 AND +events.ts_us >= ?2 AND +events.ts_us < ?3
  AND events.generation IS NOT NULL AND (?4 IS NULL OR runs.user_id = ?4)
GROUP BY 1 ORDER BY 2 DESC, 3 DESC
