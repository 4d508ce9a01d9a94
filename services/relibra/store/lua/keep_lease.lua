-- Renew a lease, or end it (lease time 0). Only the holder of the lease may do either.
--
-- KEYS  1 lease
-- ARGV  1 fencing token   2 lease time in ms
-- Returns 1 if the caller held the lease, else 0.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
