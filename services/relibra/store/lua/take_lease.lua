-- Take the lease on a job's solving, where nobody holds it and a step waits.
--
-- KEYS  1 job   2 lease   3 fence   4 pending   5 traces
-- ARGV  1 lease time in ms
-- Returns {fencing token, step, epoch, trace context of its schedule or ''}, or nothing.
--
-- One lease a job and not a step: the plan of a step starts from the placement of the one before.

local waiting = redis.call('ZRANGE', KEYS[4], 0, 0)
local epoch = redis.call('HGET', KEYS[1], 'epoch')
-- Leases end by the wall clock of Redis. One that has far longer to go than leases last was given before that clock was
-- set back, and its holder may be gone; if it is not, fencing holds it off.
local left = redis.call('PTTL', KEYS[2])
if not epoch or #waiting == 0 or (left >= 0 and left <= 60 * ARGV[1]) then
  return {}
end
local token = redis.call('INCR', KEYS[3])
redis.call('SET', KEYS[2], token, 'PX', ARGV[1])
return {token, waiting[1], epoch, redis.call('HGET', KEYS[5], waiting[1]) or ''}
