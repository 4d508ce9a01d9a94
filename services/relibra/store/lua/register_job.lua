-- Register a job once, in an epoch above all earlier ones (S4).
--
-- KEYS  1 job   2 epoch
-- ARGV  1 shape (JSON)   2 now (Unix time)   3 the last epoch that the caller knows
-- Returns 'new' or 'known'; the first registration stays in both cases.
--
-- While this Redis keeps its data, epochs rise by counting, whatever the clocks do. After Redis has lost its data, the
-- next epoch is above the caller's; if the caller has lost its epoch too, the clock of Redis decides. All epochs stay
-- below 2^53, where the doubles of Lua are exact, until the year 2255.

if redis.call('EXISTS', KEYS[1]) == 1 then
  return 'known'
end
local now = redis.call('TIME')
local last = math.max(tonumber(redis.call('GET', KEYS[2]) or '0'), tonumber(ARGV[3]))
local epoch = math.max(last + 1, now[1] * 1000000 + now[2])
redis.call('SET', KEYS[2], string.format('%.0f', epoch))
redis.call('HSET', KEYS[1], 'epoch', string.format('%08x%08x', math.floor(epoch / 2^32), epoch % 2^32),
  'registered_at', ARGV[2], 'shape', ARGV[1])
return 'new'
