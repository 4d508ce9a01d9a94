-- Let an attempt go back to a step: another attempt of the same launch begins, without any steps.
--
-- KEYS  1 job   2 epoch   3 attempts   4 lease   5 version of the attempt that goes back   6 version of the new attempt
--       7 its placement
-- ARGV  1 epoch (hex) of the attempt that goes back   2 epoch (hex) of the new one   3 the same, decimal   4 step
--       5 now (Unix time)   6 placement that the ranks have, '' if it is the plain one
-- Returns
--   'begun'        the new attempt began
--   'same'         this very call was made before: its attempt is the current one
--   'stale_epoch'  another attempt is the current one, or the job is gone
--   'changed'      a later epoch was given out since the caller looked; look again
-- Only 'begun' changes anything. Afterwards nothing is written to the attempt that went back (S4): neither late reports
-- nor the plan of a solve that is under way.

local current = redis.call('HGET', KEYS[1], 'epoch')
if current ~= ARGV[1] then
  local document = current and redis.call('HGET', KEYS[3], current)
  local attempt = document and cjson.decode(document) or {}
  return attempt.rolled_back_from == ARGV[1] and attempt.rolled_back_to == ARGV[4] and 'same' or 'stale_epoch'
end
if tonumber(ARGV[3]) <= tonumber(redis.call('GET', KEYS[2])) then
  return 'changed'
end
-- Versions go on rising, so that the plans of one step have different ids (S3).
redis.call('SET', KEYS[6], redis.call('GET', KEYS[5]) or '0')
if ARGV[6] ~= '' then
  redis.call('SET', KEYS[7], ARGV[6])
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
redis.call('HDEL', KEYS[1], 'finished_at')
redis.call('DEL', KEYS[4])
return 'begun'
