-- Note that the training of the current attempt of a job ended.
--
-- KEYS  1 job
-- ARGV  1 epoch (hex) of the attempt
-- Returns 1, or nothing if another attempt is the current one, and then changes nothing.

if redis.call('HGET', KEYS[1], 'epoch') == ARGV[1] then
  local now = redis.call('TIME')
  redis.call('HSET', KEYS[1], 'finished_at', string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)))
  return 1
end
