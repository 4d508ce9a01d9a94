-- Register a job once, in an epoch above all earlier ones (S4).
--
-- KEYS  1 job   2 epoch
-- ARGV  1 shape (JSON)   2 now (Unix time)   3 last epoch the caller knows of
-- Returns 'new' or 'known'; in both cases the first registration stands.
--
-- Within the life of this Redis epochs rise by counting, whatever clocks do. After it has lost its data, they go on above
-- the caller's, or, where the caller has lost its own too, from the clock of Redis. All stay below 2^53, where the
-- doubles of Lua are exact, until the year 2255.

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
