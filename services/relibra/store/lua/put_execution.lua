-- Keep the sum of all reports of a phase, if the step is known: the sum of an unknown step would never expire.
--
-- KEYS  1 job   2 steps   3 executed
-- ARGV  1 epoch (hex) of the attempt   2 step   3 phase   4 sum (JSON)

if redis.call('HGET', KEYS[1], 'epoch') == ARGV[1] and redis.call('ZSCORE', KEYS[2], ARGV[2]) then
  redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
end
