-- Record that solving a step went wrong, and end the lease. Only the holder of the lease may call this.
--
-- KEYS  1 job   2 lease   3 pending   4 open   5 failure   6 crashes
-- ARGV  1 fencing token   2 epoch (hex)   3 step   4 reason   5 number of calls at which the step fails; 0: at once
-- Returns 'failed', 'again' (the step stays pending and will be tried again) or 'lost_lease'.

if redis.call('GET', KEYS[2]) ~= ARGV[1] or redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[2] then
  return 'lost_lease'
end
-- If the count of crashes is damaged, the lease stays: it keeps the step from being tried again at once, for good.
local number = redis.call('HINCRBY', KEYS[6], ARGV[3], 1)
redis.call('DEL', KEYS[2])
if number < tonumber(ARGV[5]) then
  return 'again'
end
redis.call('SET', KEYS[5], ARGV[4])
redis.call('ZREM', KEYS[3], ARGV[3])
redis.call('ZREM', KEYS[4], ARGV[3])
redis.call('HDEL', KEYS[6], ARGV[3])
return 'failed'
