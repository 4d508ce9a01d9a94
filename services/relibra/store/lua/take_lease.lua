-- Take the lease on solving for a job, if a step waits and nobody holds the lease.
--
-- KEYS  1 job   2 lease   3 fence   4 pending
-- ARGV  1 lease time in ms   2 epoch (hex) of the attempt that KEYS 4 belongs to
-- Returns {fencing token, step, epoch}, or nothing.
--
-- The lease belongs to a job and not to a step, because each plan starts from the placement of the plan before.

local waiting = redis.call('ZRANGE', KEYS[4], 0, 0)
local epoch = redis.call('HGET', KEYS[1], 'epoch')
-- Leases end by the wall clock of Redis. A lease that has far longer to go than leases last was given before that clock
-- was set back, and its holder may be gone. If the holder is still there, fencing keeps it from publishing.
local left = redis.call('PTTL', KEYS[2])
if epoch ~= ARGV[2] or #waiting == 0 or (left >= 0 and left <= 60 * ARGV[1]) then
  return {}
end
local token = redis.call('INCR', KEYS[3])
redis.call('SET', KEYS[2], token, 'PX', ARGV[1])
return {token, waiting[1], epoch}
