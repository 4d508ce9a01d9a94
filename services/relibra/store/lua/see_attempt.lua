-- Note that the current attempt of a job is alive.
--
-- KEYS  1 job
-- ARGV  1 epoch (hex) of the attempt that was heard; an older one changes nothing

if redis.call('HGET', KEYS[1], 'epoch') == ARGV[1] then
  local now = redis.call('TIME')
  redis.call('HSET', KEYS[1], 'seen_at', string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)))
end
