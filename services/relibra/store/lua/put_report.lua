-- Keep the report of a rank for one phase of a step, if the step is known: that of an unknown step would never expire.
--
-- KEYS  1 job   2 steps   3 reports   4 realised   5 reported   6 sizes
-- ARGV  1 epoch (hex) of the attempt   2 step   3 phase   4 EP group and rank   5 report   6 realised load
--       7 limit on bytes of the reports of the step   8 limit on bytes of the step
-- Returns how many reports of the phase there are; or 'stale_epoch' if the attempt is over, 'unknown' if the step is not
--   known, 'reports' or 'step' if the report would exceed the limit of ARGV 7 or 8. These keep nothing.

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 'stale_epoch'
end
local step, field = ARGV[2], ARGV[3] .. '/' .. ARGV[4]
if not redis.call('ZSCORE', KEYS[2], step) then
  return 'unknown'
end
-- A second report of a rank and phase replaces the first.
local added = field_bytes(field, #ARGV[5]) + field_bytes(field, #ARGV[6])
local is_new = redis.call('HEXISTS', KEYS[3], field) == 0
if not is_new then
  added = added - field_bytes(field, redis.call('HSTRLEN', KEYS[3], field))
    - field_bytes(field, redis.call('HSTRLEN', KEYS[4], field))
end
if added > 0 and tonumber(redis.call('HGET', KEYS[5], 'bytes') or '0') + added > tonumber(ARGV[7]) then
  return 'reports'
end
if added > 0 and tonumber(redis.call('HGET', KEYS[6], step) or '0') + added > tonumber(ARGV[8]) then
  return 'step'
end
redis.call('HSET', KEYS[3], field, ARGV[5])
redis.call('HSET', KEYS[4], field, ARGV[6])
redis.call('HINCRBY', KEYS[5], 'bytes', added)
redis.call('HINCRBY', KEYS[6], step, added)
return redis.call('HINCRBY', KEYS[5], ARGV[3], is_new and 1 or 0)
