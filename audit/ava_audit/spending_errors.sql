SELECT
  -- Errors that runs wrote, by kind: entries after :after, from :since on and before :until, of the user :user or of everybody.
  json_extract(events.content, '$.kind'), count(*), max(events.seq), events.run_id
FROM events CROSS JOIN runs ON runs.id = events.run_id
WHERE events.type = 'ErrorOccurred' AND events.seq > :after AND +events.ts_us >= :since AND +events.ts_us < :until
  AND events.generation IS NOT NULL AND (:user IS NULL OR runs.user_id = :user)
GROUP BY 1 ORDER BY 2 DESC, 3 DESC
