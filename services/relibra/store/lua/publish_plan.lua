-- Publish the plan of a step by compare-and-set, and end the lease (S3, S4). Only the holder of the lease may publish.
--
-- KEYS  1 job   2 lease   3 version   4 plan   5 plans   6 pending   7 open   8 failure   9 crashes   10 schedule
-- ARGV  1 fencing token   2 epoch (hex)   3 step   4 digest   5 now (Unix time)   6 level
--       7... field, value, for every field of the plan
-- Returns one of
--   {'published', version}
--   {'same', version}           a plan with this digest was published before
--   {'other', version, digest}  a plan with another digest was published before
--   {'stale_epoch', epoch}      the job is in this epoch now; '' if it is gone
--   {'lost_lease'}
--   {'replaced'}                a schedule of a higher level came meanwhile; the step stays pending

local epoch = redis.call('HGET', KEYS[1], 'epoch') or ''
if epoch ~= ARGV[2] then
  return {'stale_epoch', epoch}
end
local existing = redis.call('HMGET', KEYS[4], 'version', 'digest')
if existing[1] then
  redis.call('ZREM', KEYS[6], ARGV[3])
  return {existing[2] == ARGV[4] and 'same' or 'other', tonumber(existing[1]), existing[2]}
end
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return {'lost_lease'}
end
if redis.call('HGET', KEYS[10], 'level') ~= ARGV[6] then
  redis.call('DEL', KEYS[2])
  return {'replaced'}
end

local version = redis.call('INCR', KEYS[3])
redis.call('HSET', KEYS[4], 'epoch', epoch, 'version', version, 'digest', ARGV[4], 'published_at', ARGV[5],
  'submitted_at', redis.call('ZSCORE', KEYS[6], ARGV[3]) or '')
local size = 0
for index = 7, #ARGV, 2 do
  redis.call('HSET', KEYS[4], ARGV[index], ARGV[index + 1])
  size = size + field_bytes(ARGV[index], #ARGV[index + 1])
end
redis.call('HSET', KEYS[4], 'bytes', size)
redis.call('ZADD', KEYS[5], version, ARGV[3])
redis.call('ZREM', KEYS[6], ARGV[3])
-- Earlier steps without a schedule count as abandoned: they are no longer open.
redis.call('ZREMRANGEBYSCORE', KEYS[7], '-inf', ARGV[3])
redis.call('DEL', KEYS[2], KEYS[8])
redis.call('HDEL', KEYS[9], ARGV[3])
return {'published', version}
