-- Forget an incarnation of a job and all its steps at once: nothing of it is written afterwards, and nothing of the next
-- one is lost.
--
-- KEYS  1 job   2 steps   3... what else there is of the job and of the steps that are named
-- ARGV  1 epoch (hex)   2... steps
-- Returns 1 where the incarnation is gone, now or before; 0 where it has other steps by now: name them all.

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 1
end
if redis.call('ZCARD', KEYS[2]) ~= #ARGV - 1 then
  return 0
end
for index = 2, #ARGV do
  if not redis.call('ZSCORE', KEYS[2], ARGV[index]) then
    return 0
  end
end
for index = 1, #KEYS do
  redis.call('UNLINK', KEYS[index])
end
return 1
