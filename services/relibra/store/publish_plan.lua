-- Publish the plan of a step: compare and set (S3, S4).
--
-- KEYS  1 registration   2 version   3 plan   4 plans   5 pending   6 failure
-- ARGV  1 epoch (hex)   2 step   3 digest (hex)   4 reason   5 forecast (JSON)   6 now (Unix time)   7 plan file
-- Returns {'published', version}, {'same', version} where this content was published before,
--   {'other', version, digest} where different content was, or {'stale_epoch', epoch of the job, '' if it is gone}.
--
-- The epoch is compared as text: Lua numbers are doubles and would round it.

local registration = redis.call('GET', KEYS[1])
local epoch = registration and cjson.decode(registration).epoch or ''
if epoch ~= ARGV[1] then
  return {'stale_epoch', epoch}
end

local existing = redis.call('HMGET', KEYS[3], 'version', 'digest')
if existing[1] then
  redis.call('ZREM', KEYS[5], ARGV[2])
  if existing[2] == ARGV[3] then
    return {'same', tonumber(existing[1])}
  end
  return {'other', tonumber(existing[1]), existing[2]}
end

local version = redis.call('INCR', KEYS[2])
redis.call('HSET', KEYS[3], 'epoch', ARGV[1], 'version', version, 'digest', ARGV[3], 'reason', ARGV[4],
  'forecast', ARGV[5], 'published_at', ARGV[6], 'file', ARGV[7])
redis.call('ZADD', KEYS[4], version, ARGV[2])
redis.call('ZREM', KEYS[5], ARGV[2])
redis.call('DEL', KEYS[6])
return {'published', version}
