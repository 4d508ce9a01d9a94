-- Measure the steps of an attempt: what they take in Redis, and how long ago they were first measured.
--
-- KEYS  1 job   2 steps   3 open   4 pending   5 plans   6 begun   7 sizes   8... plan and reports of every step
-- ARGV  steps
-- Returns {how long ago the current attempt of the job was heard in ms, then for every step:
--   {bytes, age in ms, whether it is open, whether it is pending, whether it has a plan, number of reports}}

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local measured = {math.max(0, now_ms - tonumber(redis.call('HGET', KEYS[1], 'seen_at') or now_ms))}
for index, step in ipairs(ARGV) do
  local plan, reports = KEYS[6 + 2 * index], KEYS[7 + 2 * index]
  -- A step that expired meanwhile leaves nothing behind here. A Redis that is full refuses this, and the step has no age yet.
  if redis.call('ZSCORE', KEYS[2], step) then
    redis.pcall('ZADD', KEYS[6], 'NX', string.format('%.3f', now_ms / 1000), step)
  end
  local begun = tonumber(redis.call('ZSCORE', KEYS[6], step) or now_ms / 1000)
  measured[#measured + 1] = {
    (redis.call('HGET', KEYS[7], step) or 0) + (redis.call('HGET', plan, 'bytes') or 0),
    math.max(0, math.floor(now_ms - begun * 1000)),
    redis.call('ZSCORE', KEYS[3], step) and 1 or 0,
    redis.call('ZSCORE', KEYS[4], step) and 1 or 0,
    redis.call('ZSCORE', KEYS[5], step) and 1 or 0,
    redis.call('HLEN', reports),
  }
end
return measured
