-- Return an epoch above all earlier ones of a job, as a decimal text (S4).
--
-- KEYS  1 epoch
--
-- Epochs are counted, or follow the clock of Redis if that is ahead: an epoch that a failover lost does not come back.

local now = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
return string.format('%.0f', math.max(last + 1, now[1] * 1000000 + now[2]))
