-- Remove the full data of steps and keep a summary of each, except of steps that have come to life again (S7).
--
-- KEYS  1 floor   2 pending   3 steps   4 open   5 plans   6 begun   7 sizes   8 crashes   9 summaries
--       10... the keys of every step, equally many for each
-- ARGV  1 how many summaries the attempt keeps   2 position of the reports among the keys of a step
--       3... for every step: step, whether it was open ('1' or '0'), whether it was pending, how many reports it had,
--       its summary
-- Returns the steps whose data was removed. An attempt that was forgotten meanwhile has no steps, and gets no keys.

local num_steps = (#ARGV - 2) / 5
local keys_per_step = (#KEYS - 9) / num_steps
local expired = {}
for index = 1, num_steps do
  local step, was_open, was_pending, num_reports, summary = unpack(ARGV, 5 * index - 2, 5 * index + 2)
  local first = 9 + (index - 1) * keys_per_step
  local is_known = redis.call('ZSCORE', KEYS[3], step)
  -- Steps that were pending as their attempt ended stay so: nobody plans them any more.
  local has_schedule_since = was_pending == '0' and redis.call('ZSCORE', KEYS[2], step)
  local has_begun_again = was_open == '0' and redis.call('ZSCORE', KEYS[4], step)
  -- A report that came after the summary was made would be in neither; the step expires the next time.
  local is_reported = redis.call('HLEN', KEYS[first + ARGV[2]]) > tonumber(num_reports)
  if is_known and not has_schedule_since and not has_begun_again and not is_reported then
    -- First of all, because a Redis that is full refuses a script whose first write takes memory.
    for number = 1, keys_per_step do
      redis.call('UNLINK', KEYS[first + number])
    end
    -- Later reports for an expired step are refused; they do not start the step again.
    local floor = tonumber(redis.call('GET', KEYS[1]) or '0')
    redis.call('SET', KEYS[1], string.format('%.0f', math.max(floor, tonumber(step) + 1)))
    for number = 2, 6 do
      redis.call('ZREM', KEYS[number], step)
    end
    for number = 7, 8 do
      redis.call('HDEL', KEYS[number], step)
    end
    redis.call('ZREMRANGEBYSCORE', KEYS[9], step, step)
    redis.call('ZADD', KEYS[9], step, summary)
    expired[#expired + 1] = tonumber(step)
  end
end
redis.call('ZREMRANGEBYRANK', KEYS[9], 0, -ARGV[1] - 1)
return expired
