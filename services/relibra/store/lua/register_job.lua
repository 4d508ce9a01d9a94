-- Register a job: begin an attempt in an epoch above all earlier ones (S4), or confirm the one that the caller began.
--
-- KEYS  1 job   2 epoch   3 attempts   4 lease
-- ARGV  1 shape (JSON)   2 now (Unix time)   3 the last epoch that the caller knows, 0 if none
--       4 hash of the token, '' without one   5 owner   6 process
-- Returns {word, epoch (hex) of the caller}, where word is
--   'new'        an attempt began
--   'confirmed'  the caller began the current attempt, with the shape ARGV 1
--   'other'      the caller began the current attempt, with another shape; nothing was changed
--   'over'       the caller began an attempt, and another process began a later one; nothing was changed
--
-- While this Redis keeps its data, epochs rise by counting, whatever the clocks do. After Redis has lost data, the next
-- epoch is above the caller's; if the caller has lost its epoch too, the clock of Redis decides. All epochs stay
-- below 2^53, where the doubles of Lua are exact, until the year 2255.

local now = redis.call('TIME')
local now_ms = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
local last, known = tonumber(redis.call('GET', KEYS[2]) or '0'), tonumber(ARGV[3])
local function hex(epoch)
  return string.format('%08x%08x', math.floor(epoch / 2^32), epoch % 2^32)
end
local before, shape, token, process, number, seen_at, finished_at = unpack(redis.call('HMGET', KEYS[1],
  'epoch', 'shape', 'token', 'process', 'number', 'seen_at', 'finished_at'))
-- A failover of Redis may have lost the attempt that the caller began; then the caller knows a later epoch.
if before and known <= last then
  if token == ARGV[4] and process == ARGV[6] then
    if shape ~= ARGV[1] then
      return {'other', before}
    end
    redis.call('HSET', KEYS[1], 'seen_at', now_ms)
    redis.call('HDEL', KEYS[1], 'finished_at')
    return {'confirmed', before}
  end
  -- A caller that knows the current attempt and did not begin it has joined it: the driver was started again.
  if known > 0 and hex(known) ~= before then
    return {'over', hex(known)}
  end
  local documents = redis.call('HGETALL', KEYS[3])
  for index = 1, #documents, 2 do
    local attempt = cjson.decode(documents[index + 1])
    if attempt.token == ARGV[4] and attempt.process == ARGV[6] then
      return {'over', documents[index]}
    end
  end
end

if before then
  -- It is kept when the attempt before was last heard: that is when its trainer died.
  local document = redis.call('HGET', KEYS[3], before)
  if document then
    local attempt = cjson.decode(document)
    attempt.heard_at, attempt.finished_at = seen_at, finished_at or nil
    redis.call('HSET', KEYS[3], before, cjson.encode(attempt))
  end
end

local epoch = math.max(math.max(last, known) + 1, now[1] * 1000000 + now[2])
local name = hex(epoch)
number = string.format('%d', (number or 0) + 1)
redis.call('SET', KEYS[2], string.format('%.0f', epoch))
redis.call('HSET', KEYS[1], 'epoch', name, 'registered_at', ARGV[2], 'shape', ARGV[1], 'number', number,
  'token', ARGV[4], 'owner', ARGV[5], 'process', ARGV[6], 'seen_at', now_ms)
redis.call('HSET', KEYS[3], name, cjson.encode(
  {number = number, token = ARGV[4], owner = ARGV[5], process = ARGV[6], began_at = ARGV[2], shape = ARGV[1]}))
redis.call('HDEL', KEYS[1], 'finished_at')
-- A solve of the attempt before can no longer publish; the first step of this one need not wait for its lease to end.
redis.call('DEL', KEYS[4])
return {'new', name}
