-- Ends one hold, or some of its permits, by the key of what is taken only, and serves nobody. For a slot that is migrating,
-- and for users without rights to the line. The number of what is free is computed anew by the next script that has it.
--
-- KEYS[1]  the permits that are taken: a sorted set of 16 bytes -> time of expiry in milliseconds
-- ARGV[1]  the hold
-- ARGV[2]  its permits; 0 for all that it has
-- ARGV[3]  the first of the permits that end
--
-- Reply: 1 if all of them were there, 0 if one was not.
--
-- May be repeated: the second time finds nothing and changes nothing.

local a, b, number = string.match(ARGV[1], '^(%x%x%x%x%x%x%x%x)%-%x+%-%x+%-%x+%-%x+(%x%x%x%x%x%x):(%d+)$')
if not a then
  return 0
end
local start = struct.pack('>I4I3I5', tonumber(a, 16), tonumber(b, 16), tonumber(number))
local count, index, removed = tonumber(ARGV[2]), tonumber(ARGV[3]), 0
local last = index + count
while count == 0 or index < last do
  local one = redis.call('ZREM', KEYS[1], start .. struct.pack('>I4', index))
  removed = removed + one
  index = index + 1
  if count == 0 and one == 0 then
    break
  end
end
return removed > 0 and removed >= count and 1 or 0
