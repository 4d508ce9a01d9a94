-- Register a job: begin an attempt, confirm the current one, or refuse, in an epoch above all earlier ones (S4).
--
-- KEYS  1 job   2 epoch   3 attempts   4 lease
-- ARGV  1 shape (JSON)   2 now (Unix time)   3 the last epoch that the caller knows   4 hash of the token, '' without one
--       5 owner   6 launch   7 restart   8 how long the current attempt must be silent before another may begin, in ms
--       9 how long ago the launcher started the caller in ms, '' if that does not tell its attempts apart
-- Returns {word, how long the current attempt has been silent in ms, how long its driver has been, owner of the trainer
-- ranks that are bound to it or ''}, where word is
--   'new'        an attempt began
--   'confirmed'  the caller belongs to the current attempt, whose shape is ARGV 1
--   'other'      the caller belongs to the current attempt, which has another shape; nothing was changed
--   'running'    another attempt is alive; nothing was changed
--
-- While this Redis keeps its data, epochs rise by counting, whatever the clocks do. After Redis has lost data, the next
-- epoch is above the caller's; if the caller has lost its epoch too, the clock of Redis decides. All epochs stay
-- below 2^53, where the doubles of Lua are exact, until the year 2255.

local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
-- The age of a caller is a little higher by now than it says.
local SLACK_MS = 1000
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
local current = redis.call('HMGET', KEYS[1], 'shape', 'token', 'launch', 'restart', 'seen_at', 'number',
  'began_ms', 'driver_seen_at', 'group_owner', 'claimed_at')
if current[1] then
  -- A clock that was set back must not keep a dead attempt alive.
  local silent_ms = math.abs(now_ms - tonumber(current[5]))
  local is_same_launch = ARGV[6] ~= '' and ARGV[6] == current[3]
  -- torchrun starts its workers again without counting it if another node made it do so.
  -- A caller that names the current attempt was there when it began, whatever the clocks say.
  local is_younger = ARGV[9] ~= '' and current[7] and tonumber(ARGV[3]) ~= last
    and ARGV[9] + SLACK_MS < math.abs(now_ms - tonumber(current[7]))
  local is_restarted = is_same_launch and (tonumber(ARGV[7]) > tonumber(current[4]) or is_younger)
  local is_member = ARGV[4] == '' or ARGV[4] == current[2] or (is_same_launch and ARGV[7] == current[4])
  -- A failover of Redis may have lost the attempt that the launch was in. Its other processes know that attempt too.
  local was_later = is_member and tonumber(ARGV[3]) > last
  if is_member and not is_restarted and not was_later then
    if current[1] ~= ARGV[1] then
      return {'other', silent_ms, 0, ''}
    end
    if ARGV[4] ~= '' then
      local seen_at = string.format('%.0f', now_ms)
      redis.call('HSET', KEYS[1], 'seen_at', seen_at, 'driver_seen_at', seen_at)
    end
    return {'confirmed', silent_ms, 0, ''}
  end
  if not is_restarted and not was_later and silent_ms < tonumber(ARGV[8]) then
    local is_bound = current[9] and current[10] == '0'
    return {'running', silent_ms, math.abs(now_ms - tonumber(current[8] or now_ms)), is_bound and current[9] or ''}
  end
end

if current[1] then
  -- It is kept when the attempt before was last heard: that is when its trainer died.
  local before = redis.call('HGET', KEYS[1], 'epoch')
  local document = redis.call('HGET', KEYS[3], before)
  if document then
    local attempt = cjson.decode(document)
    attempt.heard_at = current[5]
    redis.call('HSET', KEYS[3], before, cjson.encode(attempt))
  end
end

local epoch = math.max(math.max(last, tonumber(ARGV[3])) + 1, now[1] * 1000000 + now[2])
local name = string.format('%08x%08x', math.floor(epoch / 2^32), epoch % 2^32)
local number = string.format('%d', (current[6] or 0) + 1)
redis.call('SET', KEYS[2], string.format('%.0f', epoch))
redis.call('HSET', KEYS[1], 'epoch', name, 'registered_at', ARGV[2], 'shape', ARGV[1], 'number', number,
  'token', ARGV[4], 'owner', ARGV[5], 'launch', ARGV[6], 'restart', ARGV[7],
  'seen_at', string.format('%.0f', now_ms), 'driver_seen_at', string.format('%.0f', now_ms),
  'began_ms', string.format('%.0f', now_ms))
redis.call('HDEL', KEYS[1], 'group', 'group_owner', 'group_seen_at', 'claimed_at')
redis.call('HSET', KEYS[3], name,
  cjson.encode({number = number, token = ARGV[4], owner = ARGV[5], began_at = ARGV[2], shape = ARGV[1]}))
-- A solve of the attempt before can no longer publish; the first step of this one need not wait for its lease to end.
redis.call('DEL', KEYS[4])
return {'new', 0, 0, ''}
