-- Let the step after a trained one be planned from the loads of earlier steps, if nobody scheduled either of them.
--
-- KEYS  1 job   2 schedule of the trained step   3 schedule of the next step   4 pending   5 steps   6 foreseen   7 open
-- ARGV  1 epoch (hex)   2 the next step   3 level history   4 now (Unix time)
-- Only the newest such step waits for its plan: earlier ones have begun. A step with sequences waits for its schedule.

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return
end
local level = redis.call('HGET', KEYS[2], 'level')
local foreseen = redis.call('GET', KEYS[6])
if (level and level ~= ARGV[3]) or redis.call('EXISTS', KEYS[3]) == 1
  or redis.call('ZSCORE', KEYS[7], ARGV[2])
  or (foreseen and tonumber(foreseen) >= tonumber(ARGV[2])) then
  return
end
if foreseen then
  redis.call('ZREM', KEYS[4], foreseen)
end
redis.call('SET', KEYS[6], ARGV[2])
redis.call('HSET', KEYS[3], 'level', ARGV[3])
redis.call('ZADD', KEYS[4], ARGV[4], ARGV[2])
redis.call('ZADD', KEYS[5], ARGV[2], ARGV[2])
