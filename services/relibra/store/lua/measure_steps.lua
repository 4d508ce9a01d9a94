-- Measure the steps of an attempt: what they take in Redis, and how long ago they were first measured.
--
-- KEYS  1 job   2 steps   3 open   4 pending   5 plans   6 begun   7 sizes
--       8... the keys of every step, equally many for each
-- ARGV  1 position of the plan among the keys of a step   2 position of the reports   3... steps
-- Returns {how long ago the current attempt of the job was heard in ms,
--   whether Redis refuses to say what keys take, as some managed ones do: bytes are then those of counts,
--   schedules and reports by `field_bytes`,
--   then for every step:
--   {bytes, age in ms, whether it is open, whether it is pending, whether it has a plan, number of reports}}

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local keys_per_step = (#KEYS - 7) / (#ARGV - 2)
local measured = {math.max(0, now_ms - tonumber(redis.call('HGET', KEYS[1], 'seen_at') or now_ms)), 0}
for index = 3, #ARGV do
  local step, first, size = ARGV[index], 7 + (index - 3) * keys_per_step, 0
  for number = 1, keys_per_step do
    -- The fields of a plan differ in size by orders of magnitude, so all count. Elsewhere five tell enough: the counts of
    -- all sequences are about equally large, and so are the reports of all ranks.
    local samples = number == tonumber(ARGV[1]) and 0 or 5
    local used = redis.pcall('MEMORY', 'USAGE', KEYS[first + number], 'SAMPLES', samples)
    if type(used) == 'table' then
      measured[2] = 1
      size = tonumber(redis.call('HGET', KEYS[7], step) or '0')
      break
    end
    size = size + (used or 0)
  end
  -- A step that expired meanwhile leaves nothing behind here. A Redis that is full refuses this, and the step has no age yet.
  if redis.call('ZSCORE', KEYS[2], step) then
    redis.pcall('ZADD', KEYS[6], 'NX', string.format('%.3f', now_ms / 1000), step)
  end
  local begun = tonumber(redis.call('ZSCORE', KEYS[6], step) or now_ms / 1000)
  measured[#measured + 1] = {
    size,
    math.max(0, math.floor(now_ms - begun * 1000)),
    redis.call('ZSCORE', KEYS[3], step) and 1 or 0,
    redis.call('ZSCORE', KEYS[4], step) and 1 or 0,
    redis.call('ZSCORE', KEYS[5], step) and 1 or 0,
    redis.call('HLEN', KEYS[first + ARGV[2]]),
  }
end
return measured
