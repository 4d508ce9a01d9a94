-- Renew a lease, or give it back (lease time 0); only its holder can.
--
-- KEYS  1 lease
-- ARGV  1 fencing token   2 lease time in ms
-- Returns 1 where the caller still held it.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
