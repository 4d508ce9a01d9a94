-- Keep what was refused of the current attempt of a job, and the step at which refusals of this kind began.
--
-- KEYS  1 job   2 refusals
-- ARGV  1 epoch (hex) of the attempt   2 what was refused   3 step   4 the refusal (JSON)
-- Returns whether the attempt is current, so that the refusal was kept.

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return false
end
redis.call('HSETNX', KEYS[2], ARGV[2] .. '/since', ARGV[3])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[4])
return true
