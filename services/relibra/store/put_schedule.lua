-- Keep the schedule of a step once, and mark the step as pending in the same instant.
--
-- KEYS  1 schedule   2 pending   3 steps
-- ARGV  1 schedule (JSON)   2 step   3 now (Unix time)
-- Returns 'new', 'same' (this very schedule is there) or 'other' (another one is; nothing was changed).

local existing = redis.call('GET', KEYS[1])
if existing then
  return existing == ARGV[1] and 'same' or 'other'
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
redis.call('ZADD', KEYS[3], ARGV[2], ARGV[2])
return 'new'
