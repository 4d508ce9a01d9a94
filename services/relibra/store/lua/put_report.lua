-- Keep the report of a rank for one phase of a step, unless the step has expired.
--
-- KEYS  1 job   2 steps   3 reports   4 realised   5 reported   6 sizes   7 routed   8 floor
-- ARGV  1 epoch (hex) of the attempt   2 step   3 phase   4 EP group and rank   5 report   6 realised load
--       7 load by expert   8 limit on bytes of the reports of the step   9 limit on bytes of the step
-- Returns how many reports of the phase there are; or 'stale_epoch' if the attempt is over, 'expired' if the step has
--   expired, 'reports' or 'step' if the report would exceed the limit of ARGV 8 or 9. These keep nothing.

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 'stale_epoch'
end
local step, field = ARGV[2], ARGV[3] .. '/' .. ARGV[4]
if tonumber(step) < tonumber(redis.call('GET', KEYS[8]) or '0') then
  return 'expired'
end
-- A second report of a rank and phase replaces the first.
local parts = { [3] = ARGV[5], [4] = ARGV[6], [7] = ARGV[7] }
local is_new = redis.call('HEXISTS', KEYS[3], field) == 0
local added = 0
for key, part in pairs(parts) do
  added = added + field_bytes(field, #part)
  if not is_new then
    added = added - field_bytes(field, redis.call('HSTRLEN', KEYS[key], field))
  end
end
if added > 0 and tonumber(redis.call('HGET', KEYS[5], 'bytes') or '0') + added > tonumber(ARGV[8]) then
  return 'reports'
end
if added > 0 and tonumber(redis.call('HGET', KEYS[6], step) or '0') + added > tonumber(ARGV[9]) then
  return 'step'
end
for key, part in pairs(parts) do
  redis.call('HSET', KEYS[key], field, part)
end
redis.call('ZADD', KEYS[2], step, step)
redis.call('HINCRBY', KEYS[5], 'bytes', added)
redis.call('HINCRBY', KEYS[6], step, added)
return redis.call('HINCRBY', KEYS[5], ARGV[3], is_new and 1 or 0)
