-- Keep the schedule of a step, and make the step pending in the same instant. A schedule of a higher level replaces one
-- of a lower level and its plan, whose version is never used again.
--
-- KEYS  1 job   2 schedule   3 pending   4 steps   5 open   6 floor   7 sizes   8 plan   9 plans   10 failure
-- ARGV  1 epoch (hex)   2 level   3 document (opaque)   4 step   5 now (Unix time)   6 limit on pending steps
--       7 levels below that of ARGV 2, with a space around each
-- Returns 'new', 'same' (the step has this very schedule), 'other' (it has another one), 'stale_epoch', 'expired' or
--   'full'. Only 'new' changes anything.

local step = ARGV[4]
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 'stale_epoch'
end
local existing = redis.call('HMGET', KEYS[2], 'level', 'document')
local is_replaced = existing[1] and string.find(ARGV[7], ' ' .. existing[1] .. ' ', 1, true)
if existing[1] and not is_replaced then
  return existing[1] == ARGV[2] and existing[2] == ARGV[3] and 'same' or 'other'
end
if tonumber(step) < tonumber(redis.call('GET', KEYS[6]) or '0') then
  return 'expired'
end
if redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[6]) and not redis.call('ZSCORE', KEYS[3], step) then
  return 'full'
end
if is_replaced then
  redis.call('DEL', KEYS[8], KEYS[10])
  redis.call('ZREM', KEYS[9], step)
end
local before = existing[2] and field_bytes('document', #existing[2]) or 0
redis.call('HSET', KEYS[2], 'level', ARGV[2], 'document', ARGV[3])
redis.call('HINCRBY', KEYS[7], step, field_bytes('document', #ARGV[3]) - before)
redis.call('ZADD', KEYS[3], ARGV[5], step)
redis.call('ZADD', KEYS[4], step, step)
redis.call('ZADD', KEYS[5], step, step)
return 'new'
