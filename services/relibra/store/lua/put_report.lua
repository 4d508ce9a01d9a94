-- Keep the report of a rank for one phase of a step, if the step is known: that of an unknown step would never expire.
--
-- KEYS  1 steps   2 reports   3 realised
-- ARGV  1 step   2 phase, EP group and rank   3 report (JSON)   4 realised load
-- Returns the fields of all reports of the step; none if the step is not known.

if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  return {}
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[4])
return redis.call('HKEYS', KEYS[2])
