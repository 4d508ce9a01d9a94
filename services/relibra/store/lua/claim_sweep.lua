-- Let one of several planners look for steps of a job that expire, once in an interval.
--
-- KEYS  1 job
-- ARGV  1 interval in ms
-- Returns 1 for the planner that looks, else 0.

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local swept_at = redis.call('HGET', KEYS[1], 'swept_at') or '0'
-- A clock that was set back must not stop the sweeps.
if redis.call('EXISTS', KEYS[1]) == 0 or math.abs(now_ms - swept_at) < tonumber(ARGV[1]) then
  return 0
end
-- A Redis that is full refuses a script whose first write takes memory, and sweeps make room.
redis.call('HDEL', KEYS[1], 'swept_at')
redis.call('HSET', KEYS[1], 'swept_at', string.format('%.0f', now_ms))
return 1
