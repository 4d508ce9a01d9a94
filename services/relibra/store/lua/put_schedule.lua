-- Keep the schedule of a step once, and make the step pending in the same instant.
--
-- KEYS  1 job   2 schedule   3 pending   4 steps   5 open   6 floor   7 traces   8 sizes
-- ARGV  1 epoch (hex)   2 basis   3 document (opaque)   4 step   5 now (Unix time)   6 limit on pending steps
--       7 trace context of the call, '' without one
-- Returns 'new', 'same' (the step has this very schedule), 'other' (it has another one), 'stale_epoch', 'expired' or
--   'full'. Only 'new' changes anything.

local step = ARGV[4]
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 'stale_epoch'
end
local existing = redis.call('HMGET', KEYS[2], 'basis', 'document')
if existing[1] then
  return existing[1] == ARGV[2] and existing[2] == ARGV[3] and 'same' or 'other'
end
if tonumber(step) < tonumber(redis.call('GET', KEYS[6]) or '0') then
  return 'expired'
end
if redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[6]) then
  return 'full'
end
redis.call('HSET', KEYS[2], 'basis', ARGV[2], 'document', ARGV[3])
redis.call('HINCRBY', KEYS[8], step, field_bytes('document', #ARGV[3]))
if ARGV[7] ~= '' then
  redis.call('HSET', KEYS[7], step, ARGV[7])
end
redis.call('ZADD', KEYS[3], ARGV[5], step)
redis.call('ZADD', KEYS[4], step, step)
redis.call('ZADD', KEYS[5], step, step)
return 'new'
