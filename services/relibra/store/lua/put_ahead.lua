-- Keep the counts of sequences of which nobody knows yet in which step they are trained. The newest counts of a name stay,
-- and the oldest sequences make room for new ones.
--
-- KEYS  1 job   2 ahead   3 ahead_order   4 ahead_note
-- ARGV  1 epoch (hex) of the attempt   2 limit on bytes (`field_bytes`)   3 limit on sequences
--       4... sequence id, policy versions and counts (opaque), for every sequence
-- Returns a text of one word per sequence: 'kept', 'large' (it exceeds the limit on bytes), 'unknown' (the job is not
--   registered), or 'stale_epoch' (another attempt of the job is the current one). Only 'kept' changes anything.

local current = redis.call('HGET', KEYS[1], 'epoch')
if current ~= ARGV[1] then
  return string.rep(current and 'stale_epoch ' or 'unknown ', (#ARGV - 3) / 2)
end
local note = redis.call('HMGET', KEYS[4], 'epoch', 'size', 'number')
local size, number = tonumber(note[2] or '0'), tonumber(note[3] or '0')
if note[1] ~= ARGV[1] then -- what an earlier attempt left is trained by nobody
  redis.call('UNLINK', KEYS[2], KEYS[3])
  size = 0
end

local function drop(name)
  size = size - field_bytes(name, redis.call('HSTRLEN', KEYS[2], name))
  redis.call('HDEL', KEYS[2], name)
  redis.call('ZREM', KEYS[3], name)
end
local function keep(name, value)
  local taken = field_bytes(name, #value)
  if taken > tonumber(ARGV[2]) then
    return 'large'
  end
  if redis.call('HEXISTS', KEYS[2], name) == 1 then
    drop(name)
  end
  while size + taken > tonumber(ARGV[2]) or redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[3]) do
    drop(redis.call('ZRANGE', KEYS[3], 0, 0)[1])
  end
  size, number = size + taken, number + 1
  redis.call('HSET', KEYS[2], name, value)
  redis.call('ZADD', KEYS[3], number, name)
  return 'kept'
end
local words = {}
for index = 4, #ARGV, 2 do
  words[#words + 1] = keep(ARGV[index], ARGV[index + 1])
end
redis.call('HSET', KEYS[4], 'epoch', ARGV[1], 'size', size, 'number', number)
return table.concat(words, ' ')
