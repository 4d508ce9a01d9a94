-- Keep the counts of some sequences of one step, each once.
--
-- KEYS  1 job   2 counts   3 schedule   4 steps   5 open   6 floor   7 sizes   8 policies
-- ARGV  1 epoch (hex) of the attempt   2 step   3 limit on bytes of the step (`field_bytes`)   4 limit on open steps
--       5 level history, whose schedules name no sequences
--       6 limit on sequences of the step
--       7... sequence id, counts (opaque), policy versions ('' if unknown), for every sequence
-- Returns a text of one word per sequence, which a client reads faster than a list:
--   'kept'     the counts are stored now
--   'same'     these very counts were stored before
--   'other'    different counts were stored before, and stay
--   'late'     the step has its schedule
--   'expired'  the step has expired
--   'many'     the step would have one sequence too many
--   'large'    the counts exceed the limit on bytes of the step
--   'busy'     the step would be one open step too many
--   'unknown'  the job is not registered
--   'stale_epoch'  another attempt of the job is the current one; nothing of this one is written any more

local step = ARGV[2]
local level = redis.call('HGET', KEYS[3], 'level')
local is_scheduled = level and level ~= ARGV[5]
local refusal = nil
if redis.call('EXISTS', KEYS[1]) == 0 then
  refusal = 'unknown'
elseif redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  refusal = 'stale_epoch'
elseif tonumber(step) < tonumber(redis.call('GET', KEYS[6]) or '0') then
  refusal = 'expired'
elseif is_scheduled then
  refusal = 'late'
elseif not redis.call('ZSCORE', KEYS[5], step) and redis.call('ZCARD', KEYS[5]) >= tonumber(ARGV[4]) then
  refusal = 'busy'
end

local size = tonumber(redis.call('HGET', KEYS[7], step) or '0')
local left = tonumber(ARGV[6]) - redis.call('HLEN', KEYS[2])
local outcomes, added = {}, 0
for index = 7, #ARGV, 3 do
  local kept = redis.call('HGET', KEYS[2], ARGV[index])
  local outcome
  local taken = field_bytes(ARGV[index], #ARGV[index + 1])
  if refusal == 'stale_epoch' then
    outcome = refusal
  elseif kept then
    outcome = kept == ARGV[index + 1] and 'same' or 'other'
  elseif refusal then
    outcome = refusal
  elseif size + added + taken > tonumber(ARGV[3]) then
    outcome = 'large'
  elseif left <= 0 then
    outcome = 'many'
  else
    outcome = 'kept'
    left = left - 1
    added = added + taken
    redis.call('HSET', KEYS[2], ARGV[index], ARGV[index + 1])
    local policy = ARGV[index + 2]
    if policy ~= '' and redis.call('HINCRBY', KEYS[8], policy, 1) == 1 then
      added = added + field_bytes(policy, 1)
    end
  end
  outcomes[#outcomes + 1] = outcome
end
if added > 0 then
  redis.call('HINCRBY', KEYS[7], step, added)
  redis.call('ZADD', KEYS[4], step, step)
  redis.call('ZADD', KEYS[5], step, step)
end
return table.concat(outcomes, ' ')
