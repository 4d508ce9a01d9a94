-- Keep the sum of all reports of a phase, if the step is known: the sum of an unknown step would never expire.
--
-- KEYS  1 steps   2 executed
-- ARGV  1 step   2 phase   3 sum (JSON)

if redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
end
