-- Find the sequences of a list that were not reported.
--
-- KEYS  1 counts
-- ARGV  sequence ids
-- Returns the places of the missing sequences in ARGV, counted from 0.

local missing = {}
for index, sequence_id in ipairs(ARGV) do
  if redis.call('HEXISTS', KEYS[1], sequence_id) == 0 then
    missing[#missing + 1] = index - 1
  end
end
return missing
