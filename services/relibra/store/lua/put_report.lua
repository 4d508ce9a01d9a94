-- Keep the report of a rank for one phase of a step, if the step is known: that of an unknown step would never expire.
--
-- KEYS  1 job   2 steps   3 reports   4 realised
-- ARGV  1 epoch (hex) of the attempt   2 step   3 phase, EP group and rank   4 report (JSON)   5 realised load
-- Returns the fields of all reports of the step, none if the step is not known; false if the attempt is over.

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return false
end
if not redis.call('ZSCORE', KEYS[2], ARGV[2]) then
  return {}
end
redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
redis.call('HSET', KEYS[4], ARGV[3], ARGV[5])
return redis.call('HKEYS', KEYS[3])
