-- Remove old steps, except those that wait for their plan (S7).
--
-- KEYS  1 job   2 floor   3 pending   4 steps   5 open   6 plans   7 sizes   8 crashes   9 traces
--       10... the keys of every step, equally many for each
-- ARGV  1 epoch (hex)   2... steps
--
-- The epoch is that of the incarnation in which the steps were found to be old: in the next incarnation the same numbers
-- may be new steps.

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return
end
local keys_per_step = (#KEYS - 9) / (#ARGV - 1)
for index = 2, #ARGV do
  local step = ARGV[index]
  if not redis.call('ZSCORE', KEYS[3], step) then
    -- Later reports for an expired step are refused; they do not start the step again.
    local floor = tonumber(redis.call('GET', KEYS[2]) or '0')
    redis.call('SET', KEYS[2], string.format('%.0f', math.max(floor, tonumber(step) + 1)))
    for number = 1, keys_per_step do
      redis.call('UNLINK', KEYS[9 + (index - 2) * keys_per_step + number])
    end
    for number = 4, 6 do
      redis.call('ZREM', KEYS[number], step)
    end
    for number = 7, 9 do
      redis.call('HDEL', KEYS[number], step)
    end
  end
end
