-- Note that the current attempt of a job is alive.
--
-- KEYS  1 job
-- ARGV  1 epoch (hex) of the attempt that was heard; an older one changes nothing
--       2 '1' if its driver was heard, '0' if its trainer ranks were
--
-- Trainer ranks that are not bound to the attempt (`join_attempt`) do not keep it alive.

local epoch, claimed_at, driver_seen_at = unpack(redis.call('HMGET', KEYS[1], 'epoch', 'claimed_at', 'driver_seen_at'))
if epoch ~= ARGV[1] then
  return
end
local now = redis.call('TIME')
local now_ms = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
if ARGV[2] == '1' then
  redis.call('HSET', KEYS[1], 'seen_at', now_ms, 'driver_seen_at', now_ms)
elseif tonumber(driver_seen_at) > tonumber(claimed_at or '0') then
  redis.call('HSET', KEYS[1], 'seen_at', now_ms)
end
