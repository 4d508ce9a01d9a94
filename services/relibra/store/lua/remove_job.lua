-- Remove a job, its current attempt and all steps of it at once: nothing of it is written afterwards, and nothing of the next
-- incarnation is lost.
--
-- KEYS  1 job   2 lease   3 attempts   4 steps of the current attempt   5... its other keys and those of the named steps
-- ARGV  1 epoch (hex)   2... steps
-- Returns 1 if the incarnation is gone, now or before; 0 if it has other steps than the named ones: name them all.

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 1
end
if redis.call('ZCARD', KEYS[4]) ~= #ARGV - 1 then
  return 0
end
for index = 2, #ARGV do
  if not redis.call('ZSCORE', KEYS[4], ARGV[index]) then
    return 0
  end
end
for index = 1, #KEYS do
  redis.call('UNLINK', KEYS[index])
end
return 1
