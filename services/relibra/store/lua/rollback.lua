-- Let an attempt go back to a step: a new attempt begins, which takes over all earlier steps and none of the later ones.
--
-- KEYS  1 job   2 epoch   3 attempts   4 lease
--       5... of the attempt that goes back: its version, its floor, its keys by step in the order of ARGV 7 to 9
--       then the same keys of the new attempt, and its placement
--       then, for each earlier step, its keys in the attempt that goes back and in the new one, in turn
-- ARGV  1 epoch (hex) of the attempt that goes back   2 epoch (hex) of the new one   3 the same, decimal   4 step
--       5 now (Unix time)   6 placement that the ranks have, '' if it is the plain one
--       7 number of sets that are scored by step   8 number of other sets of steps   9 number of hashes by step
--       10... earlier steps
-- Returns
--   'begun'        the new attempt began
--   'same'         this very call was made before: its attempt is the current one
--   'stale_epoch'  another attempt is the current one, or the job is gone
--   'changed'      a later epoch or an earlier step came or went since the caller looked; look again
-- Only 'begun' changes anything. Afterwards nothing is written to the attempt that went back (S4): neither late reports
-- nor the plan of a solve that is under way.

local current = redis.call('HGET', KEYS[1], 'epoch')
if current ~= ARGV[1] then
  local document = current and redis.call('HGET', KEYS[3], current)
  local attempt = document and cjson.decode(document) or {}
  return attempt.rolled_back_from == ARGV[1] and attempt.rolled_back_to == ARGV[4] and 'same' or 'stale_epoch'
end
local back_to, num_by_score, num_by_member = tonumber(ARGV[4]), tonumber(ARGV[7]), tonumber(ARGV[8])
local num_names = 2 + num_by_score + num_by_member + ARGV[9]
local placement = 5 + 2 * num_names
local function before(name) return KEYS[4 + name] end
local function after(name) return KEYS[4 + num_names + name] end
local steps = before(3)

if tonumber(ARGV[3]) <= tonumber(redis.call('GET', KEYS[2])) then
  return 'changed'
end
if redis.call('ZCOUNT', steps, '-inf', '(' .. ARGV[4]) ~= #ARGV - 9 then
  return 'changed'
end
for index = 10, #ARGV do
  if not redis.call('ZSCORE', steps, ARGV[index]) then
    return 'changed'
  end
end

-- Versions go on rising, so that the plans of one step have different ids (S3).
local version = redis.call('GET', before(1))
if version then
  redis.call('SET', after(1), version)
end
-- From `back_to` on, steps that had expired are taken again.
local floor = math.min(tonumber(redis.call('GET', before(2)) or '0'), back_to)
redis.call('SET', after(2), string.format('%.0f', floor))

local function rename(from, to)
  if redis.call('EXISTS', from) == 1 then
    redis.call('RENAME', from, to)
  end
end
local function move(from, to, lowest, highest)
  local entries = redis.call('ZRANGEBYSCORE', from, lowest, highest, 'WITHSCORES')
  for index = 1, #entries, 2 do
    redis.call('ZADD', to, entries[index + 1], entries[index])
  end
  redis.call('ZREMRANGEBYSCORE', from, lowest, highest)
end
local first = 3
for name = first, first + num_by_score - 1 do
  -- An attempt may have 100 000 summaries, so those of the smaller side move, one by one.
  local num_later = redis.call('ZCOUNT', before(name), ARGV[4], '+inf')
  if 2 * num_later <= redis.call('ZCARD', before(name)) then
    rename(before(name), after(name))
    move(after(name), before(name), ARGV[4], '+inf')
  else
    move(before(name), after(name), '-inf', '(' .. ARGV[4])
  end
end
first = first + num_by_score
for name = first, first + num_by_member - 1 do
  local entries = redis.call('ZRANGE', before(name), 0, -1, 'WITHSCORES')
  for index = 1, #entries, 2 do
    if tonumber(entries[index]) < back_to then
      redis.call('ZADD', after(name), entries[index + 1], entries[index])
      redis.call('ZREM', before(name), entries[index])
    end
  end
end
first = first + num_by_member
for name = first, num_names do
  local entries = redis.call('HGETALL', before(name))
  for index = 1, #entries, 2 do
    if tonumber(entries[index]) < back_to then
      redis.call('HSET', after(name), entries[index], entries[index + 1])
      redis.call('HDEL', before(name), entries[index])
    end
  end
end
if ARGV[6] ~= '' then
  redis.call('SET', KEYS[placement], ARGV[6])
end
for index = placement + 1, #KEYS, 2 do
  rename(KEYS[index], KEYS[index + 1])
end

-- The same launch goes on, with the owner, the token and the shape that it registered.
local attempt = cjson.decode(redis.call('HGET', KEYS[3], ARGV[1]))
attempt.heard_at = redis.call('HGET', KEYS[1], 'seen_at')
redis.call('HSET', KEYS[3], ARGV[1], cjson.encode(attempt))
attempt.heard_at = nil
attempt.number, attempt.began_at = string.format('%d', attempt.number + 1), ARGV[5]
attempt.rolled_back_from, attempt.rolled_back_to = ARGV[1], ARGV[4]
redis.call('HSET', KEYS[3], ARGV[2], cjson.encode(attempt))
redis.call('SET', KEYS[2], ARGV[3])
redis.call('HSET', KEYS[1], 'epoch', ARGV[2], 'registered_at', ARGV[5], 'number', attempt.number)
redis.call('DEL', KEYS[4])
return 'begun'
