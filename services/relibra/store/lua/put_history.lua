-- Let the step after a trained one be planned from the loads of earlier steps, if nobody scheduled it, and if a step of late
-- had no micro-batches: where all have them, the next one will have them too.
--
-- KEYS  1 job   2 schedule of the next step   3 pending   4 steps   5 foreseen   6 open
--       7... schedules of the trained step and of some before it
-- ARGV  1 epoch (hex)   2 the next step   3 level history   4 now (Unix time)   5 level micro-batches
--       6... the steps of KEYS 7...
-- Only the newest such step waits for its plan: earlier ones have begun. A step with sequences waits for its schedule.
-- Returns 1 if the next step waits for its plan from history now, and nothing otherwise.

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return
end
local foreseen = redis.call('GET', KEYS[5])
if redis.call('EXISTS', KEYS[2]) == 1 or redis.call('ZSCORE', KEYS[6], ARGV[2])
  or (foreseen and tonumber(foreseen) >= tonumber(ARGV[2])) then
  return
end
local is_wanted = false
for index = 7, #KEYS do
  local is_kept = redis.call('ZSCORE', KEYS[4], ARGV[index - 1])
  is_wanted = is_wanted or (is_kept and redis.call('HGET', KEYS[index], 'level') ~= ARGV[5])
end
if not is_wanted then
  return
end
if foreseen then
  redis.call('ZREM', KEYS[3], foreseen)
end
redis.call('SET', KEYS[5], ARGV[2])
redis.call('HSET', KEYS[2], 'level', ARGV[3])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[2])
redis.call('ZADD', KEYS[4], ARGV[2], ARGV[2])
return 1
