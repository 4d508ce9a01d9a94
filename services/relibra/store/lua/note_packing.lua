-- Keep how far the newest packing of the current attempt of a job has come.
--
-- KEYS  1 job   2 packing
-- ARGV  1 epoch (hex) of the attempt   2 how far it has come (JSON)
-- Returns whether the attempt is current, so that this was kept.

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return false
end
redis.call('SET', KEYS[2], ARGV[2])
return true
