-- What a field of a large hash takes in Redis, as MEMORY USAGE counts it. Scripts that ask for it get this before them.
--
-- jemalloc gives out multiples of 16 bytes up to 128, and four sizes for each doubling above. The texts of field and value
-- have a header of at most 17 bytes and an end of one, an entry of the table takes 24 bytes, and its place up to 16.

local function allocated_bytes(size)
  local grain = 16
  while size > 8 * grain do
    grain = 2 * grain
  end
  return math.ceil(size / grain) * grain
end

local function text_bytes(length)
  local header = length < 32 and 1 or length < 256 and 3 or length < 65536 and 5 or 9
  return allocated_bytes(length + header + 1)
end

local function field_bytes(field, value_length)
  return text_bytes(#field) + text_bytes(value_length) + 24 + 16
end
