-- Keep the sum of all reports of a phase, where the step is known: nobody would see the sum of another expire.
--
-- KEYS  1 steps   2 executed
-- ARGV  1 step   2 phase   3 sum (JSON)

if redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
end
