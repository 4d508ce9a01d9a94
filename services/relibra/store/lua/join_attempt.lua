-- Let a process join the current attempt of a job, and note that the process is alive.
--
-- KEYS  1 job
-- ARGV  1 hash of the token, '' without one   2 hash of the token of the launch that the caller is bound to, '' if none
--       3 '1' if the process that registers has the caller's token   4 epoch (hex) that the caller registered, for ARGV 5 ''
--       5 group of trainer ranks, '' from the process that registered   6 owner of the group
--       7 how long a group must be silent before another may train in its place, in ms
-- Returns {word, owner of the present group, how long that group has been silent in ms}, where word is
--   'bound'    the caller belongs to the current attempt, and keeps it alive
--   'joined'   nobody else trains the current attempt, but the process that registered it may be of another launch
--   'other'    the current attempt is not the caller's, or there is none; nothing was changed
--   'running'  another group trains the attempt and is alive; nothing was changed
--   'left'     another group trained the attempt and fell silent, and the process that registered it was not heard
--              afterwards, so both may be dead; nothing was changed
--
-- A group that does not know the token of its launch could join the attempt of a launch that died, and then keep that
-- attempt alive and its own launch out. So such a group is bound only once the process that registered was heard after it.

local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
local function text(ms)
  return string.format('%.0f', ms)
end
local epoch, token, group, owner, group_seen_at, claimed_at, driver_seen_at = unpack(redis.call('HMGET', KEYS[1],
  'epoch', 'token', 'group', 'group_owner', 'group_seen_at', 'claimed_at', 'driver_seen_at'))
if not epoch then
  return {'other', '', 0}
end
local is_member = (ARGV[1] ~= '' and ARGV[1] == token) or (ARGV[5] == '' and ARGV[4] == epoch)
local is_known = is_member or (ARGV[2] ~= '' and ARGV[2] == token)
if ARGV[5] == '' then
  if not is_member then
    return {'other', '', 0}
  end
  redis.call('HSET', KEYS[1], 'seen_at', text(now_ms), 'driver_seen_at', text(now_ms))
  return {'bound', '', 0}
end
if not is_known and (ARGV[3] == '1' or ARGV[2] ~= '') then
  return {'other', '', 0}
end
if group ~= ARGV[5] then
  if group then
    local silence_ms = tonumber(ARGV[7])
    -- A clock that was set back must not keep a dead group alive.
    local silent_ms = math.abs(now_ms - group_seen_at)
    if silent_ms < silence_ms then
      return {'running', owner, silent_ms}
    end
    if not is_known and tonumber(driver_seen_at) < group_seen_at + silence_ms then
      return {'left', owner, silent_ms}
    end
  end
  claimed_at = now_ms
  redis.call('HSET', KEYS[1], 'group', ARGV[5], 'group_owner', ARGV[6], 'claimed_at', text(now_ms))
end
redis.call('HSET', KEYS[1], 'group_seen_at', text(now_ms))
if is_known or tonumber(driver_seen_at) > tonumber(claimed_at) then
  redis.call('HSET', KEYS[1], 'seen_at', text(now_ms), 'claimed_at', '0')
  return {'bound', '', 0}
end
return {'joined', '', 0}
