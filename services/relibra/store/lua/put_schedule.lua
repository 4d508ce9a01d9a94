-- Keep the schedule of a step once, and mark the step as pending in the same instant.
--
-- KEYS  1 job   2 schedule   3 pending   4 steps   5 open   6 floor   7 traces
-- ARGV  1 epoch (hex)   2 schedule (JSON)   3 step   4 now (Unix time)   5 limit on pending steps
--       6 trace context of the call, '' without one
-- Returns 'new', 'same' (this very schedule is there), 'other' (another one is), 'stale_epoch', 'expired' or 'full';
-- nothing was changed but for 'new'.

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 'stale_epoch'
end
local existing = redis.call('GET', KEYS[2])
if existing then
  return existing == ARGV[2] and 'same' or 'other'
end
if tonumber(ARGV[3]) < tonumber(redis.call('GET', KEYS[6]) or '0') then
  return 'expired'
end
if redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[5]) then
  return 'full'
end
redis.call('SET', KEYS[2], ARGV[2])
if ARGV[6] ~= '' then
  redis.call('HSET', KEYS[7], ARGV[3], ARGV[6])
end
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[3])
redis.call('ZADD', KEYS[4], ARGV[3], ARGV[3])
redis.call('ZADD', KEYS[5], ARGV[3], ARGV[3])
return 'new'
